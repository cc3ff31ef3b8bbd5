"""How alike a window and an object are, if boxes do not tell it: masks, poses, oriented boxes, distances. Not in the paper.

Each function compares one window with one object, straight from the definition. Matching and NMS take the numbers as they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

Point = tuple[Fraction, Fraction]


def mask_iou(window: ArrayLike, target: ArrayLike, crowd: bool = False) -> float:
    """Pixels in both masks over pixels in either; with a crowd over pixels of the window. 0 if none is shared.

    >>> mask_iou([[1, 1, 0]], [[0, 1, 1]]), mask_iou([[1, 1, 0]], [[0, 1, 1]], crowd=True)
    (0.3333333333333333, 0.5)
    """
    p, q = np.asarray(window, dtype=bool), np.asarray(target, dtype=bool)
    shared, whole = int((p & q).sum()), int(p.sum() if crowd else (p | q).sum())
    return shared / whole if shared else 0.0


def keypoint_similarity(
    window: ArrayLike, target: ArrayLike, area: float, sigmas: Sequence[float], box: Sequence[float]
) -> float:
    """COCO's OKS: the mean over the labelled keypoints (visibility above 0) of exp(-d^2 / (2 area (2 sigma)^2)).

    Where the object has none, distances are those to its box, doubled to every side (x1 y1 x2 y2).

    >>> keypoint_similarity([[0, 0], [3, 4]], [[0, 0, 2], [9, 9, 0]], 100.0, [0.1, 0.1], [0, 0, 9, 9])
    1.0
    """
    x1, y1, x2, y2 = box
    labelled = [v > 0 for _, _, v in np.asarray(target).tolist()]
    terms = []
    for (x, y, *_), (u, v, _), sigma, counts in zip(
        np.asarray(window).tolist(), np.asarray(target).tolist(), sigmas, labelled, strict=True
    ):
        if any(labelled) and not counts:
            continue
        dx, dy = x - u, y - v
        if not any(labelled):
            dx = max(0.0, (x1 - (x2 - x1)) - x) + max(0.0, x - (x1 + 2 * (x2 - x1)))
            dy = max(0.0, (y1 - (y2 - y1)) - y) + max(0.0, y - (y1 + 2 * (y2 - y1)))
        terms.append(math.exp(-(dx**2 + dy**2) / (2 * sigma) ** 2 / (area + math.ulp(1.0)) / 2))
    return math.fsum(terms) / len(terms)


def corners(box: Sequence[float]) -> list[Point]:
    """The corners of an oriented box (cx, cy, w, h, angle in radians), in turn, as fractions of rounded numbers."""
    cx, cy, w, h, angle = box
    cos, sin = math.cos(angle), math.sin(angle)
    sides = [(w / 2, h / 2), (-w / 2, h / 2), (-w / 2, -h / 2), (w / 2, -h / 2)]
    return [(Fraction(cx) + Fraction(x * cos - y * sin), Fraction(cy) + Fraction(x * sin + y * cos)) for x, y in sides]


def polygon_area(points: Sequence[Point]) -> Fraction:
    """The area of a polygon, by the shoelace formula; positive if its points turn from x to y."""
    following = [*points[1:], *points[:1]]
    return sum(((x * v - u * y) for (x, y), (u, v) in zip(points, following, strict=True)), Fraction(0)) / 2


def clipped(points: list[Point], others: list[Point]) -> list[Point]:
    """The part of a convex polygon inside another convex one: cut by one edge after the other."""
    for (x, y), (u, v) in zip(others, [*others[1:], *others[:1]], strict=True):
        side = [(u - x) * (q - y) - (v - y) * (p - x) for p, q in points]  # of the edge; >= 0 inside
        kept: list[Point] = []
        for i, (p, q) in enumerate(points):
            r, s = points[i - 1]
            if (side[i] >= 0) != (side[i - 1] >= 0):
                t = side[i - 1] / (side[i - 1] - side[i])
                kept.append((r + t * (p - r), s + t * (q - s)))
            if side[i] >= 0:
                kept.append((p, q))
        points = kept
    return points


def rotated_iou(window: Sequence[float], target: Sequence[float], crowd: bool = False) -> float:
    """IoU of two oriented boxes: their polygons clipped with each other in exact fractions.

    >>> rotated_iou([0, 0, 2, 2, 0], [1, 0, 2, 2, 0]), round(rotated_iou([0, 0, 2, 2, 0], [0, 0, 2, 2, math.pi / 4]), 6)
    (0.3333333333333333, 0.707107)
    """
    p, q = corners(window), corners(target)
    areas = polygon_area(p), polygon_area(q)
    shared = polygon_area(clipped(p, q)) if min(areas) > 0 else Fraction(0)
    return float(shared / (areas[0] if crowd else areas[0] + areas[1] - shared)) if shared > 0 else 0.0
