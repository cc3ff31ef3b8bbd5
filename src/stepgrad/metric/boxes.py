"""Overlap of one box with many."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def overlaps_with(box: NDArray[np.float64], others: NDArray[np.float64], pixel_offset: float) -> NDArray[np.float64]:
    """IoU of one box with each of (G, 4), in the evaluator's own order of operations so that ties stay ties.

    >>> overlaps_with(np.array([0.0, 0.0, 2.0, 1.0]), np.array([[1.0, 0.0, 3.0, 1.0], [5.0, 5.0, 6.0, 6.0]]), 0.0)
    array([0.33333333, 0.        ])
    """
    width = np.maximum(np.minimum(box[2], others[:, 2]) - np.maximum(box[0], others[:, 0]) + pixel_offset, 0.0)
    height = np.maximum(np.minimum(box[3], others[:, 3]) - np.maximum(box[1], others[:, 1]) + pixel_offset, 0.0)
    inter: NDArray[np.float64] = width * height
    area = (box[2] - box[0] + pixel_offset) * (box[3] - box[1] + pixel_offset)
    own = (others[:, 2] - others[:, 0] + pixel_offset) * (others[:, 3] - others[:, 1] + pixel_offset)
    union = area + own - inter
    return np.divide(inter, union, out=np.zeros_like(inter), where=union > 0.0)  # two boxes without area share nothing
