"""Detections that can be judged but are most likely not what was meant, each with its sign and the way out.

Nothing here changes a number. Where mAP at IoU 0.5 is next to nothing, or boxes leave their images, the usual mistakes are
undone one at a time (`other_readings.py`, and the classes here): one that lifts mAP far is the cause. Other mistakes show in
the detections themselves: repeats, equal scores, scores that begin at a threshold, images without any.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from stepgrad.evaluation.judge import judge
from stepgrad.evaluation.other_readings import WORDS, BoxOrder, best_reading, covers, pairs_of_images
from stepgrad.evaluation.records import Detections, Evidence
from stepgrad.evaluation.result import EvaluationResult, result_from
from stepgrad.metric.protocol import Protocol
from stepgrad.number_text import per_cent
from stepgrad.overlaps.base import Boxes

_POOR = 0.1  # mAP at IoU 0.5 below which mistakes are looked for; classes in another order can leave some points
_MANY_OBJECTS = 100  # with fewer, a poor mAP is no sign
_LIFTED = 0.1  # mAP at IoU 0.5 that undoing a mistake has to reach ...
_TIMES = 2.0  # ... and how many times the mAP as it is
_LEAST_FOUND = 10  # objects that have to be found then, so that it cannot be chance
_SLACK = 1.0  # pixels a box may reach over the edge of its image without leaving it
_LEAVING = 0.25  # share of boxes that leave their images if the numbers are in another order; of corners about half do
_SAME_MOVE = 0.8  # share of detections whose classes have to be moved alike; rare classes may tell nothing
_MANY = 100  # detections from which on their scores tell something
_REPEATED = 0.01  # share of detections that repeat another and are told of
_LEAST_CUT = 0.0999  # scores that begin lower than a tenth leave little out
_NEAR = 0.01  # how far above a cut the lowest of many scores is


def likely_mistakes(
    result: EvaluationResult,
    sizes: NDArray[np.float64] | None = None,
    written: BoxOrder = "xyxy",
    splits: Mapping[str, set[int]] | None = None,
) -> list[str]:
    """One line for each thing about the detections that is most likely a mistake; an empty list is the rule.

    Args:
        result: what a protocol says about the detections, with its evidence.
        sizes: (images, 2) width and height of each image; nan, or None for all, where they are not known.
        written: the order of the four numbers of a box where the detections come from.
        splits: positions of the images of each split, if no split was chosen.
    """
    evidence = result.evidence
    if evidence is None or evidence.num_images == 0:
        return []
    if len(evidence.detections) == 0:
        return ["has no detections, so every object counts as missed"] if len(evidence.objects) else []
    known = np.full((evidence.num_images, 2), np.nan) if sizes is None else sizes
    lines = [
        _unseen(evidence, splits or {}),
        _undone(result, evidence, known, written) if type(evidence.overlap) is Boxes else "",
        _repeats(result, evidence),
        mistake_in_scores(evidence.detections.scores),
    ]
    return [line for line in lines if line]


def _unseen(evidence: Evidence, splits: Mapping[str, set[int]]) -> str:
    """Images without any detection: those of other splits, or half of all that have objects."""
    seen = set(evidence.detections.images.tolist())
    said = f"{evidence.num_images - len(seen)} of {evidence.num_images} images have no detection"
    for name, images in sorted(splits.items(), key=lambda split: len(split[1])):
        if seen <= images and len(images) < evidence.num_images and 2 * len(seen) >= len(images):
            return (
                f"{said}; all detections are of split {name}, which has {len(images)} images: judge it alone with "
                f"--split {name}"
            )
    with_objects = set(evidence.objects.images.tolist())
    if len(with_objects - seen) < max(_LEAST_FOUND, len(with_objects) / 2):
        return ""
    return (
        f"{said}, and all objects there count as missed; if the detector has not run on these images, judge by annotations "
        "of the others alone"
    )


def _undone(result: EvaluationResult, evidence: Evidence, sizes: NDArray[np.float64], written: BoxOrder) -> str:
    """The usual mistake that lifts mAP far when it is undone."""
    at_half = replace(result.protocol, match_thresholds=(0.5,))
    now = result.map_at(0.5) if 0.5 in result.protocol.match_thresholds else _map(evidence, at_half)
    objects = sum(row.objects for row in result.classes)
    is_poor = now < _POOR and objects > _MANY_OBJECTS
    leaving = _share_leaving(evidence.detections, sizes)
    if leaving < _LEAVING and not is_poor:
        return ""
    where = f"; {leaving:.0%} of the boxes reach outside their images" if leaving >= _LEAVING else ""
    reading = best_reading(evidence, sizes, written)
    if reading is not None and reading.found >= _LEAST_FOUND:
        then = _map(replace(evidence, detections=reading.detections), at_half)
        if _is_lifted(now, then):
            return (
                f"mAP at IoU 0.5 is {per_cent(now)}{where}. It is {per_cent(then)} with the boxes {reading.how}: write "
                f"them as {_EXPECTED[written]}"
            )
    return _classes_undone(evidence, now, at_half) if is_poor else ""


_EXPECTED: dict[str, str] = {
    "xywh": "[x, y, width, height] in pixels of the image, x and y of the upper left corner",
    "xyxy": "[x1, y1, x2, y2] in pixels of the image",
    "cxcywh": f"{WORDS['cxcywh']} in shares of the image's width and height",
}
"""By the order of the numbers: what each source of detections should have."""


def _share_leaving(detections: Detections, sizes: NDArray[np.float64]) -> float:
    """Boxes that reach to the right of their images or below them."""
    return float((detections.boxes[:, 2:] > sizes[detections.images] + _SLACK).any(axis=1).mean())


def _map(evidence: Evidence, protocol: Protocol) -> float:
    return result_from(judge(evidence, protocol), evidence, protocol).map


def _is_lifted(now: float, then: float) -> bool:
    return then >= max(_LIFTED, _TIMES * now)


def _classes_undone(evidence: Evidence, now: float, protocol: Protocol) -> str:
    """All detections of one class, or classes in another order."""
    labels, names = evidence.detections.labels, evidence.class_names
    said = f"mAP at IoU 0.5 is {per_cent(now)}"
    if len(np.unique(labels)) == 1:
        objects = replace(evidence.objects, labels=np.full(len(evidence.objects), labels[0]))
        then = _map(replace(evidence, objects=objects), replace(protocol, absent_classes="skip"))
        several = len(np.unique(evidence.objects.labels)) > 1
        return (
            f"{said}. All detections are of class {names[labels[0]]!r}; if classes did not matter it would be "
            f"{per_cent(then)}: write the class of each detection"
            if several and _is_lifted(now, then)
            else ""
        )
    meant, how = _meant_classes(evidence)
    then = _map(replace(evidence, detections=replace(evidence.detections, labels=meant[labels])), protocol)
    return f"{said}. It is {per_cent(then)} {how}" if _is_lifted(now, then) else ""


def _meant_classes(evidence: Evidence) -> tuple[NDArray[np.int64], str]:
    """(K,) for each class the one that was meant, and in words: nearly all moved by the same number, or in another order."""
    labels, names, K = evidence.detections.labels, evidence.class_names, evidence.num_classes
    meant = _covered_most(evidence)
    moves, counts = np.unique((meant[labels] - labels) % K, return_counts=True)
    move = int(moves[counts.argmax()])
    if counts.max() >= _SAME_MOVE * len(labels):
        by = move if 2 * move <= K else move - K  # the last class comes before the first
        how = f"with every class moved by {by:+d}: compare the class names, and whether classes count from 0 or from 1"
        return (np.arange(K) + move) % K, how
    examples = [f"{names[c]!r} meant as {names[meant[c]]!r}" for c in np.unique(labels) if meant[c] != c]
    return meant, f"with classes in another order ({', '.join(examples[:3])}): compare the lists of class names"


def _covered_most(evidence: Evidence) -> NDArray[np.int64]:
    """(K,) for each class the one whose objects its detections cover most often; no two classes share one."""
    K = evidence.num_classes
    rows, objects = pairs_of_images(evidence)
    on_top = covers(evidence.detections.boxes[rows], evidence.objects.boxes[objects])
    places = evidence.detections.labels[rows[on_top]] * K + evidence.objects.labels[objects[on_top]]
    counts = np.bincount(places, minlength=K * K)
    meant = np.full(K, -1)
    free = np.ones(K, dtype=np.bool_)
    for place in np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)].tolist():
        label, other = divmod(place, K)
        if meant[label] < 0 and free[other]:
            meant[label], free[other] = other, False
    meant[meant < 0] = np.flatnonzero(free)
    return meant


def _repeats(result: EvaluationResult, evidence: Evidence) -> str:
    """Detections that are another one again."""
    detections = evidence.detections
    columns = np.column_stack([detections.images, detections.labels, detections.scores, detections.boxes])
    least = max(_LEAST_FOUND, _REPEATED * len(detections))
    keys = (columns * np.sqrt([2.0, 3.0, 5.0, 7.0, 11.0, 13.0, 17.0])).sum(
        axis=1
    )  # equal for equal rows, and quick to sort
    if len(detections) - len(np.unique(keys)) < least:
        return ""
    first = np.unique(columns, axis=0, return_index=True)[1]
    repeats = len(detections) - len(first)
    if repeats < least:
        return ""
    rows = np.sort(first)
    once = detections.take(rows, evidence.overlap)
    then = _map(replace(evidence, detections=once), result.protocol)
    return (
        f"{repeats} of {len(detections)} detections repeat another, with the same image, class, score and box: mAP is "
        f"{per_cent(result.map)}, without repeats {per_cent(then)}; most likely the file was written twice"
    )


def mistake_in_scores(scores: NDArray[np.float64]) -> str:
    """Scores that do not rank, or of which the low ones were left out, in words; empty if neither is likely."""
    low, high = float(scores.min()), float(scores.max())
    if len(scores) < _MANY:
        return ""
    if low == high:
        return (
            f"all {len(scores)} scores are {low:g}, so detections rank by their order in the file, which says nothing; "
            "save the confidences of the detector"
        )
    cut = np.floor(20.0 * low + 1e-6) / 20.0  # people choose multiples of 0.05
    if high > 1.0 or low < _LEAST_CUT or low - cut >= _NEAR:
        return ""
    return (
        f"scores begin at {cut:g}: mAP counts low scores too, and objects that only these find are missed here; run the "
        "detector with a threshold near 0 (YOLO: conf=0.001)"
    )
