"""What the browser over all images is fed with: for each image its objects and its detections, judged."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from stepgrad.evaluation.errors_by_type import LEFT_OUT, TYPES
from stepgrad.evaluation.records import Evidence
from stepgrad.report.diagnosis import Findings
from stepgrad.report.pictures import Photo
from stepgrad.report.svg import printable

MOST_BOXES = 60_000
"""Detections that a page holds, about 40 bytes each; of more, those with the highest scores."""
Size = tuple[int, int]


def image_data(findings: Findings, photos: Sequence[Photo | None]) -> dict[str, Any]:
    """The content of the page's data block; images.js says what it does with it."""
    evidence, graded = findings.evidence, findings.graded
    least = _least_level(findings)
    return {
        "classes": [printable(name) for name in evidence.class_names],
        "types": TYPES,
        "scores": graded.values.tolist(),
        "thresholds": [cut.threshold for cut in graded.cuts],
        "own": [*zip(graded.own_hits.tolist(), graded.own_alarms.tolist(), strict=True)],
        "level": graded.best_level(),
        "least": least,
        "objects": graded.objects.tolist(),
        "hits": [_sparse(row) for row in graded.hits],
        "alarms": [_sparse(row) for row in graded.alarms],
        "images": _images(findings, photos, least),
    }


def as_script(data: Any) -> Markup:
    """Data as JSON inside a page: no name in it can end the block."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c"))


def _least_level(findings: Findings) -> int:
    """The lowest level all of whose detections have room."""
    counted = findings.graded.levels[findings.mistakes.of_detections != LEFT_OUT]
    reaching = np.cumsum(np.bincount(counted, minlength=len(findings.graded.values))[::-1])[::-1]
    return int(np.argmax(reaching <= MOST_BOXES)) if (reaching <= MOST_BOXES).any() else len(reaching) - 1


def _sparse(counts: NDArray[np.int64]) -> list[int]:
    """Level, count, level, count, ... of the levels that have any.

    >>> _sparse(np.array([0, 3, 0, 1]))
    [1, 3, 3, 1]
    """
    levels = np.flatnonzero(counts)
    return [int(value) for level in levels for value in (level, counts[level])]


def _images(findings: Findings, photos: Sequence[Photo | None], least: int) -> list[dict[str, Any]]:
    evidence, mistakes, graded = findings.evidence, findings.mistakes, findings.graded
    images: list[dict[str, Any]] = [
        {"id": printable(str(image_id)), "objects": [], "found": []} for image_id in evidence.image_ids
    ]
    place = np.full(len(evidence.objects) + 1, -1, dtype=np.int64)  # of each object in its image; the last one: none
    corners = drawn_corners(evidence, evidence.objects.boxes)
    for row in np.flatnonzero(mistakes.of_objects != LEFT_OUT).tolist():
        objects = images[int(evidence.objects.images[row])]["objects"]
        place[row] = len(objects)
        objects.append([int(evidence.objects.labels[row]), *corners[row]])
    found = evidence.detections
    corners = drawn_corners(evidence, found.boxes)
    kept = np.flatnonzero((mistakes.of_detections != LEFT_OUT) & ((graded.levels >= least) | graded.passing))
    for row in kept[np.lexsort((mistakes.places[kept], -found.scores[kept]))].tolist():
        images[int(found.images[row])]["found"].append(
            [
                int(found.labels[row]),
                2 * int(graded.levels[row]) + int(graded.passing[row]),
                float(f"{found.scores[row]:.3g}"),
                *corners[row],
                int(mistakes.of_detections[row]),
                int(place[mistakes.touched[row]]),
            ]
        )
    for image, photo in zip(images, photos, strict=True):
        image["size"] = photo.size if photo else _extent(image)
        image["src"] = photo.source if photo else None
    return images


def drawn_corners(evidence: Evidence, boxes: NDArray[np.float64]) -> list[list[float]]:
    """Corners to draw at, to a tenth of a pixel."""
    return [[float(value) for value in row] for row in np.round(continuous_corners(evidence, boxes), 1)]


def continuous_corners(evidence: Evidence, boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Corners in continuous pixels from 0. Inclusive pixels count from 1."""
    return boxes - np.array([1.0, 1.0, 0.0, 0.0]) * (evidence.pixel_offset or 0.0)


def _extent(image: dict[str, Any]) -> Size:
    """A size that holds all boxes, for an image whose picture is not at hand."""
    boxes = [box[1:5] for box in image["objects"]] + [box[3:7] for box in image["found"]]
    return tuple(max(1, round(max((box[side] for box in boxes), default=1))) for side in (2, 3))  # type: ignore[return-value]
