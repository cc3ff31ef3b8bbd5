"""How other tools compute the same things in floating point: overlaps, recall levels, and the end of the curve.

Nothing of this is in the paper. A reader who follows it can pass this file over: with the protocols "voc07", "voc12" and "coco"
overlaps are IoU in double precision, and recall levels are fractions.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stepgrad.metric.protocol import Protocol
from stepgrad.reference.boxes import Floats, coverage, intersections, iou, share


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
    return share(inter, np.where(crowd, window_areas[:, None], union))


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


def recall_level(q: int, last: int, protocol: Protocol) -> Fraction | float:
    """Recall level q of 0..last: the fraction, or what a tool makes of it in floating point."""
    if protocol.recall_grid == "exact":
        return Fraction(q, last)
    if protocol.recall_grid == "float":  # the product q * (1 / last), of which some are a little too high
        return 1.0 if q == last else q * (1.0 / last)
    # torch counts the lower half up from 0 and the upper half down from 1 in steps of float32, and rounds each to float32
    step = Fraction(float(np.float32(1.0) / np.float32(last)))
    return float(np.float32(float(q * step if 2 * q < last else 1 - (last - q) * step)))


def tail(T: int, detections: int, P: int, protocol: Protocol) -> float:
    """What a line from the last point of the curve, (T / P, T / detections), to (1, 0) adds to AP.

    >>> from dataclasses import replace
    >>> from stepgrad.metric.protocol import ULTRALYTICS_OLD
    >>> tail(1, 2, 2, replace(ULTRALYTICS_OLD, recall_levels=5))
    0.1875
    """
    if protocol.tail == "zero" or protocol.recall_levels is None or T == 0 or T == P:
        return 0.0
    last, strictly, terms = protocol.recall_levels - 1, protocol.interpolation == "passed", []
    for q in range(last + 1):
        level = recall_level(q, last, protocol)
        recall = Fraction(T, P) if protocol.recall_grid == "exact" else T / P
        if level > recall or (level == recall and strictly):
            weight = 2 if protocol.integral == "trapezoid" and 0 < q < last else 1
            terms.append(weight * (T / detections) * (1.0 - float(level)) / (1.0 - T / P))
    return math.fsum(terms) / (2 * last if protocol.integral == "trapezoid" else protocol.recall_levels)
