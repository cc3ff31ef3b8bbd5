"""What else is known of a drawn shape besides its box: four keypoints, and the smallest box at any angle."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepgrad.data.shapes.outlines import Mask

KEYPOINTS = ("top", "right", "bottom", "left")
"""The outermost points of the whole shape, whatever hides it; of several the middle one."""


def outermost_points(shape: Mask, left: int, top: int, seen: Mask) -> NDArray[np.float64]:
    """(4, 3) keypoints x, y and visibility (2: seen, 1: hidden) of a shape whose first pixel is (left, top) of the image.

    Args:
        shape: (h, w) its pixels.
        left: column of its first pixel.
        top: row of its first pixel.
        seen: (h, w) those that nothing hides.
    """
    points = []
    for name in KEYPOINTS:
        across = name in ("top", "bottom")
        lines = np.flatnonzero(shape.any(axis=1 if across else 0))
        line = lines[0] if name in ("top", "left") else lines[-1]
        along = np.flatnonzero(shape[line] if across else shape[:, line])
        middle = along[len(along) // 2]
        row, column = (line, middle) if across else (middle, line)
        points.append((left + column + 0.5, top + row + 0.5, 2.0 if seen[row, column] else 1.0))
    return np.array(points)


def smallest_box(mask: Mask, left: int, top: int) -> NDArray[np.float64]:
    """(5,) the box (cx, cy, w, h, angle) of least area around the pixels; one of its sides lies along their hull.

    The angle is in [0, pi / 2), in radians.

    >>> smallest_box(np.array([[True, True, True]]), 10, 20).round(3).tolist()
    [11.5, 20.5, 3.0, 1.0, 0.0]
    """
    rows = np.flatnonzero(mask.any(axis=1))
    first = mask[rows].argmax(axis=1)  # of a row only the outermost pixels can be on the hull
    end = mask.shape[1] - mask[rows, ::-1].argmax(axis=1)
    corners = np.concatenate([np.stack([x, rows + y], axis=1) for x in (first, end) for y in (0, 1)])
    hull = _hull(np.unique(corners, axis=0).astype(np.float64))
    edges = np.roll(hull, -1, axis=0) - hull
    angles = np.unique(np.round(np.arctan2(edges[:, 1], edges[:, 0]) % (np.pi / 2), 9) % (np.pi / 2))
    best = np.zeros(5)
    least = np.inf
    for angle in angles:
        cos, sin = np.cos(angle), np.sin(angle)
        turned = hull @ np.array([[cos, -sin], [sin, cos]])
        low, high = turned.min(axis=0), turned.max(axis=0)
        area = float((high - low).prod())
        if area < least - 1e-9:
            middle = np.array([[cos, -sin], [sin, cos]]) @ ((low + high) / 2)
            least = area
            best = np.array([middle[0] + left, middle[1] + top, *(high - low), angle])
    return best


def _hull(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """The corners of the convex hull of sorted points, in turn."""

    def half(ordered: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        chain: list[NDArray[np.float64]] = []
        for point in ordered:
            while len(chain) > 1:
                (ax, ay), (bx, by) = chain[-1] - chain[-2], point - chain[-1]
                if ax * by - ay * bx > 0:
                    break
                chain.pop()
            chain.append(point)
        return chain

    return np.array([*half(points)[:-1], *half(points[::-1])[:-1]])
