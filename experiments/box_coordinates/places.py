"""Where a box's overlaps can cross a threshold, or change their order, while one of its edges moves.

Coordinates are turned so that the moving edge is the upper one: it lies at t > fixed, the opposite edge. With h the overlap
across the direction of motion, H the box's own side across it and w(t) = min(t, end) - touch the overlap along it,

    I(t) = h w(t)        U(t) = H (t - fixed) + A - I(t)

are linear up to `end`, the other box's far edge, and beyond it. So I / U crosses a threshold at most once on each piece, and
two such quotients are equal at the roots of a quadratic. A place listed in vain costs time, a place left out would be a
wrong answer: where rounding decides, places are listed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepgrad.engine.jit import kernel


class Line(NamedTuple):
    """One edge of a box on the move."""

    axis: int  # 0: along x
    sign: float  # -1 if the lower edge moves: coordinates along the axis are negated
    fixed: float  # the opposite edge
    low: float  # the box's extent across
    high: float
    offset: float  # the protocol's pixel_offset


class Meeting(NamedTuple):
    """The other box as the moving edge sees it."""

    touch: float  # where the overlap begins to grow
    end: float  # where it ends growing
    across: float  # h: 0 if the boxes never meet
    area: float
    crowd: bool  # its overlap divides by the moving box's area


@kernel
def line_of(box: NDArray[np.float64], coordinate: int, offset: float) -> Line:
    """Coordinates 0 to 3 are x1, y1, x2, y2."""
    axis, across = coordinate % 2, 1 - coordinate % 2
    sign = 1.0 if coordinate >= 2 else -1.0
    return Line(axis, sign, sign * box[axis if coordinate >= 2 else axis + 2], box[across], box[across + 2], offset)


@kernel
def meeting(line: Line, other: NDArray[np.float64], crowd: bool) -> Meeting:
    first, last = other[line.axis], other[line.axis + 2]
    near, far = (first, last) if line.sign > 0.0 else (-last, -first)
    low, high = other[1 - line.axis], other[3 - line.axis]
    across = min(line.high, high) - max(line.low, low) + line.offset
    touch = max(line.fixed, near) - line.offset
    area = (far - near + line.offset) * (high - low + line.offset)
    return Meeting(touch, far, across if far > touch else 0.0, area, crowd)


@kernel
def add_crossings(line: Line, met: Meeting, threshold: float, slack: float, places: NDArray[np.float64], n: int) -> int:
    """Append where the overlap equals the threshold; returns the new number of places."""
    if met.across <= 0.0:
        return n
    side = line.high - line.low + line.offset
    ahead = met.touch - line.fixed + line.offset  # of the box's own length, where the overlap begins
    width = met.end - met.touch
    if met.crowd:
        rise, need = met.across - threshold * side, threshold * side * ahead
    else:
        rise, need = (1.0 + threshold) * met.across - threshold * side, threshold * (side * ahead + met.area)
    if rise > 0.0 and need <= rise * (width + slack):
        places[n] = met.touch + need / rise
        n += 1
    if threshold > 0.0:
        most = met.across * width / threshold
        length = (most if met.crowd else most * (1.0 + threshold) - met.area) / side
        if line.fixed - line.offset + length >= met.end - slack:
            places[n] = line.fixed - line.offset + length
            n += 1
    return n


@kernel
def _overlap_from(met: Meeting, t: float) -> tuple[float, float]:
    """The shared area at t and its slope just beyond."""
    if t < met.touch:
        return 0.0, 0.0
    return met.across * (min(t, met.end) - met.touch), met.across if t < met.end else 0.0


@kernel
def _add_roots(
    c0: float, c1: float, c2: float, start: float, length: float, slack: float, places: NDArray[np.float64], n: int
) -> int:
    """Append start + s for the roots s of c0 + c1 s + c2 s^2 up to `length`, and the vertex, which rounding may split."""
    roots = np.full(3, -np.inf)
    square = c1 * c1 - 4.0 * c2 * c0
    q = -0.5 * (c1 + np.copysign(np.sqrt(max(square, 0.0)), c1))
    if q != 0.0:
        roots[0] = c0 / q
    if c2 != 0.0:
        roots[1] = q / c2
        roots[2] = -0.5 * c1 / c2
    for s in roots:
        if -slack <= s <= length + slack:
            places[n] = start + s
            n += 1
    return n


@kernel
def add_equalities(line: Line, one: Meeting, two: Meeting, slack: float, places: NDArray[np.float64], n: int) -> int:
    """Append where the overlaps with two boxes can become equal, or cease to be."""
    if one.across <= 0.0 or two.across <= 0.0:
        return n
    knots = np.array([one.touch, one.end, two.touch, two.end, np.inf])
    knots.sort()
    side = line.high - line.low + line.offset
    for piece in range(4):
        start = knots[piece]
        area = side * (start - line.fixed + line.offset)
        i1, k1 = _overlap_from(one, start)
        i2, k2 = _overlap_from(two, start)
        d1, e1 = (area, side) if one.crowd else (area + one.area - i1, side - k1)
        d2, e2 = (area, side) if two.crowd else (area + two.area - i2, side - k2)
        c0, c1, c2 = i1 * d2 - i2 * d1, i1 * e2 + k1 * d2 - i2 * e1 - k2 * d1, k1 * e2 - k2 * e1
        places[n] = start
        n = _add_roots(c0, c1, c2, start, knots[piece + 1] - start, slack, places, n + 1)
    return n


@kernel
def merge_places(places: NDArray[np.float64], n: int, low: float, high: float, at: float, tolerance: float) -> int:
    """Sort the places between low and high and make one of those within the tolerance; those at `at` become `at` itself."""
    count = 0
    for i in range(n):
        if low + tolerance < places[i] < high - tolerance:
            places[count] = at if abs(places[i] - at) <= tolerance else places[i]
            count += 1
    places[:count].sort()
    kept = 0
    for i in range(count):
        if kept == 0 or places[i] - places[kept - 1] > tolerance:
            places[kept] = places[i]
            kept += 1
        elif places[i] == at:
            places[kept - 1] = at
    return kept
