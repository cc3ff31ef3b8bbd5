"""Checks of the objects of one image against each other: repeated ones, boxes of two classes, boxes of a pixel."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from stepgrad.data.doctor.summary import ExaminedImage
from stepgrad.data.problems import Problem, repeats_text
from stepgrad.number_text import counted

CLOSE = 0.5
"""Pixels. Boxes whose corners are all this close, and that overlap well, are taken for two drawings of one object."""
OVERLAP = 0.8
"""IoU of such boxes at least: boxes a pixel or two wide can be close and yet of two objects."""
NEIGHBOURS = 100
"""Boxes compared with each, by the order of their left edges: bounds the time for files with many thousands of boxes."""
ONE_PIXEL = 1.0 + 1e-6
"""Pixels; rounding may make a side of one pixel a little longer."""


def examine_boxes(entry: ExaminedImage) -> Iterator[Problem]:
    """The problems of an image's objects, each kind once. Crowds are left out: one region is a crowd of every class."""
    boxes, labels = entry.objects.boxes, entry.objects.labels
    objects = np.flatnonzero(~entry.objects.crowd)
    yield from _thin(entry, objects)
    keys = {index: (int(labels[index]), *boxes[index].tolist()) for index in objects.tolist()}
    first: dict[tuple[float, ...], int] = {}
    for index, key in keys.items():
        first.setdefault(key, index)
    repeats = [(entry.numbers[index], entry.numbers[first[key]]) for index, key in keys.items() if first[key] != index]
    if repeats:
        fix = "delete the repeated ones, or the object counts as often as it is annotated"
        yield _warning(entry, repeats_text(entry.word, repeats), fix, "duplicate-object")
    pairs = _close_pairs(boxes, np.array(list(first.values()), dtype=np.int64))
    same = labels[pairs[:, 0]] == labels[pairs[:, 1]]
    yield from _pair_problem(entry, pairs[same], "nearly the same box", "delete one of the two", "near-duplicate")
    yield from _pair_problem(
        entry, pairs[~same], "the same box", "one box has two classes: keep the one that is right", "two-classes"
    )


def _thin(entry: ExaminedImage, objects: NDArray[np.int64]) -> Iterator[Problem]:
    sides = entry.objects.boxes[:, 2:] - entry.objects.boxes[:, :2]
    for index in objects[(sides[objects] <= ONE_PIXEL).any(axis=1)].tolist():
        width, height = sides[index].tolist()
        side, word = (width, "wide") if width <= height else (height, "high")
        size = "one pixel" if side > 0.995 else f"{side:.2f} pixels"
        fix = "kept unchanged; delete the object if that is a mistake"
        yield _warning(entry, f"{entry.place(index)}: the box is {size} {word}", fix, "box-one-pixel")


def _close_pairs(boxes: NDArray[np.float64], chosen: NDArray[np.int64]) -> NDArray[np.int64]:
    """(P, 2) pairs of chosen boxes whose corners are all close, in the order of their first box."""
    order = chosen[np.argsort(boxes[chosen, 0], kind="stable")]
    found = [np.zeros((0, 2), dtype=np.int64)]
    for step in range(1, min(len(order), NEIGHBOURS + 1)):
        left, right = order[:-step], order[step:]
        near = np.abs(boxes[right] - boxes[left]) <= CLOSE
        if not near[:, 0].any():
            break
        pairs = np.stack([left, right], axis=1)[near.all(axis=1)]
        found.append(pairs[_overlaps(boxes[pairs[:, 0]], boxes[pairs[:, 1]]) >= OVERLAP])
    pairs = np.sort(np.concatenate(found), axis=1)
    return pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]


def _overlaps(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """(P,) IoU of each pair of boxes."""
    common = np.clip(np.minimum(first, second)[:, 2:] - np.maximum(first, second)[:, :2], 0.0, None).prod(axis=1)
    areas = [(boxes[:, 2:] - boxes[:, :2]).prod(axis=1) for boxes in (first, second)]
    overlaps: NDArray[np.float64] = common / (areas[0] + areas[1] - common)
    return overlaps


def _pair_problem(entry: ExaminedImage, pairs: NDArray[np.int64], what: str, fix: str, kind: str) -> Iterator[Problem]:
    if len(pairs):
        first, second = pairs[0].tolist()
        more = f" (and {counted(len(pairs) - 1, 'more such pair')})" if len(pairs) > 1 else ""
        yield _warning(entry, f"{entry.place(second)} has {what} as {entry.place(first)}{more}", fix, kind)


def _warning(entry: ExaminedImage, what: str, fix: str, kind: str) -> Problem:
    return Problem(entry.source, what, fix, "warning", kind)
