"""The images on which one detector differs most from another, for the better and for the worse."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepgrad.evaluation.outlines import lines_of
from stepgrad.report.findings import Findings
from stepgrad.report.image_data import by_score
from stepgrad.report.places import drawn_boxes

CHANGED_RULE = (
    "For each detector, each class has the score threshold with the best F1 over all images; only detections that reach it are "
    "shown. The count of an image is right minus wrong minus missed. Better and worse: the images where the count of the second "
    "detector is the furthest above and below that of the reference. Objects that the protocol ignores (difficult ones, COCO's "
    "crowds), and detections of them, are neither counted nor shown."
)


def describe_changes(reference: Findings, chosen: Findings, shown: int) -> dict[str, Any]:
    """How many images are better, worse and the same, and the positions of those to show with their boxes."""
    before, after = reference.by_image(), chosen.by_image()
    grown = _count(after) - _count(before)
    better, worse = better_and_worse(grown, shown)

    def describe(position: int) -> dict[str, Any]:
        return {
            "image": str(reference.evidence.image_ids[position]),
            "position": position,
            "words": _in_words(*(after - before)[:2, position].tolist()),
            "change": int(grown[position]),
            "reference": _describe_side(reference, position, before),
            "chosen": _describe_side(chosen, position, after),
        }

    return {
        "rule": CHANGED_RULE,
        "iou": reference.iou,
        "counts": {"better": int((grown > 0).sum()), "worse": int((grown < 0).sum()), "same": int((grown == 0).sum())},
        "better": [describe(position) for position in better],
        "worse": [describe(position) for position in worse],
    }


def _count(by_image: NDArray[np.int64]) -> NDArray[np.int64]:
    """(images,) right minus wrong minus missed."""
    right, wrong, missed = by_image
    return right - wrong - missed


def better_and_worse(grown: NDArray[np.int64], shown: int) -> tuple[list[int], list[int]]:
    """Positions of the images that changed most, up to half of `shown` (rounded up) of each kind.

    >>> better_and_worse(np.array([0, 2, -1, 1, 2]), shown=4)
    ([1, 4], [2])
    """
    half = (shown + 1) // 2
    better, worse = (np.argsort(-by, kind="stable")[: min(half, int((by > 0).sum()))] for by in (grown, -grown))
    return better.tolist(), worse.tolist()


def _in_words(found: int, alarms: int) -> str:
    """What is different on an image. An object more found is one less missed, so that is not said twice.

    >>> _in_words(2, -1), _in_words(0, 2)
    ('2 more found, 1 fewer false alarm', '2 more false alarms')
    """
    more = lambda by: f"{abs(by)} {'more' if by > 0 else 'fewer'}"  # noqa: E731
    alarm = "false alarm" if abs(alarms) == 1 else "false alarms"
    return ", ".join([f"{more(found)} found"] * bool(found) + [f"{more(alarms)} {alarm}"] * bool(alarms))


def _describe_side(findings: Findings, position: int, by_image: NDArray[np.int64]) -> dict[str, Any]:
    right, wrong, missed = by_image[:, position].tolist()
    return {"right": right, "wrong": wrong, "missed": missed, "boxes": boxes_on(findings, position)}


def boxes_on(findings: Findings, position: int) -> list[dict[str, Any]]:
    """The boxes to draw on an image, each class at its cut: detections by decreasing score, then missed objects.

    Corners, and the lines of masks, poses and oriented boxes, are in continuous pixels from 0.
    """
    evidence, names = findings.evidence, findings.evidence.class_names
    found, objects, right = evidence.detections, evidence.objects, findings.right
    shown = (right | findings.wrong) & findings.passing & (found.images == position)
    missed = findings.there & ~findings.found() & (objects.images == position)
    object_corners, corners = drawn_boxes(evidence)
    return [
        {
            "verdict": "right" if right[row] else "wrong",
            "class": names[found.labels[row]],
            "score": float(found.scores[row]),
            "box": corners[row].tolist(),
            "lines": lines_of(evidence, found, row),
        }
        for row in by_score(findings, shown)
    ] + [
        {
            "verdict": "missed",
            "class": names[objects.labels[row]],
            "score": None,
            "box": object_corners[row].tolist(),
            "lines": lines_of(evidence, objects, row),
        }
        for row in np.flatnonzero(missed).tolist()
    ]
