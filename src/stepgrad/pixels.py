"""Boxes in VOC's pixels, which are numbered from 1 with both corners inside, and continuous ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def continuous_from_devkit(boxes: ArrayLike) -> NDArray[np.float64]:
    """Continuous x1 y1 x2 y2 from VOC's 1-based inclusive pixels: (xmin - 1, ymin - 1, xmax, ymax).

    >>> continuous_from_devkit([[1, 1, 10, 20]])    # the first ten columns, twenty rows
    array([[ 0.,  0., 10., 20.]])
    """
    return np.asarray(boxes, dtype=np.float64).reshape(-1, 4) - np.array([1.0, 1.0, 0.0, 0.0])


def devkit_from_continuous(boxes: ArrayLike) -> NDArray[np.float64]:
    """The inverse of `continuous_from_devkit`, exact for whole-pixel boxes.

    >>> devkit_from_continuous([[0, 0, 10, 20]])
    array([[ 1.,  1., 10., 20.]])
    """
    return np.asarray(boxes, dtype=np.float64).reshape(-1, 4) + np.array([1.0, 1.0, 0.0, 0.0])
