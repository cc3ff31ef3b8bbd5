"""Overlap of boxes (x1, y1, x2, y2), straight from the definition: intersection over union (IoU)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def areas(boxes: ArrayLike, pixel_offset: float = 0.0) -> Floats:
    """Width times height of each box.

    >>> areas([[0, 0, 2, 3]]), areas([[0, 0, 2, 3]], pixel_offset=1.0)
    (array([6.]), array([12.]))
    """
    x1, y1, x2, y2 = np.asarray(boxes, dtype=np.float64).reshape(-1, 4).T
    return (x2 - x1 + pixel_offset) * (y2 - y1 + pixel_offset)


def intersections(a: ArrayLike, b: ArrayLike, pixel_offset: float = 0.0) -> Floats:
    """Area shared by each box of `a` with each box of `b`, shape (len(a), len(b))."""
    p = np.asarray(a, dtype=np.float64).reshape(-1, 1, 4)
    q = np.asarray(b, dtype=np.float64).reshape(1, -1, 4)
    width = np.minimum(p[..., 2], q[..., 2]) - np.maximum(p[..., 0], q[..., 0]) + pixel_offset
    height = np.minimum(p[..., 3], q[..., 3]) - np.maximum(p[..., 1], q[..., 1]) + pixel_offset
    return np.maximum(width, 0.0) * np.maximum(height, 0.0)


def iou(a: ArrayLike, b: ArrayLike, pixel_offset: float = 0.0) -> Floats:
    """Intersection over union, (len(a), len(b)); 0 for boxes that share nothing, areas or none.

    >>> iou([[0, 0, 2, 2]], [[1, 0, 3, 2], [0, 0, 2, 2], [5, 5, 6, 6]]).tolist()
    [[0.3333333333333333, 1.0, 0.0]]
    >>> iou([[1, 1, 1, 2]], [[0, 0, 2, 2], [1, 1, 1, 2]]).tolist()
    [[0.0, 0.0]]
    """
    inter = intersections(a, b, pixel_offset)
    return share(inter, areas(a, pixel_offset)[:, None] + areas(b, pixel_offset)[None, :] - inter)


def share(inter: Floats, whole: Floats) -> Floats:
    """inter / whole; 0 where nothing is shared."""
    return np.where(inter > 0.0, inter / np.where(inter > 0.0, whole, 1.0), 0.0)


def coverage(detections: ArrayLike, crowds: ArrayLike, pixel_offset: float = 0.0) -> Floats:
    """COCO's overlap with a crowd: the share of the detection that lies inside it.

    >>> coverage([[0, 0, 2, 2]], [[1, 0, 9, 9]]).tolist()
    [[0.5]]
    """
    return share(intersections(detections, crowds, pixel_offset), areas(detections, pixel_offset)[:, None])
