"""Masks as runs: where each stretch of pixels begins and ends when the mask is read pixel by pixel.

A mask of a thousand pixels has a few dozen runs, and two masks are compared by walking both lists once. Dense masks are read row
by row, as they lie in memory; COCO's files (RLE) hold runs of columns. Overlaps depend on it only in that both sides are
read the same way.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepgrad.engine.jit import kernel

_ALL_ZEROS, _ALL_ONES = np.uint64(0), np.uint64(0x0101010101010101)  # eight pixels of 0 or of 1
_SCALE = 5.0  # points along the edges of a polygon are five times as dense as pixels (COCO)


@kernel
def runs_of_pixels(
    pixels: NDArray[np.uint8], words: NDArray[np.uint64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Runs of masks (n, pixels) of 0 and 1: starts and stops of all, and where those of each mask begin (n + 1,).

    `words` are the same pixels eight at a time, (n, 0) if they cannot be taken so.
    """
    masks, size = pixels.shape
    by_words = words.shape[1] > 0
    room = 1024
    starts = np.empty(room, dtype=np.int64)
    stops = np.empty(room, dtype=np.int64)
    ptr = np.zeros(masks + 1, dtype=np.int64)
    count = 0
    for m in range(masks):
        if count + size // 2 + 1 > room:
            # Every other pixel at most can begin a run: room for the worst case of this mask.
            room = 2 * (count + size // 2 + 1)
            starts = _grown(starts, count, room)
            stops = _grown(stops, count, room)
        inside = False
        p = 0
        while p < size:
            # Most pixels are like the one before: eight of them at a time are passed over.
            if by_words and p & 7 == 0 and words[m, p >> 3] == (_ALL_ONES if inside else _ALL_ZEROS):
                p += 8
                continue
            if (pixels[m, p] != 0) != inside:
                inside = not inside
                if inside:
                    starts[count] = p
                else:
                    stops[count] = p
                    count += 1
            p += 1
        # A run that reaches the last pixel ends with the mask.
        if inside:
            stops[count] = size
            count += 1
        ptr[m + 1] = count
    return starts[:count].copy(), stops[:count].copy(), ptr


@kernel
def _grown(array: NDArray[np.int64], filled: int, room: int) -> NDArray[np.int64]:
    """The first numbers of an array in a larger one."""
    larger = np.empty(room, dtype=np.int64)
    for i in range(filled):
        larger[i] = array[i]
    return larger


@kernel
def shared_pixels(
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    ptr: NDArray[np.int64],
    other_starts: NDArray[np.int64],
    other_stops: NDArray[np.int64],
    other_ptr: NDArray[np.int64],
    rows: NDArray[np.int64],
    columns: NDArray[np.int64],
) -> NDArray[np.int64]:
    """(M,) pixels that mask rows[m] shares with mask columns[m] of the others."""
    shared = np.zeros(len(rows), dtype=np.int64)
    for m in range(len(rows)):
        i, last = ptr[rows[m]], ptr[rows[m] + 1]
        j, other_last = other_ptr[columns[m]], other_ptr[columns[m] + 1]
        total = 0
        while i < last and j < other_last:
            low = max(starts[i], other_starts[j])
            high = min(stops[i], other_stops[j])
            if low < high:
                total += high - low
            # The run that ends first can meet no further run of the other mask.
            if stops[i] < other_stops[j]:
                i += 1
            else:
                j += 1
        shared[m] = total
    return shared


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
def counts_of_text(text: NDArray[np.uint8], ptr: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The run lengths written in COCO's compressed strings, one string after the other, and where each begins (n + 1,).

    A number is written in groups of five bits, the lowest first, each as a character from 48 on with a sixth bit that says
    whether more follow; the last group's highest bit is the sign. From the third on, numbers are differences to the one two
    places before.
    """
    counts = np.empty(len(text), dtype=np.int64)
    count_ptr = np.zeros(len(ptr), dtype=np.int64)
    filled = 0
    for s in range(len(ptr) - 1):
        first = filled
        at = ptr[s]
        while at < ptr[s + 1]:
            number = np.int64(0)
            shift = 0
            more = True
            while more and at < ptr[s + 1]:
                group = np.int64(text[at]) - 48
                number |= (group & 31) << shift
                more = (group & 32) != 0
                shift += 5
                at += 1
                # The sign: all bits above those that were written are ones.
                if not more and group & 16:
                    number |= np.int64(-1) << shift
            # The first three lengths stand as they are.
            if filled - first > 2:
                number += counts[filled - 2]
            counts[filled] = number
            filled += 1
        count_ptr[s + 1] = filled
    return counts[:filled].copy(), count_ptr


@kernel
def runs_of_counts(
    counts: NDArray[np.int64], count_ptr: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Runs from lengths of stretches, outside and inside in turn: starts, stops, and where those of each mask begin."""
    masks = len(count_ptr) - 1
    starts = np.empty(len(counts) // 2 + masks, dtype=np.int64)
    stops = np.empty(len(counts) // 2 + masks, dtype=np.int64)
    ptr = np.zeros(masks + 1, dtype=np.int64)
    filled = 0
    for m in range(masks):
        at = np.int64(0)
        for k in range(count_ptr[m], count_ptr[m + 1]):
            length = counts[k]
            inside = (k - count_ptr[m]) & 1
            if inside and length > 0:
                # A stretch outside may have no pixels: then two runs touch, and are one.
                if filled > ptr[m] and stops[filled - 1] == at:
                    stops[filled - 1] = at + length
                else:
                    starts[filled] = at
                    stops[filled] = at + length
                    filled += 1
            at += length
        ptr[m + 1] = filled
    return starts[:filled].copy(), stops[:filled].copy(), ptr


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
                        crossings = _grown(crossings, count, 2 * count)
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
