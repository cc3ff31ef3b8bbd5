"""Cheap class-agnostic windows for the built-in set: no image is looked at, nothing is installed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepgrad.data.shapes.draws import Draws

JITTERS = 10
"""Windows around each thing in the picture, objects and decoys alike, so that their number gives nothing away."""
EMPTY_SPOTS = 4
GRID = ((20, 20), (40, 20), (64, 32), (96, 32))
"""Side and stride of the sliding windows, at 160 pixels."""
MIN_SIDE = 6.0


def draw_windows(
    draws: Draws, size: int, boxes: NDArray[np.float64], decoys: NDArray[np.float64]
) -> NDArray[np.float64]:
    """(N, 4) windows: a grid, and jittered ones around objects, look-alikes and places where there is nothing."""
    things = np.concatenate([boxes, decoys, _spots(draws, size)])
    sides = np.tile(things[:, 2:] - things[:, :2], 2)  # (things, 4): the side each coordinate moves along
    shifts = (draws.units(JITTERS, len(things), 4) - 0.5) * 0.6
    around = (things + shifts * sides).reshape(-1, 4)
    windows = np.clip(np.rint(np.concatenate([_grid(size), around])).astype(np.int64), 0, size)  # no -0.0
    big_enough = (windows[:, 2:] - windows[:, :2]).min(axis=1) >= MIN_SIDE
    return np.unique(windows[big_enough], axis=0).astype(np.float64)  # sorted, each once


def _spots(draws: Draws, size: int) -> NDArray[np.float64]:
    """(EMPTY_SPOTS, 4) boxes of any size anywhere."""
    units = draws.units(EMPTY_SPOTS, 4)
    sides = (0.08 + 0.4 * units[:, :2] * units[:, :2]) * size
    corners = units[:, 2:] * (size - sides)
    return np.concatenate([corners, corners + sides], axis=1)


def _grid(size: int) -> NDArray[np.float64]:
    windows = []
    for side, stride in GRID:
        side, stride = side * size // 160, max(1, stride * size // 160)
        starts = range(0, size - side + 1, stride)
        windows += [(x, y, x + side, y + side) for y in starts for x in starts]
    return np.array(windows, dtype=np.float64)
