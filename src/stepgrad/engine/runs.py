"""Masks as runs: where each stretch of pixels begins and ends when the mask is read pixel by pixel.

A mask of a thousand pixels has a few dozen runs, and two masks are compared by walking both lists once. Dense masks are read row
by row, as they lie in memory; COCO's files (RLE) hold runs of columns. Overlaps depend on it only in that both sides are
read the same way.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from stepgrad.engine.jit import inlined, kernel

_ALL_ZEROS, _ALL_ONES = np.uint64(0), np.uint64(0x0101010101010101)  # eight pixels of 0 or of 1
_Whole = TypeVar("_Whole", bound=np.signedinteger)


@kernel
def runs_of_pixels(
    pixels: NDArray[np.uint8], words: NDArray[np.uint64]
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]]:
    """Runs of masks (n, pixels) of 0 and 1: starts and stops of all, and where those of each mask begin (n + 1,).

    `words` are the same pixels eight at a time, (n, 0) if they cannot be taken so.
    """
    masks, size = pixels.shape
    by_words = words.shape[1] > 0
    room = 1024
    starts = np.empty(room, dtype=np.int32)
    stops = np.empty(room, dtype=np.int32)
    ptr = np.zeros(masks + 1, dtype=np.int64)
    count = 0
    for m in range(masks):
        if count + size // 2 + 1 > room:
            # Every other pixel at most can begin a run: room for the worst case of this mask.
            room = 2 * (count + size // 2 + 1)
            starts = grown(starts, count, room)
            stops = grown(stops, count, room)
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
def grown(array: NDArray[_Whole], filled: int, room: int) -> NDArray[_Whole]:
    """The first numbers of an array in a larger one."""
    larger = np.empty(room, dtype=array.dtype)
    for i in range(filled):
        larger[i] = array[i]
    return larger


@kernel
def measured_runs(
    starts: NDArray[np.int32],
    stops: NDArray[np.int32],
    ptr: NDArray[np.int64],
    sizes: NDArray[np.int64],
    by_rows: bool,
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int32]]:
    """Pixels of masks (n,), boxes around them (n, 4), and first lines (n,); `sizes` (n, 2) are heights and widths.

    A run that goes on in the next row, or column, reaches from edge to edge. The first line is -1 unless every line from the
    first to the last has one run.
    """
    masks = len(sizes)
    first_lines = np.full(masks, -1, dtype=np.int32)
    along, across = (0, 1) if by_rows else (1, 0)  # x is the place within a row, y the place within a column
    pixels = np.zeros(masks, dtype=np.int64)
    boxes = np.zeros((masks, 4))
    for m in range(masks):
        if ptr[m] == ptr[m + 1]:
            continue
        length = sizes[m, across]
        first_line = starts[ptr[m]] // length
        line_start = first_line * length
        low, high = length, np.int64(0)
        total = np.int64(0)
        one_each = True
        for r in range(ptr[m], ptr[m + 1]):
            start, stop = np.int64(starts[r]), np.int64(stops[r])
            total += stop - start
            # Runs come in order, so the line of the next one is mostly this or the next: cheaper than a division.
            while start >= line_start + length:
                line_start += length
            one_each &= line_start == (first_line + r - ptr[m]) * length
            if stop <= line_start + length:
                low = min(low, start - line_start)
                high = max(high, stop - line_start)
            else:
                low, high = np.int64(0), length
                one_each = False
        if one_each:
            first_lines[m] = first_line
        pixels[m] = total
        boxes[m, along] = low
        boxes[m, across] = first_line
        boxes[m, along + 2] = high
        boxes[m, across + 2] = (stops[ptr[m + 1] - 1] - 1) // length + 1
    return pixels, boxes, first_lines


@kernel
def shared_pixels(
    starts: NDArray[np.int32],
    stops: NDArray[np.int32],
    ptr: NDArray[np.int64],
    first_lines: NDArray[np.int32],
    other_starts: NDArray[np.int32],
    other_stops: NDArray[np.int32],
    other_ptr: NDArray[np.int64],
    other_first_lines: NDArray[np.int32],
    rows: NDArray[np.int64],
    columns: NDArray[np.int64],
) -> NDArray[np.int64]:
    """(M,) pixels that mask rows[m] shares with mask columns[m] of the others; `first_lines` as `measured_runs` has them."""
    shared = np.zeros(len(rows), dtype=np.int64)
    for m in range(len(rows)):
        i, last = ptr[rows[m]], ptr[rows[m] + 1]
        j, other_last = other_ptr[columns[m]], other_ptr[columns[m] + 1]
        line, other_line = first_lines[rows[m]], other_first_lines[columns[m]]
        total = np.int64(0)
        # One run a line in both: run for run, which the compiler does several at a time.
        if line >= 0 and other_line >= 0:
            top = max(line, other_line)
            i += top - line
            j += top - other_line
            lines = max(min(last - i, other_last - j), 0)
            first, end = starts[i : i + lines], stops[i : i + lines]
            other_first, other_end = other_starts[j : j + lines], other_stops[j : j + lines]
            for k in range(lines):
                total += max(min(end[k], other_end[k]) - max(first[k], other_first[k]), 0)
            shared[m] = total
            continue
        while i < last and j < other_last:
            low = max(starts[i], other_starts[j])
            high = min(stops[i], other_stops[j])
            total += max(high - low, 0)
            # The run that ends first can meet no further run of the other mask. No branch: which one it is, is a toss-up.
            own_first = stops[i] < other_stops[j]
            i += own_first
            j += not own_first
        shared[m] = total
    return shared


@kernel
def runs_of_text(
    text: NDArray[np.uint8], ends: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
    """Runs of COCO's compressed strings, one string after the other: starts, stops, where those of each mask begin (n + 1,), and
    the sum of the lengths of each (n,), -1 if one is negative.

    A length is written in groups of five bits, the lowest first, each as a character from 48 on with a sixth bit that says
    whether more follow; the last group's highest bit is the sign. From the third on, numbers are differences to the length two
    places before.
    """
    masks = len(ends) - 1
    starts = np.empty(len(text) // 2 + 1, dtype=np.int32)
    stops = np.empty(len(text) // 2 + 1, dtype=np.int32)
    ptr = np.zeros(masks + 1, dtype=np.int64)
    totals = np.zeros(masks, dtype=np.int64)
    filled = 0
    for m in range(masks):
        at = np.int64(0)
        before, last = np.int64(0), np.int64(0)  # lengths two places and one place before
        number = 0
        sound = True
        c = ends[m]
        while c < ends[m + 1]:
            length = np.int64(0)
            shift = 0
            more = True
            while more and c < ends[m + 1]:
                group = np.int64(text[c]) - 48
                # Thirty bits hold every length of a mask that fits into memory; what is longer is no mask.
                sound &= shift < 35
                length |= (group & 31) << min(shift, 35)
                more = (group & 32) != 0
                shift += 5
                c += 1
                # The sign: all bits above those that were written are ones.
                if not more and group & 16:
                    length |= np.int64(-1) << min(shift, 35)
            # The first three lengths stand as they are.
            if number > 2:
                length += before
            before = last
            last = length
            sound &= length >= 0
            filled = _with_run(starts, stops, ptr[m], filled, at, length if number & 1 else 0)
            at += length
            number += 1
        ptr[m + 1] = filled
        totals[m] = at if sound else -1
    return starts[:filled].copy(), stops[:filled].copy(), ptr, totals


@kernel
def runs_of_counts(
    counts: NDArray[np.int64], ends: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
    """The same from lengths of stretches that are not compressed, outside and inside in turn."""
    masks = len(ends) - 1
    starts = np.empty(len(counts) // 2 + 1, dtype=np.int32)
    stops = np.empty(len(counts) // 2 + 1, dtype=np.int32)
    ptr = np.zeros(masks + 1, dtype=np.int64)
    totals = np.zeros(masks, dtype=np.int64)
    filled = 0
    for m in range(masks):
        at = np.int64(0)
        sound = True
        for k in range(ends[m], ends[m + 1]):
            sound &= counts[k] >= 0
            filled = _with_run(starts, stops, ptr[m], filled, at, counts[k] if (k - ends[m]) & 1 else 0)
            at += counts[k]
        ptr[m + 1] = filled
        totals[m] = at if sound else -1
    return starts[:filled].copy(), stops[:filled].copy(), ptr, totals


@inlined
def _with_run(
    starts: NDArray[np.int32], stops: NDArray[np.int32], first: int, filled: int, at: int, length: int
) -> int:
    """Write a run of a mask whose runs begin at `first`; returns how many there are then."""
    if length <= 0:
        return filled
    # A stretch outside may have no pixels: then two runs touch, and are one.
    if filled > first and stops[filled - 1] == at:
        stops[filled - 1] = at + length
        return filled
    starts[filled] = at
    stops[filled] = at + length
    return filled + 1
