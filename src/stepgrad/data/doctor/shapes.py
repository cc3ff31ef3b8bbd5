"""Checks of masks, keypoints and oriented boxes: against their image, against their box, and of outlines in themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepgrad.data.doctor.summary import ExaminedImage
from stepgrad.data.problems import Problem
from stepgrad.errors import InputError
from stepgrad.number_text import counted
from stepgrad.overlaps.masks import Masks

SLACK = 1.0
"""Pixels that a point may lie beyond an edge without a word: rounding."""
MISFIT = 2.0, 0.05
"""Pixels, and share of the box's side, by which a mask may miss an edge of its box."""
BEYOND = 0.1
"""Share of the longer side of a box by which keypoints may lie outside it: annotators draw boxes around what they see."""
MOST_POINTS = 2000
"""Points of a polygon whose edges are compared with each other; the time grows with their square."""
_FIXES = {
    "polygon-outside": "cut it at the edges; did it belong to another size of the image?",
    "polygon-crossing": "draw its outline again, without edges that cross: tools disagree about what is inside",
    "mask-empty": "nothing can find it; draw it again, or delete the object",
    "mask-box": "compute the box from the mask, or correct the one that is wrong",
    "keypoint-outside": "mark keypoints that are not in the image as not labelled (0)",
    "keypoint-box": "check that keypoints and box are of the same object",
    "shape": "correct or delete it",
}
"""By kind, the way out."""
Found = dict[str, list[str]]


def examine_shapes(entry: ExaminedImage, size: tuple[int, int] | None) -> Iterator[Problem]:
    """The problems of an image's shapes, each kind once with the first object that has it."""
    found: Found = {}
    for index, shapes in enumerate(entry.shapes):
        for kind, what in _defects(shapes, entry.objects.boxes[index], size):
            found.setdefault(kind, []).append(f"{entry.place(index)}: {what}")
    for kind, lines in found.items():
        more = f" (and {counted(len(lines) - 1, 'more object')})" if len(lines) > 1 else ""
        yield Problem(entry.source, f"{lines[0]}{more}", _FIXES[kind], "warning", kind)


def _defects(
    shapes: Mapping[str, Any], box: NDArray[np.float64], size: tuple[int, int] | None
) -> Iterator[tuple[str, str]]:
    """Kind and words of everything that is wrong with the shapes of one object."""
    if "masks" in shapes:
        yield from _mask_defects(shapes["masks"], box)
        for polygon in shapes["masks"].get("polygons", ()):
            yield from _outline_defects(np.array(polygon, dtype=np.float64).reshape(-1, 2), size)
    if "oriented" in shapes:
        yield from _outline_defects(shapes["oriented"].reshape(4, 2), size)
    if "keypoints" in shapes:
        yield from _pose_defects(shapes["keypoints"], box, size)


def _mask_defects(mask: Mapping[str, Any], box: NDArray[np.float64]) -> Iterator[tuple[str, str]]:
    try:
        runs = Masks().windows([mask], "the mask")
    except InputError as error:
        yield "shape", str(error).removeprefix("the mask: mask 0: ")
        return
    if runs.counts[0] == 0:
        yield "mask-empty", "the mask has no pixel"
        return
    sides = np.tile(box[2:] - box[:2], 2)
    apart = np.abs(runs.boxes[0] - box)
    if (apart > MISFIT[0] + MISFIT[1] * sides).any():
        around = " ".join(f"{value:g}" for value in runs.boxes[0])
        yield "mask-box", f"the mask reaches from {around} but the box is {' '.join(f'{v:g}' for v in box)}"


def _outline_defects(points: NDArray[np.float64], size: tuple[int, int] | None) -> Iterator[tuple[str, str]]:
    if size is not None and _outside(points, np.zeros(2), np.array(size), SLACK).any():
        far = points[np.argmax(np.maximum(-points, points - np.array(size)).max(axis=1))]
        yield "polygon-outside", f"a point {far[0]:g}, {far[1]:g} lies outside the {size[0]} x {size[1]} image"
    if len(points) <= MOST_POINTS and crosses_itself(points):
        yield "polygon-crossing", "edges of the outline cross"


def _pose_defects(
    points: NDArray[np.float64], box: NDArray[np.float64], size: tuple[int, int] | None
) -> Iterator[tuple[str, str]]:
    labelled = points[:, 2] > 0
    if size is not None:
        beyond = labelled & _outside(points[:, :2], np.zeros(2), np.array(size), SLACK)
        if beyond.any():
            yield "keypoint-outside", f"{_keypoint(points, beyond)} outside the {size[0]} x {size[1]} image"
    beyond = labelled & _outside(points[:, :2], box[:2], box[2:], SLACK + BEYOND * float((box[2:] - box[:2]).max()))
    if beyond.any():
        yield "keypoint-box", f"{_keypoint(points, beyond)} outside the box {' '.join(f'{v:g}' for v in box)}"


def _keypoint(points: NDArray[np.float64], beyond: NDArray[np.bool_]) -> str:
    first = int(np.argmax(beyond))
    return f"keypoint {first} at {points[first, 0]:g}, {points[first, 1]:g} lies"


def _outside(
    points: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[Any], slack: float
) -> NDArray[np.bool_]:
    return np.asarray(((points < low - slack) | (points > high + slack)).any(axis=1))


def crosses_itself(points: NDArray[np.float64]) -> bool:
    """Whether two edges of a polygon cross in a point inside both; edges that touch do not.

    >>> crosses_itself(np.array([[0.0, 0], [2, 2], [2, 0], [0, 2]])), crosses_itself(np.array([[0.0, 0], [2, 0], [2, 2], [0, 2]]))
    (True, False)
    """
    begin, end = points, np.roll(points, -1, axis=0)
    # (n, n) on which side of the line through edge i the ends of edge j lie
    first, second = (_side(begin[:, None], end[:, None], point[None]) for point in (begin, end))
    apart = first * second < 0.0
    return bool((apart & apart.T).any())


def _side(a: NDArray[np.float64], b: NDArray[np.float64], c: NDArray[np.float64]) -> NDArray[np.float64]:
    """The sign of the turn from a to b to c."""
    turn = (b[..., 0] - a[..., 0]) * (c[..., 1] - a[..., 1]) - (b[..., 1] - a[..., 1]) * (c[..., 0] - a[..., 0])
    return np.sign(turn)
