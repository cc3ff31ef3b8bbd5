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
    # Corners of what is left so far and of what the next cut leaves take turns; each cut adds one corner at most.
    xs = np.empty((2, 16))
    ys = np.empty((2, 16))
    sides = np.empty(16)
    for m in range(len(rows)):
        row, column = rows[m], columns[m]
        # Coordinates from a corner of the other one: images are large and boxes small, so differences lose fewer digits.
        x0, y0 = others[column, 0, 0], others[column, 0, 1]
        now = 0
        count = 4
        for i in range(4):
            xs[0, i] = quads[row, i, 0] - x0
            ys[0, i] = quads[row, i, 1] - y0
        for e in range(4):
            # Cut by one edge of the other quadrangle after the other: what lies to its left stays.
            following = (e + 1) % 4
            ax, ay = others[column, e, 0] - x0, others[column, e, 1] - y0
            bx, by = others[column, following, 0] - x0, others[column, following, 1] - y0
            outside = 0
            for i in range(count):
                sides[i] = (bx - ax) * (ys[now, i] - ay) - (by - ay) * (xs[now, i] - ax)
                outside += not sides[i] >= 0.0
            if outside == 0:
                continue
            if outside == count:
                count = 0
                break
            kept = 0
            before = count - 1
            for i in range(count):
                side, side_before = sides[i], sides[before]
                # The edge crosses the line: the crossing is a corner of what stays.
                if (side >= 0.0) != (side_before >= 0.0):
                    t = side_before / (side_before - side)
                    xs[1 - now, kept] = xs[now, before] + t * (xs[now, i] - xs[now, before])
                    ys[1 - now, kept] = ys[now, before] + t * (ys[now, i] - ys[now, before])
                    kept += 1
                if side >= 0.0:
                    xs[1 - now, kept] = xs[now, i]
                    ys[1 - now, kept] = ys[now, i]
                    kept += 1
                before = i
            now = 1 - now
            count = kept
        # Boxes that only touch may leave a sliver of rounding, below zero by a hair.
        shared[m] = max(_area(xs[now], ys[now], count), 0.0)
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
