"""Polygons filled as COCO fills them: the runs of pixels inside."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepgrad.engine.jit import kernel
from stepgrad.engine.runs import grown

_SCALE = 5.0  # points along the edges of a polygon are five times as dense as pixels (COCO)


@kernel
def joined_runs(starts: NDArray[np.int64], stops: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The union of runs in any order, sorted, with runs that touch made one."""
    order = np.argsort(starts)
    new_starts = np.empty(len(starts), dtype=np.int64)
    new_stops = np.empty(len(starts), dtype=np.int64)
    count = 0
    for i in order:
        # A run without pixels, where an outline crosses a column twice at one place.
        if stops[i] <= starts[i]:
            continue
        if count > 0 and starts[i] <= new_stops[count - 1]:
            new_stops[count - 1] = max(new_stops[count - 1], stops[i])
            continue
        new_starts[count] = starts[i]
        new_stops[count] = stops[i]
        count += 1
    return new_starts[:count].copy(), new_stops[:count].copy()


@kernel
def runs_of_polygon(
    xs: NDArray[np.float64], ys: NDArray[np.float64], height: int, width: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Runs of the pixels inside a polygon, read column by column, by COCO's rule.

    Corners are rounded to fifths of a pixel, and every edge is drawn as points a fifth apart. Wherever the outline goes from one
    fifth of a column to the next through the middle of a pixel column, it crosses that column: below the crossing
    inside and outside change places.
    """
    corners = len(xs)
    crossings = np.empty(16, dtype=np.int64)
    count = 0
    last_u = 0
    last_v = 0
    for k in range(corners):
        following = (k + 1) % corners
        u0, v0 = int(_SCALE * xs[k] + 0.5), int(_SCALE * ys[k] + 0.5)
        u1, v1 = int(_SCALE * xs[following] + 0.5), int(_SCALE * ys[following] + 0.5)
        steps = max(abs(u1 - u0), abs(v1 - v0))
        for d in range(steps + 1):
            u, v = _point_on_edge(u0, v0, u1, v1, steps, d)
            if (k > 0 or d > 0) and u != last_u:
                # The middle of pixel column x lies between fifths 5 x + 2 and 5 x + 3, the lower of which has 5 x + 2.
                lower = min(u, last_u)
                x = (lower + 0.5) / _SCALE - 0.5
                if np.floor(x) == x and 0.0 <= x <= width - 1:
                    y = (min(v, last_v) + 0.5) / _SCALE - 0.5
                    y = np.ceil(min(max(y, 0.0), float(height)))
                    if count == len(crossings):
                        crossings = grown(crossings, count, 2 * count)
                    crossings[count] = int(x) * height + int(y)
                    count += 1
            last_u = u
            last_v = v
    ordered = np.sort(crossings[:count])
    # Crossings in pairs: in and out. A last one without partner runs to the end of the image.
    runs = (count + 1) // 2
    starts = np.empty(runs, dtype=np.int64)
    stops = np.empty(runs, dtype=np.int64)
    for i in range(runs):
        starts[i] = ordered[2 * i]
        stops[i] = ordered[2 * i + 1] if 2 * i + 1 < count else height * width
    return joined_runs(starts, stops)


@kernel
def _point_on_edge(u0: int, v0: int, u1: int, v1: int, steps: int, d: int) -> tuple[int, int]:
    """Point number d of the `steps` + 1 points from (u0, v0) to (u1, v1), a fifth apart along the longer direction.

    Points are computed from the end with the smaller coordinate in that direction, so that an edge walked the other way has
    the same points.
    """
    if steps == 0:
        return u0, v0
    along_u = abs(u1 - u0) >= abs(v1 - v0)
    if along_u:
        if u0 > u1:
            t = steps - d
            return u1 + t, int(v1 + (v0 - v1) / steps * t + 0.5)
        return u0 + d, int(v0 + (v1 - v0) / steps * d + 0.5)
    if v0 > v1:
        t = steps - d
        return int(u1 + (u0 - u1) / steps * t + 0.5), v1 + t
    return int(u0 + (u1 - u0) / steps * d + 0.5), v0 + d
