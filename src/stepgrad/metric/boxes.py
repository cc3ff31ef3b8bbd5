"""Overlaps of boxes with boxes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def overlaps_with(box: NDArray[np.float64], others: NDArray[np.float64], pixel_offset: float) -> NDArray[np.float64]:
    """IoU of one box with each of (G, 4), in the evaluator's own order of operations so that ties stay ties.

    >>> overlaps_with(np.array([0.0, 0.0, 2.0, 1.0]), np.array([[1.0, 0.0, 3.0, 1.0], [5.0, 5.0, 6.0, 6.0]]), 0.0)
    array([0.33333333, 0.        ])
    """
    one = box[None]
    areas, other_areas = (areas_of(rows[:, 2:] - rows[:, :2], pixel_offset) for rows in (one, others))
    return overlap_table(one, areas, others, other_areas, np.zeros(len(others), dtype=np.bool_), pixel_offset)[0]


def areas_of(sizes: NDArray[np.float64], pixel_offset: float) -> NDArray[np.float64]:
    """Areas of boxes from width and height (N, 2).

    >>> areas_of(np.array([[2.0, 3.0]]), 1.0)
    array([12.])
    """
    area: NDArray[np.float64] = (sizes[:, 0] + pixel_offset) * (sizes[:, 1] + pixel_offset)
    return area


def overlap_table(
    boxes: NDArray[np.float64],
    areas: NDArray[np.float64],
    others: NDArray[np.float64],
    other_areas: NDArray[np.float64],
    crowd: NDArray[np.bool_],
    pixel_offset: float = 0.0,
) -> NDArray[np.float64]:
    """(M, G) IoU of (M, 4) with (G, 4), with the areas that are handed in; for a crowd the share of the box it covers.

    These are the operations of pycocotools (bbIou in maskApi.c) in their order, so that an overlap on a threshold falls
    on the same side of it: an overlap without width or height is 0, whatever the areas are.

    >>> box, crowd = np.array([[0.0, 0.0, 2.0, 2.0]]), np.array([False])
    >>> overlap_table(box, np.array([4.0]), box + np.array([1.0, 0.0, 1.0, 0.0]), np.array([4.0]), crowd)
    array([[0.33333333]])
    >>> overlap_table(box, np.array([4.0]), box + np.array([2.0, 0.0, 2.0, 0.0]), np.array([4.0]), crowd)  # they touch
    array([[0.]])
    """
    sides = [
        np.minimum(boxes[:, None, high], others[None, :, high]) - np.maximum(boxes[:, None, low], others[None, :, low])
        for low, high in ((0, 2), (1, 3))
    ]
    width, height = (np.maximum(side + pixel_offset, 0.0) for side in sides)
    inter: NDArray[np.float64] = width * height
    union = np.where(crowd[None, :], areas[:, None], areas[:, None] + other_areas[None, :] - inter)
    with np.errstate(divide="ignore"):  # where a written area is less than rounding, as pycocotools has it
        return np.divide(inter, union, out=np.zeros_like(inter), where=inter > 0.0)
