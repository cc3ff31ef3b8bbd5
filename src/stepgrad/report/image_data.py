"""What the browser over all images is fed with: for each image its objects and its detections, judged."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from stepgrad.evaluation.errors_by_type import TYPES
from stepgrad.evaluation.records import Evidence
from stepgrad.report.findings import Findings, continuous_corners
from stepgrad.report.numbers import printable
from stepgrad.report.pictures import Photo, Size

MOST_BOXES = 60_000
"""Detections that a page holds, about 40 bytes each; of more, those with the highest scores."""


def image_data(findings: Findings, photos: Sequence[Photo]) -> dict[str, Any]:
    """The content of the page's data block; images.js says what it does with it."""
    hits, alarms = findings.counts(findings.right), findings.counts(findings.wrong)
    labels, classes = findings.evidence.detections.labels, findings.evidence.num_classes
    own = [np.bincount(labels[rows & findings.passing], minlength=classes) for rows in (findings.right, findings.wrong)]
    least = _least_level((hits + alarms).sum(axis=0))
    return {
        "classes": [printable(name) for name in findings.evidence.class_names],
        "types": TYPES,
        "scores": findings.values.tolist(),
        "thresholds": [cut.threshold for cut in findings.cuts],
        "own": np.stack(own, axis=1).tolist(),
        "level": findings.common_level(),
        "least": least,
        "objects": [row.objects for row in findings.result.classes],
        "hits": [_sparse(row) for row in hits],
        "alarms": [_sparse(row) for row in alarms],
        "images": _images(findings, photos, least),
    }


def as_script(data: Any) -> Markup:
    """Data as JSON inside a page: no name in it can end the block."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c"))


def _least_level(counts: NDArray[np.int64]) -> int:
    """The lowest level all of whose detections have room, from how many have each level as their highest."""
    room = np.cumsum(counts[::-1])[::-1] <= MOST_BOXES
    return int(np.argmax(room)) if room.any() else len(room) - 1


def _sparse(counts: NDArray[np.int64]) -> list[int]:
    """Level, count, level, count, ... of the levels that have any.

    >>> _sparse(np.array([0, 3, 0, 1]))
    [1, 3, 3, 1]
    """
    levels = np.flatnonzero(counts)
    return np.column_stack([levels, counts[levels]]).ravel().tolist()


def _images(findings: Findings, photos: Sequence[Photo], least: int) -> list[dict[str, Any]]:
    evidence, mistakes = findings.evidence, findings.mistakes
    images: list[dict[str, Any]] = [
        {"id": printable(str(image_id)), "objects": [], "found": []} for image_id in evidence.image_ids
    ]
    place = np.full(len(evidence.objects) + 1, -1, dtype=np.int64)  # of each object in its image; the last one: none
    corners = _drawn_corners(evidence, evidence.objects.boxes)
    for row in np.flatnonzero(findings.there).tolist():
        objects = images[int(evidence.objects.images[row])]["objects"]
        place[row] = len(objects)
        objects.append([int(evidence.objects.labels[row]), *corners[row]])
    found = evidence.detections
    corners = _drawn_corners(evidence, found.boxes)
    drawn = (findings.right | findings.wrong) & ((findings.levels >= least) | findings.passing)
    for row in by_score(findings, drawn):
        images[int(found.images[row])]["found"].append(
            [
                int(found.labels[row]),
                2 * int(findings.levels[row]) + int(findings.passing[row]),
                float(f"{found.scores[row]:.3g}"),
                *corners[row],
                int(mistakes.of_detections[row]),
                int(place[mistakes.touched[row]]),
            ]
        )
    for image, photo in zip(images, photos, strict=True):
        image["size"] = photo.size or _extent(image)
        image["src"] = photo.source
    return images


def by_score(findings: Findings, chosen: NDArray[np.bool_]) -> list[int]:
    """The rows of the chosen detections by decreasing score; equal ones as they rank in their class."""
    rows = np.flatnonzero(chosen)
    order = np.lexsort((findings.mistakes.places[rows], -findings.evidence.detections.scores[rows]))
    return rows[order].tolist()


def _drawn_corners(evidence: Evidence, boxes: NDArray[np.float64]) -> list[list[float]]:
    """Corners to draw at, to a tenth of a pixel."""
    return np.round(continuous_corners(evidence, boxes), 1).tolist()


def _extent(image: dict[str, Any]) -> Size:
    """A size that holds all boxes, for an image of which none is known."""
    boxes = [box[1:5] for box in image["objects"]] + [box[3:7] for box in image["found"]]
    width, height = (max(1, round(max((box[side] for box in boxes), default=1))) for side in (2, 3))
    return width, height
