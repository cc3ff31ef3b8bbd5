"""What is a box, and overlaps of boxes with boxes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepgrad.errors import InputError

CORNERS = "corners (x1, y1, x2, y2) with x2 >= x1 and y2 >= y1"
CONVERT = "boxes with a width and a height, or a centre, need torchvision.ops.box_convert first"
MEASURABLE = "boxes whose areas double precision can hold"
LARGEST_AREA = float(np.finfo(np.float64).max) / 4
"""A union is less than the sum of two areas; larger ones would overflow, and every overlap be 0."""


def check_box_format(boxes: object, where: str) -> None:
    """Raise if a tensor that knows its format, as torchvision's tv_tensors.BoundingBoxes do, has another than corners."""
    known = getattr(boxes, "format", None)
    name = str(getattr(known, "name", known)).upper()
    if known is not None and name != "XYXY":
        raise InputError(
            f"{where} as corners (x1, y1, x2, y2) but got BoundingBoxes of format {name}; convert them with "
            "torchvision.transforms.v2.functional.convert_bounding_box_format(boxes, new_format='XYXY')."
        )


def inside_out(boxes: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which boxes (..., 4) have a right edge left of the left one, or a lower above the upper: no box, at any scale.

    >>> inside_out(np.array([[0.0, 0.0, 5.0, 0.0], [3.0, 0.0, 2.0, 4.0]]))    # one without area, one impossible
    array([False,  True])
    """
    backwards: NDArray[np.bool_] = (boxes[..., 2] < boxes[..., 0]) | (boxes[..., 3] < boxes[..., 1])
    return backwards


def sizes_of(boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Width and height (..., 2) of boxes (..., 4), infinite where they overflow."""
    with np.errstate(over="ignore", invalid="ignore"):  # boxes may come before they are checked
        sizes: NDArray[np.float64] = boxes[..., 2:] - boxes[..., :2]
    return sizes


def unmeasurable(sizes: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which boxes of width and height (..., 2) have an area too large for a union, or one above 0 that is rounded to 0.

    Their overlaps would come out as 0, even with themselves. No width or no height is no such case: that area is 0.

    >>> unmeasurable(np.array([[1e154, 1e155], [1e-170, 1e-170], [0.0, 5.0], [1e-170, 5.0]]))
    array([ True,  True, False, False])
    """
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        areas = sizes[..., 0] * sizes[..., 1]
    if areas.size == 0 or (areas.min() > 0.0 and areas.max() <= LARGEST_AREA):  # nearly always: saves time
        return np.zeros(areas.shape, dtype=np.bool_)
    too_small = (areas == 0.0) & (sizes != 0.0).all(axis=-1)
    return ~(np.abs(areas) <= LARGEST_AREA) | too_small


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
