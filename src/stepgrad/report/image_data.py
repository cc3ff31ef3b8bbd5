"""What the browser over all images is fed with: for each image its objects and its detections, judged."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from stepgrad.evaluation.errors_by_type import TYPES
from stepgrad.evaluation.outlines import lines_of, skeleton_of
from stepgrad.evaluation.records import Evidence
from stepgrad.report.findings import Findings
from stepgrad.report.numbers import printable
from stepgrad.report.pictures import Photo, Size
from stepgrad.report.places import LANE, WIDTH, drawn_boxes

MOST_BOXES = 60_000
"""Detections that a page holds, about 40 bytes each; of more, those with the highest scores."""
MOST_NUMBERS = 2_000_000
"""Coordinates of masks, poses and oriented boxes that a page holds, about 5 bytes each; images for which nothing is left show
boxes."""


def image_data(findings: Findings, photos: Sequence[Photo]) -> dict[str, Any]:
    """The content of the page's data block; images.js says what it does with it."""
    hits, alarms = findings.counts(findings.right), findings.counts(findings.wrong)
    labels, classes = findings.evidence.detections.labels, findings.evidence.num_classes
    own = [np.bincount(labels[rows & findings.passing], minlength=classes) for rows in (findings.right, findings.wrong)]
    least = _least_level((hits + alarms).sum(axis=0))
    images, outlined = _images(findings, photos, least)
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
        "drawn": findings.evidence.overlap.drawn,
        "nouns": findings.evidence.overlap.nouns,
        "skeleton": skeleton_of(findings.evidence),
        "outlined": outlined,
        "images": images,
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


def _images(findings: Findings, photos: Sequence[Photo], least: int) -> tuple[list[dict[str, Any]], int]:
    """The images, and how many of them, from the first on, have all lines of their shapes."""
    evidence, mistakes = findings.evidence, findings.mistakes
    images: list[dict[str, Any]] = [
        {"id": printable(str(image_id)), "objects": [], "found": []} for image_id in evidence.image_ids
    ]
    place = np.full(len(evidence.objects) + 1, -1, dtype=np.int64)  # of each object in its image; the last one: none
    corners, found_corners = (np.round(boxes, 1).tolist() for boxes in drawn_boxes(evidence))
    there = np.flatnonzero(findings.there).tolist()
    for row in there:
        objects = images[int(evidence.objects.images[row])]["objects"]
        place[row] = len(objects)
        objects.append([int(evidence.objects.labels[row]), *corners[row]])
    found = evidence.detections
    drawn = (findings.right | findings.wrong) & ((findings.levels >= least) | findings.passing)
    ranked = by_score(findings, drawn)
    for row in ranked:
        images[int(found.images[row])]["found"].append(
            [
                int(found.labels[row]),
                2 * int(findings.levels[row]) + int(findings.passing[row]),
                float(f"{found.scores[row]:.3g}"),
                *found_corners[row],
                int(mistakes.of_detections[row]),
                int(place[mistakes.touched[row]]),
            ]
        )
    for image, photo in zip(images, photos, strict=True):
        image["size"] = photo.size or _extent(image, evidence.overlap.drawn == "bar")
        image["src"] = photo.source
    return images, _add_lines(evidence, images, there, ranked)


def _add_lines(evidence: Evidence, images: list[dict[str, Any]], there: list[int], ranked: list[int]) -> int:
    """Put what is drawn of each shape at the end of its entry, image by image while there is room; gives the number of images
    that have it."""
    if not evidence.has_shapes:
        return len(images)
    rows: list[list[tuple[Any, int]]] = [[] for _ in images]
    for side, chosen in ((evidence.objects, there), (evidence.detections, ranked)):
        for row in chosen:
            rows[int(side.images[row])].append((side, row))
    room = MOST_NUMBERS
    for place, image in enumerate(images):
        lines = [lines_of(evidence, side, row) for side, row in rows[place]]
        room -= sum(len(line) for shape in lines for line in shape)
        if room < 0:
            return place
        for entry, shape in zip([*image["objects"], *image["found"]], lines, strict=True):
            entry.append(shape)
    return len(images)


def by_score(findings: Findings, chosen: NDArray[np.bool_]) -> list[int]:
    """The rows of the chosen detections by decreasing score; equal ones as they rank in their class."""
    rows = np.flatnonzero(chosen)
    order = np.lexsort((findings.mistakes.places[rows], -findings.evidence.detections.scores[rows]))
    return rows[order].tolist()


def _extent(image: dict[str, Any], bars: bool) -> Size:
    """A size that holds all boxes, for an image of which none is known; of bars along time, all lanes."""
    boxes = [box[1:5] for box in image["objects"]] + [box[3:7] for box in image["found"]]
    width, height = (max(1, round(max((box[side] for box in boxes), default=1))) for side in (2, 3))
    return (round(WIDTH), math.ceil(height / LANE) * round(LANE)) if bars else (width, height)
