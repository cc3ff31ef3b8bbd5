"""What a picture shows of masks, poses and oriented boxes: the lines around them, and their points."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepgrad.evaluation.records import Detections, Evidence, GroundTruth
from stepgrad.extras import need
from stepgrad.overlaps.keypoints import Poses
from stepgrad.overlaps.masks import Runs, dense_of
from stepgrad.overlaps.rotated import corners_of

Points = NDArray[np.float64]  # (n, 2) x y
Lines = list[list[float]]
"""Of a mask or an oriented box, closed lines x1 y1 x2 y2 ..., where lines inside one another are holes; of a pose one list x1 y1
v1 x2 y2 v2 ...; of a box none."""

ABSENT, UNSURE, SEEN = 0, 1, 2
"""The third number of a drawn keypoint: not drawn; hidden, or found with a low confidence; to be seen."""
SKELETON = (
    *((15, 13), (13, 11), (16, 14), (14, 12), (11, 12), (5, 11), (6, 12)),  # legs and hips
    *((5, 6), (5, 7), (6, 8), (7, 9), (8, 10)),  # shoulders and arms
    *((1, 2), (0, 1), (0, 2), (1, 3), (2, 4), (3, 5), (4, 6)),  # the head
)
"""Which of COCO's 17 keypoints are joined by a line."""
MOST_POINTS = 120
"""Of the lines around one mask, so that a page of thousands of masks stays small."""
_LEAST, _FINEST = 0.5, 800
"""Lines may be off by half a pixel, and in large images by this part of the longer side."""
_UNSURE_BELOW = 0.5
"""Confidences of keypoints below which they are drawn as hidden ones are."""


def lines_of(evidence: Evidence, side: Detections | GroundTruth, row: int) -> Lines:
    """What is drawn of a detection or an object besides its box, in continuous pixels from 0."""
    shapes: Any = side.shapes
    if isinstance(shapes, Runs):
        return [np.round(ring, _decimals(shapes.sizes[row].max())).ravel().tolist() for ring in mask_rings(shapes, row)]
    if isinstance(shapes, Poses):
        return [_drawn_pose(shapes.points[row], isinstance(side, GroundTruth))]
    if shapes is None or evidence.overlap.drawn != "polygon":
        return []
    return [np.round(corners_of(shapes, [row])[0], 1).ravel().tolist()]


def skeleton_of(evidence: Evidence) -> list[tuple[int, int]]:
    """Pairs of keypoints that are joined by a line; none unless they are COCO's 17."""
    shapes = evidence.objects.shapes
    return list(SKELETON) if isinstance(shapes, Poses) and shapes.points.shape[1] == 17 else []


def mask_rings(runs: Runs, row: int) -> list[Points]:
    """Closed lines around the pixels of a mask and around its holes, as coarse as a viewer cannot see."""
    need("contourpy", purpose="drawing masks")
    from contourpy import contour_generator

    x1, y1, x2, y2 = runs.boxes[row].astype(int).tolist()
    if x1 == x2:
        return []
    pixels = np.pad(dense_of(runs, row)[y1:y2, x1:x2], 1).astype(np.float64)
    # The line of 0.5 runs half-way between centres of pixels: along their edges, where centres are at 0.5.
    found: Any = contour_generator(z=pixels).lines(0.5)
    corner = np.array([x1 - 0.5, y1 - 0.5])
    rings = [np.asarray(ring, dtype=np.float64)[:-1] + corner for ring in found]
    tolerance = max(_LEAST, float(runs.sizes[row].max()) / _FINEST)
    coarse = [simplified(ring, tolerance) for ring in rings]
    while sum(map(len, coarse)) > MOST_POINTS:
        tolerance *= 2
        coarse = [ring for ring in (simplified(ring, tolerance) for ring in rings) if len(ring) > 2]
        if not coarse:  # specks all over: the box around them is left
            return [np.array([[x1, y1], [x2, y1], [x2, y2], [x1, y2]], dtype=np.float64)]
    return coarse


def simplified(ring: Points, tolerance: float) -> Points:
    """A closed line with as few of its points as stay within this distance of it (Douglas and Peucker 1973).

    >>> simplified(np.array([[0.0, 0], [1, 0.1], [2, 0], [2, 2], [0, 2]]), 0.2).tolist()
    [[0.0, 0.0], [2.0, 0.0], [2.0, 2.0], [0.0, 2.0]]
    """
    x, y = np.concatenate([ring, ring[:1]]).T.copy()
    # Two points are certain to stay: the first, and the farthest from it.
    far = int(np.argmax((x - x[0]) ** 2 + (y - y[0]) ** 2))
    keep = {0, far}
    parts = [(0, far), (far, len(ring))]
    while parts:
        begin, end = parts.pop()
        if end - begin < 2:
            continue
        dx, dy = float(x[end] - x[begin]), float(y[end] - y[begin])
        # Twice the areas of triangles over the line from begin to end: its length times the distances of the points.
        apart = np.abs((x[begin + 1 : end] - x[begin]) * dy - (y[begin + 1 : end] - y[begin]) * dx)
        worst = int(apart.argmax())
        if apart[worst] > tolerance * math.hypot(dx, dy):
            middle = begin + 1 + worst
            keep.add(middle)
            parts += [(begin, middle), (middle, end)]
    return ring[sorted(keep)]


def _decimals(longer: int) -> int:
    """Of coordinates: so many that lines look smooth where the image fills a screen."""
    return 0 if longer >= _FINEST else 1


def _drawn_pose(points: NDArray[np.float64], labelled: bool) -> list[float]:
    """Keypoints as x, y and one of ABSENT, UNSURE, SEEN. The third number of a label is COCO's visibility, that of a detection
    its confidence, if it has one."""
    given = points[:, 2]
    sure = given > 1 if labelled else given >= _UNSURE_BELOW
    state = np.where(given <= 0, ABSENT, np.where(sure, SEEN, UNSURE))
    if labelled and given.max(initial=0.0) <= 1:  # labels that tell no hidden points from others
        state = np.where(given <= 0, ABSENT, SEEN)
    return np.column_stack([np.round(points[:, :2], 1), state]).ravel().tolist()
