"""Who overlaps whom: for each window, the windows of its image whose IoU exceeds the NMS threshold, as sparse bit rows.

Windows get *slots*: image after image, spatially ordered inside an image, each image starting at a multiple of 64. Slot s
is bit s % 64 of word s // 64, so a set of windows is an array of words, and a window's neighbours are the few non-zero
words of its row. Spatial order keeps those words few; bounding boxes of 64-slot blocks skip most pairs unseen.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepgrad.kernels.jit import kernel, lowest_bit

_MARGIN = 1e-12  # relative width of the band around the threshold in which the quotient itself decides


class Slots(NamedTuple):
    """Where each window of the batch sits."""

    slot_of: NDArray[np.int32]  # (N,) window -> slot
    window_of: NDArray[np.int32]  # (64 W,) slot -> window, -1 for padding
    image_of_word: NDArray[np.int32]  # (W,)


class Rows(NamedTuple):
    """Neighbour sets: row s holds words[ptr[s]:ptr[s+1]] with their bits."""

    ptr: NDArray[np.int64]  # (64 W + 1,)
    words: NDArray[np.int32]
    bits: NDArray[np.uint64]


@kernel
def _spatial_key(boxes: NDArray[np.float64], start: int, stop: int) -> NDArray[np.float64]:
    """Vertical stripes from left to right, inside a stripe from top to bottom (neighbouring stripes in turn)."""
    n = stop - start
    left = np.inf
    right = -np.inf
    top = np.inf
    bottom = -np.inf
    for i in range(start, stop):
        x = 0.5 * boxes[i, 0] + 0.5 * boxes[i, 2]
        y = 0.5 * boxes[i, 1] + 0.5 * boxes[i, 3]
        left, right = min(left, x), max(right, x)
        top, bottom = min(top, y), max(bottom, y)
    stripes = max(1.0, np.floor(np.sqrt(n / 64.0)))
    width = 0.5 * right - 0.5 * left
    height = 0.5 * bottom - 0.5 * top
    keys = np.zeros(n)
    for i in range(n):
        x = 0.25 * boxes[start + i, 0] + 0.25 * boxes[start + i, 2] - 0.5 * left
        y = 0.25 * boxes[start + i, 1] + 0.25 * boxes[start + i, 3] - 0.5 * top
        stripe = 0.0
        if width > 0.0:
            stripe = min(np.floor(x / width * stripes), stripes - 1.0)
        along = y / height if height > 0.0 else 0.0
        keys[i] = 2.0 * stripe + along
    return keys


def spatial_slots(
    boxes: NDArray[np.float64], offsets: NDArray[np.int64], order: Callable[[NDArray[np.floating]], NDArray[np.int32]]
) -> Slots:
    """Give every window its slot; `order` sorts keys (any stable order will do, results never depend on it)."""
    by_place = np.arange(offsets[-1], dtype=np.int32)
    for start, stop in pairwise(offsets.tolist()):
        if stop - start > 64:
            by_place[start:stop] = start + order(_spatial_key(boxes, start, stop))
    return _slots_in_order(by_place, offsets)


def plain_slots(offsets: NDArray[np.int64]) -> Slots:
    """Slots in the order of the windows: where overlaps do not matter."""
    return _slots_in_order(np.arange(offsets[-1], dtype=np.int32), offsets)


def _slots_in_order(windows: NDArray[np.int32], offsets: NDArray[np.int64]) -> Slots:
    """Each image's windows, in the order given, on slots from a multiple of 64 on."""
    counts = np.diff(offsets)
    words = -(-counts // 64)
    first_slot = 64 * (np.cumsum(words) - words)
    slots = (np.arange(offsets[-1]) + np.repeat(first_slot - offsets[:-1], counts)).astype(np.int32)
    slot_of = np.empty(len(windows), dtype=np.int32)
    slot_of[windows] = slots
    window_of = np.full(64 * int(words.sum()), -1, dtype=np.int32)
    window_of[slots] = windows
    return Slots(slot_of, window_of, np.repeat(np.arange(len(counts), dtype=np.int32), words))


@kernel
def _block_bounds(
    boxes: NDArray[np.float64], window_of: NDArray[np.int32], word0: int, word1: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Coordinates and areas by slot (5, 64 words), padding at infinity, and the bounding box of each block (words, 4)."""
    columns = np.empty((5, 64 * (word1 - word0)))
    bounds = np.empty((word1 - word0, 4))
    for block in range(word1 - word0):
        x1 = np.inf
        y1 = np.inf
        x2 = -np.inf
        y2 = -np.inf
        for i in range(64 * block, 64 * block + 64):
            window = window_of[64 * word0 + i]
            if window < 0:
                columns[0, i] = columns[1, i] = columns[2, i] = columns[3, i] = np.inf
                columns[4, i] = 1.0
                continue
            for c in range(4):
                columns[c, i] = boxes[window, c]
            columns[4, i] = (columns[2, i] - columns[0, i]) * (columns[3, i] - columns[1, i])
            x1, y1 = min(x1, columns[0, i]), min(y1, columns[1, i])
            x2, y2 = max(x2, columns[2, i]), max(y2, columns[3, i])
        bounds[block] = np.array([x1, y1, x2, y2])
    return columns, bounds


@kernel
def _row_word(columns: NDArray[np.float64], row: int, block: int, threshold: float, excess: NDArray[np.float64]) -> int:
    """Bits of the slots of `block` whose IoU with slot `row` exceeds the threshold.

    Division is slow, so inter > threshold * union decides, for 64 slots in one go (`excess` is room for them), and the
    quotient itself only where the two are within a rounding of each other.
    """
    x1 = columns[0, row]
    y1 = columns[1, row]
    x2 = columns[2, row]
    y2 = columns[3, row]
    area = columns[4, row]
    base = 64 * block
    lefts, tops = columns[0, base : base + 64], columns[1, base : base + 64]
    rights, bottoms = columns[2, base : base + 64], columns[3, base : base + 64]
    areas = columns[4, base : base + 64]
    lenient = threshold * (1.0 - _MARGIN)
    for j in range(64):
        left = lefts[j] if lefts[j] > x1 else x1
        top = tops[j] if tops[j] > y1 else y1
        right = rights[j] if rights[j] < x2 else x2
        bottom = bottoms[j] if bottoms[j] < y2 else y2
        width = right - left
        height = bottom - top
        width = width if width > 0.0 else 0.0
        height = height if height > 0.0 else 0.0
        inter = width * height
        excess[j] = inter - lenient * (area + areas[j] - inter)
    hits = np.uint64(0)
    for j in range(64):
        hits |= np.uint64(excess[j] > 0.0) << np.uint64(j)
    if row >> 6 == block:
        hits &= ~(np.uint64(1) << np.uint64(row & 63))
    left_to_check = hits
    while left_to_check:
        j = lowest_bit(left_to_check)
        left_to_check &= left_to_check - np.uint64(1)
        if excess[j] <= 4.0 * _MARGIN * (area + areas[j]):
            inter = (min(rights[j], x2) - max(lefts[j], x1)) * (min(bottoms[j], y2) - max(tops[j], y1))
            if not inter / (area + areas[j] - inter) > threshold:
                hits &= ~(np.uint64(1) << np.uint64(j))
    return hits


@kernel
def image_rows(
    boxes: NDArray[np.float64], window_of: NDArray[np.int32], word0: int, word1: int, threshold: float
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.uint64]]:
    """Neighbour rows of one image (words word0 to word1): entries per slot, then their words and bits."""
    columns, bounds = _block_bounds(boxes, window_of, word0, word1)
    blocks = word1 - word0
    entries = np.zeros(64 * blocks, dtype=np.int64)
    words = np.empty(max(16, 8 * 64 * blocks), dtype=np.int32)
    bits = np.empty(len(words), dtype=np.uint64)
    near = np.empty(blocks, dtype=np.int64)
    excess = np.empty(64)
    filled = 0
    for block in range(blocks):
        # Blocks whose bounding boxes do not touch have no overlapping windows: most pairs are never looked at.
        near_blocks = 0
        for other in range(blocks):
            if (
                bounds[other, 0] < bounds[block, 2]
                and bounds[other, 2] > bounds[block, 0]
                and bounds[other, 1] < bounds[block, 3]
                and bounds[other, 3] > bounds[block, 1]
            ):
                near[near_blocks] = other
                near_blocks += 1
        # Room for the most that this block can need, so that the loop below does not have to ask.
        if filled + 64 * near_blocks > len(words):
            capacity = max(2 * len(words), filled + 64 * near_blocks)
            words, old_words = np.empty(capacity, dtype=np.int32), words
            words[:filled] = old_words[:filled]
            bits, old_bits = np.empty(capacity, dtype=np.uint64), bits
            bits[:filled] = old_bits[:filled]
        for row in range(64 * block, 64 * block + 64):
            if window_of[64 * word0 + row] < 0:
                continue
            for k in range(near_blocks):
                other = near[k]
                if (  # the block may touch this block's box, but not this window
                    bounds[other, 0] < columns[2, row]
                    and bounds[other, 2] > columns[0, row]
                    and bounds[other, 1] < columns[3, row]
                    and bounds[other, 3] > columns[1, row]
                ):
                    word = _row_word(columns, row, other, threshold, excess)
                    if word:
                        words[filled] = word0 + other
                        bits[filled] = word
                        filled += 1
                        entries[row] += 1
    return entries, words[:filled].copy(), bits[:filled].copy()


def join_rows(parts: list[tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.uint64]]]) -> Rows:
    """The rows of all images as one table."""
    if not parts:
        return no_rows(0)
    entries = np.concatenate([p[0] for p in parts])
    ptr = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(entries)])
    return Rows(ptr, np.concatenate([p[1] for p in parts]), np.concatenate([p[2] for p in parts]))


def no_rows(slots: int) -> Rows:
    """Nobody overlaps anybody: what "no NMS" means."""
    return Rows(np.zeros(slots + 1, dtype=np.int64), np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.uint64))
