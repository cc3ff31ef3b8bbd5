"""Overlap of boxes (x1, y1, x2, y2), straight from the definition: intersection over union (IoU)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stepgrad.metric.protocol import Protocol

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
    return _share(inter, areas(a, pixel_offset)[:, None] + areas(b, pixel_offset)[None, :] - inter)


def _share(inter: Floats, whole: Floats) -> Floats:
    return np.where(inter > 0.0, inter / np.where(inter > 0.0, whole, 1.0), 0.0)


def coverage(detections: ArrayLike, crowds: ArrayLike, pixel_offset: float = 0.0) -> Floats:
    """COCO's overlap with a crowd: the share of the detection that lies inside it.

    >>> coverage([[0, 0, 2, 2]], [[1, 0, 9, 9]]).tolist()
    [[0.5]]
    """
    return _share(intersections(detections, crowds, pixel_offset), areas(detections, pixel_offset)[:, None])


def overlaps_of(windows: Floats, objects: Floats, crowd: NDArray[np.bool_], protocol: Protocol) -> Floats:
    """(N, G) overlaps of windows with objects in the protocol's arithmetic; that with a crowd is COCO's."""
    offset = protocol.pixel_offset
    if protocol.overlaps == "double":
        return np.where(crowd, coverage(windows, objects, offset), iou(windows, objects, offset))
    if protocol.overlaps == "single":
        inside = coverage(windows.astype(np.float32), objects.astype(np.float32), offset)
        return np.where(crowd, inside, single_iou(windows, objects, offset))
    (windows, window_areas), (objects, object_areas) = (by_single_sizes(b, offset) for b in (windows, objects))
    inter = intersections(windows, objects, offset)
    union = window_areas[:, None] + object_areas[None, :] - inter
    return _share(inter, np.where(crowd, window_areas[:, None], union))


def by_single_sizes(boxes: ArrayLike, pixel_offset: float = 0.0) -> tuple[Floats, Floats]:
    """Boxes made from x, y, width, height in float32, and their areas; right edges are x + width in float64."""
    corners = np.asarray(boxes, dtype=np.float32).reshape(-1, 4)
    start, sizes = corners[:, :2].astype(np.float64), (corners[:, 2:] - corners[:, :2]).astype(np.float64)
    return np.concatenate([start, start + sizes], axis=1), (sizes + pixel_offset).prod(axis=1)


def single_iou(a: ArrayLike, b: ArrayLike, pixel_offset: float = 0.0) -> Floats:
    """IoU with every operation in float32 and 1e-7 added to the union: (len(a), len(b)).

    >>> bool(single_iou([[0, 0, 10, 10]], [[0, 0, 10, 6]])[0, 0] > 0.6)
    True
    """
    one, offset = np.float32, np.float32(pixel_offset)
    table = np.zeros((len(np.asarray(a)), len(np.asarray(b))))
    for i, (p1, q1, p2, q2) in enumerate(np.asarray(a, dtype=np.float32)):
        for j, (x1, y1, x2, y2) in enumerate(np.asarray(b, dtype=np.float32)):
            width = max(min(p2, x2) - max(p1, x1) + offset, one(0.0))
            height = max(min(q2, y2) - max(q1, y1) + offset, one(0.0))
            sizes = (x2 - x1 + offset) * (y2 - y1 + offset), (p2 - p1 + offset) * (q2 - q1 + offset)
            table[i, j] = width * height / (sizes[0] + sizes[1] - width * height + one(1e-7))
    return table
