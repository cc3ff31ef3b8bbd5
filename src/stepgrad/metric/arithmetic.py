"""The numbers that overlaps are made of: some tools work in single precision, which moves overlaps over thresholds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepgrad.metric.boxes import areas_of
from stepgrad.metric.protocol import Protocol

_OF_CORNERS = np.zeros(0)  # no areas of their own: those that follow from the corners


def measured(
    boxes: NDArray[np.float64], areas: NDArray[np.float64], protocol: Protocol
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Boxes (N, 4) and their areas as the protocol's arithmetic has them; no areas stand for those of the corners."""
    if protocol.overlaps == "double":
        return boxes, areas
    single = boxes.astype(np.float32)
    if protocol.overlaps == "single":
        return single.astype(np.float64), _OF_CORNERS
    # x, y, width, height in float32; whoever reads them adds x and width in float64
    start = single[:, :2].astype(np.float64)
    sizes = (single[:, 2:] - single[:, :2]).astype(np.float64)
    return np.concatenate([start, start + sizes], axis=1), areas_of(sizes, protocol.pixel_offset)


def rounding_of(protocol: Protocol) -> float:
    """By what share an overlap in the protocol's arithmetic may exceed that of the same boxes in float64.

    Six operations in float32, each off by at most 2^-24, of which the sum of the areas can weigh four times: the union is
    at least a quarter of what is added and subtracted to make it. What is added to the union only lowers the overlap.
    """
    return 1e-9 if protocol.overlaps == "double" else 1e-5


def single_overlaps(
    boxes: NDArray[np.float64], others: NDArray[np.float64], pixel_offset: float = 0.0
) -> NDArray[np.float64]:
    """(N,) IoU of each box with the one beside it, every operation in float32, with 1e-7 added to the union.

    >>> iou = single_overlaps(np.array([[0.0, 0.0, 10.0, 10.0]]), np.array([[0.0, 0.0, 10.0, 6.0]]))
    >>> bool(iou[0] > 0.6), bool(iou[0] == np.float32(0.6))
    (True, True)
    """
    p, q = boxes.astype(np.float32), others.astype(np.float32)
    offset, nothing = np.float32(pixel_offset), np.float32(0.0)
    shared = np.maximum(np.minimum(p[:, 2:], q[:, 2:]) - np.maximum(p[:, :2], q[:, :2]) + offset, nothing)
    inter = shared[:, 0] * shared[:, 1]
    # The objects' areas come first, as in ultralytics: float32 sums of two do not depend on it, those of three would.
    areas = [(b[:, 2] - b[:, 0] + offset) * (b[:, 3] - b[:, 1] + offset) for b in (q, p)]
    iou: NDArray[np.float32] = inter / (areas[0] + areas[1] - inter + np.float32(1e-7))
    return iou.astype(np.float64)
