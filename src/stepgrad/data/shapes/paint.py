"""Putting one textured shape on a canvas, and the textures themselves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepgrad.data.shapes.draws import Draws
from stepgrad.data.shapes.outlines import Coordinates, Mask, Outline

Canvas = NDArray[np.int32]
TEXTURES = ("plain", "stripes", "checks", "shaded", "cloudy")


@dataclass(frozen=True)
class Placed:
    """The pixels one shape covers: a mask over a rectangle of the canvas."""

    rows: slice
    columns: slice
    mask: Mask
    u: Coordinates
    v: Coordinates

    @property
    def pixels(self) -> int:
        return int(np.count_nonzero(self.mask))


@dataclass(frozen=True)
class Pose:
    """Where a shape is and how it is turned and squeezed."""

    x: float
    y: float
    radius: float
    cosine: float
    sine: float
    squeeze: float


def draw_pose(draws: Draws, size: int, radius: float, margin: float) -> Pose:
    """Anywhere, with up to `1 - margin` of the radius beyond the edges."""
    low = min(radius * margin, size / 2)
    x, y = draws.uniform(low, size - low), draws.uniform(low, size - low)
    cosine, sine = draws.direction()
    return Pose(x, y, radius, cosine, sine, draws.uniform(0.8, 1.25))


def place(outline: Outline, pose: Pose, size: int) -> Placed:
    """The pixels whose centres lie inside the outline."""
    reach = pose.radius * 1.8  # the corner of the unit square, squeezed
    rows, columns = _span(pose.y, reach, size), _span(pose.x, reach, size)
    dx = (np.arange(columns.start, columns.stop) + 0.5 - pose.x)[None, :]
    dy = (np.arange(rows.start, rows.stop) + 0.5 - pose.y)[:, None]
    u = (pose.cosine * dx + pose.sine * dy) / (pose.radius * pose.squeeze)
    v = (pose.cosine * dy - pose.sine * dx) / (pose.radius / pose.squeeze)
    return Placed(rows, columns, outline(u, v), u, v)


def _span(centre: float, reach: float, size: int) -> slice:
    return slice(max(0, int(centre - reach)), min(size, int(centre + reach) + 1))


def bounds(mask: Mask, placed: Placed) -> tuple[int, int, int, int]:
    """x1 y1 x2 y2 of the true pixels: continuous, so the last pixel's far edge."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    top, left = placed.rows.start, placed.columns.start
    return left + int(columns[0]), top + int(rows[0]), left + int(columns[-1]) + 1, top + int(rows[-1]) + 1


def texture(draws: Draws, placed: Placed, clouds: NDArray[np.int32]) -> NDArray[np.int32]:
    """(n, 3) or (3,) colours of the n pixels inside the mask of `placed`."""
    kind = draws.choice(TEXTURES)
    first, other = draws.colour(), draws.colour()
    second = (first + other) >> 1  # akin to the first, so that a thing looks like one thing
    if kind == "plain":
        return first
    mix = _mix(kind, draws, placed, clouds)[:, None]  # (n, 1), 0 to 256
    return (first * (256 - mix) + second * mix) >> 8


def _mix(kind: str, draws: Draws, placed: Placed, clouds: NDArray[np.int32]) -> NDArray[np.int32]:
    """(n,) how much of the second colour each pixel has, from 0 to 256."""
    inside = placed.mask
    if kind == "cloudy":
        return clouds[placed.rows, placed.columns][inside]
    if kind == "shaded":
        return np.clip((placed.v[inside] + 1.0) * 128.0, 0, 256).astype(np.int32)
    frequency = draws.uniform(1.5, 5.0)
    stripes = np.floor(placed.u[inside] * frequency).astype(np.int32)
    if kind == "checks":
        stripes += np.floor(placed.v[inside] * frequency).astype(np.int32)
    return (stripes & 1) << 8


def paint(canvas: Canvas, placed: Placed, colours: NDArray[np.int32], opacity: int) -> None:
    """Lay the colours over the canvas inside the mask; opacity 256 hides what is below."""
    region = canvas[placed.rows, placed.columns]
    below = region[placed.mask]
    region[placed.mask] = below + (((colours - below) * opacity) >> 8)


def cloud_field(draws: Draws, size: int) -> NDArray[np.int32]:
    """(size, size) smooth noise from 0 to 256: three grids of random values, each finer and weaker than the last."""
    total = np.zeros((size, size), dtype=np.int32)
    for cell, weight in ((40, 4), (20, 2), (10, 2)):
        cells = -(-size // cell)
        grid = draws.bytes(cells + 1, cells + 1).astype(np.int32)
        total += _interpolate(_interpolate(grid, cell, size).T, cell, size).T * weight
    return total // 8


def _interpolate(grid: NDArray[np.int32], cell: int, size: int) -> NDArray[np.int32]:
    """Stretch the rows `cell` times by straight lines, in whole numbers."""
    position = np.arange(size, dtype=np.int32)
    low, share = position // cell, (position % cell)[:, None]
    return (grid[low] * (cell - share) + grid[low + 1] * share) // cell
