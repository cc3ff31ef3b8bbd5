"""The area that two convex quadrangles share, in float64: oriented boxes, and the four corners of DOTA's files."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepgrad.engine.jit import kernel


@kernel
def shared_areas(
    quads: NDArray[np.float64], others: NDArray[np.float64], rows: NDArray[np.int64], columns: NDArray[np.int64]
) -> NDArray[np.float64]:
    """(M,) area that quadrangle rows[m] of (n, 4, 2) shares with columns[m] of the others; corners turn from x to y."""
    shared = np.zeros(len(rows))
    xs = np.empty(16)
    ys = np.empty(16)
    new_xs = np.empty(16)
    new_ys = np.empty(16)
    for m in range(len(rows)):
        quad, other = quads[rows[m]], others[columns[m]]
        # Coordinates from a corner of the other one: images are large and boxes small, so differences lose fewer digits.
        x0, y0 = other[0, 0], other[0, 1]
        count = 4
        for i in range(4):
            xs[i] = quad[i, 0] - x0
            ys[i] = quad[i, 1] - y0
        for e in range(4):
            # Cut by one edge of the other quadrangle after the other: what lies to its left stays.
            following = (e + 1) % 4
            ax, ay = other[e, 0] - x0, other[e, 1] - y0
            bx, by = other[following, 0] - x0, other[following, 1] - y0
            kept = 0
            for i in range(count):
                before = count - 1 if i == 0 else i - 1
                side = (bx - ax) * (ys[i] - ay) - (by - ay) * (xs[i] - ax)
                side_before = (bx - ax) * (ys[before] - ay) - (by - ay) * (xs[before] - ax)
                # The edge crosses the line: the crossing is a corner of what stays.
                if (side >= 0.0) != (side_before >= 0.0):
                    t = side_before / (side_before - side)
                    new_xs[kept] = xs[before] + t * (xs[i] - xs[before])
                    new_ys[kept] = ys[before] + t * (ys[i] - ys[before])
                    kept += 1
                if side >= 0.0:
                    new_xs[kept] = xs[i]
                    new_ys[kept] = ys[i]
                    kept += 1
            xs, new_xs = new_xs, xs
            ys, new_ys = new_ys, ys
            count = kept
            if count == 0:
                break
        # Boxes that only touch may leave a sliver of rounding, below zero by a hair.
        shared[m] = max(_area(xs, ys, count), 0.0)
    return shared


@kernel
def _area(xs: NDArray[np.float64], ys: NDArray[np.float64], count: int) -> float:
    """The area of a convex polygon, as triangles from its first corner."""
    area = 0.0
    for i in range(2, count):
        area += (xs[i - 1] - xs[0]) * (ys[i] - ys[0]) - (xs[i] - xs[0]) * (ys[i - 1] - ys[0])
    return 0.5 * area


@kernel
def quad_areas(quads: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n,) areas of (n, 4, 2), positive if the corners turn from x to y."""
    areas = np.empty(len(quads))
    for i in range(len(quads)):
        areas[i] = _area(quads[i, :, 0].copy(), quads[i, :, 1].copy(), 4)
    return areas
