"""Which windows overlap by more than the NMS threshold: for each window a sparse row of bits.

Inside the engine windows have numbers of their own: image after image, in an image by place, each image from a multiple of 64
on. Window w is bit w % 64 of word w // 64, so a set of windows is an array of words, and the neighbours of a window are the
few words of its row that are not zero. Windows ordered by place keep those words few, and the bounding boxes of blocks of 64
windows let most pairs go unseen.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepgrad.engine.jit import kernel, lowest_bit
from stepgrad.engine.order import descending_order
from stepgrad.threads import run_threads, without_interrupt

_MARGIN = 1e-12  # relative width of the band around the threshold in which the quotient itself decides


class Neighbours(NamedTuple):
    """The numbers of the windows of a batch, and who overlaps whom: row w is words[ptr[w]:ptr[w + 1]] with their bits."""

    number_of: NDArray[np.int32]  # (N,) number of the window with the caller's index
    index_of: NDArray[np.int32]  # (64 W,) and back; -1 for padding
    image_of_word: NDArray[np.int32]  # (W,)
    ptr: NDArray[np.int64]  # (64 W + 1,)
    words: NDArray[np.int32]
    bits: NDArray[np.uint64]


def neighbours_of(
    boxes: NDArray[np.float64], offsets: NDArray[np.int64], threshold: float | None, threads: int
) -> Neighbours:
    """Numbers for all windows of a batch and, unless the threshold is None (no NMS), the overlaps above it."""
    by_place = np.arange(offsets[-1], dtype=np.int32)
    if threshold is None:
        return _numbered(by_place, offsets)
    without_interrupt(_sort_by_place, boxes, offsets, by_place)  # held back once, not for each of its many kernels
    numbered = _numbered(by_place, offsets)
    edges = np.searchsorted(numbered.image_of_word, np.arange(len(offsets)))
    # One stretch of words per image: images share no neighbours and are searched on different threads.
    spans = [(int(a), int(b)) for a, b in pairwise(edges) if b > a]
    parts = run_threads(lambda span: image_rows(boxes, numbered.index_of, *span, threshold), spans, threads)
    if not parts:
        return numbered
    return numbered._replace(
        ptr=np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(np.concatenate([part[0] for part in parts]))]),
        words=np.concatenate([part[1] for part in parts]),
        bits=np.concatenate([part[2] for part in parts]),
    )


def given_neighbours(near: NDArray[np.int64], offsets: NDArray[np.int64]) -> Neighbours:
    """Numbers for all windows of a batch, and neighbours as (E, 2) pairs of windows say: in any order, also repeated.

    >>> near = given_neighbours(np.array([[0, 2], [2, 1]]), np.array([0, 3]))
    >>> [f"{bits:03b}" for bits in near.bits.tolist()]          # rows of windows 0, 1, 2; bits from right to left
    ['100', '100', '011']
    """
    numbered = _numbered(np.arange(offsets[-1], dtype=np.int32), offsets)
    both = numbered.number_of[np.concatenate([near, near[:, ::-1]])].astype(np.int64)
    window, word = both[:, 0], both[:, 1] >> 6
    order = np.lexsort((word, window))
    first = np.flatnonzero(np.diff(window[order], prepend=-1) | np.diff(word[order], prepend=-1))
    if len(first) == 0:
        return numbered
    bits = np.left_shift(np.uint64(1), (both[order, 1] & 63).astype(np.uint64))
    entries = np.bincount(window[order][first], minlength=len(numbered.index_of))
    return numbered._replace(
        ptr=np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(entries)]),
        words=word[order][first].astype(np.int32),
        bits=np.bitwise_or.reduceat(bits, first),
    )


def _sort_by_place(boxes: NDArray[np.float64], offsets: NDArray[np.int64], by_place: NDArray[np.int32]) -> None:
    """Order the windows of each image by place; results never depend on it, only the time they take."""
    for start, stop in pairwise(offsets.tolist()):
        if stop - start > 64:
            by_place[start:stop] = start + descending_order(_place_key(boxes, start, stop))


def _numbered(by_place: NDArray[np.int32], offsets: NDArray[np.int64]) -> Neighbours:
    """Windows numbered in the order given, without any neighbours."""
    counts = np.diff(offsets)
    # Each image starts a new word, so that no word holds windows of two images.
    words = -(-counts // 64)
    first_number = 64 * (np.cumsum(words) - words)
    numbers = (np.arange(offsets[-1]) + np.repeat(first_number - offsets[:-1], counts)).astype(np.int32)
    number_of = np.empty(len(by_place), dtype=np.int32)
    number_of[by_place] = numbers
    index_of = np.full(64 * int(words.sum()), -1, dtype=np.int32)
    index_of[numbers] = by_place
    return Neighbours(
        number_of=number_of,
        index_of=index_of,
        image_of_word=np.repeat(np.arange(len(counts), dtype=np.int32), words),
        ptr=np.zeros(len(index_of) + 1, dtype=np.int64),
        words=np.zeros(0, dtype=np.int32),
        bits=np.zeros(0, dtype=np.uint64),
    )


@kernel
def _place_key(boxes: NDArray[np.float64], start: int, stop: int) -> NDArray[np.float64]:
    """A key to sort windows by: vertical stripes from left to right, in a stripe from top to bottom."""
    left = np.inf
    right = -np.inf
    top = np.inf
    bottom = -np.inf
    for i in range(start, stop):
        # Halves are added, not whole numbers: the sum of two finite coordinates may be infinite.
        x = 0.5 * boxes[i, 0] + 0.5 * boxes[i, 2]
        y = 0.5 * boxes[i, 1] + 0.5 * boxes[i, 3]
        left = min(left, x)
        right = max(right, x)
        top = min(top, y)
        bottom = max(bottom, y)
    # As many stripes as make squares of about 64 windows each.
    stripes = max(1.0, np.floor(np.sqrt((stop - start) / 64.0)))
    width = 0.5 * right - 0.5 * left
    height = 0.5 * bottom - 0.5 * top
    keys = np.zeros(stop - start)
    for i in range(start, stop):
        x = 0.25 * boxes[i, 0] + 0.25 * boxes[i, 2] - 0.5 * left
        y = 0.25 * boxes[i, 1] + 0.25 * boxes[i, 3] - 0.5 * top
        stripe = min(np.floor(x / width * stripes), stripes - 1.0) if width > 0.0 else 0.0
        keys[i - start] = 2.0 * stripe + (y / height if height > 0.0 else 0.0)
    return keys


@kernel
def _block_bounds(
    boxes: NDArray[np.float64], index_of: NDArray[np.int32], word0: int, word1: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Coordinates and areas by window (5, 64 words), padding at infinity, and the bounding box of each block (words, 4)."""
    columns = np.empty((5, 64 * (word1 - word0)))
    bounds = np.empty((word1 - word0, 4))
    for block in range(word1 - word0):
        bounds[block, :2] = np.inf
        bounds[block, 2:] = -np.inf
        for i in range(64 * block, 64 * block + 64):
            index = index_of[64 * word0 + i]
            # Padding at infinity: it shares area with nothing, so that the loops below need not ask for it.
            if index < 0:
                columns[:4, i] = np.inf
                columns[4, i] = 1.0
                continue
            for c in range(4):
                columns[c, i] = boxes[index, c]
            columns[4, i] = (columns[2, i] - columns[0, i]) * (columns[3, i] - columns[1, i])
            for c in range(2):
                bounds[block, c] = min(bounds[block, c], columns[c, i])
                bounds[block, c + 2] = max(bounds[block, c + 2], columns[c + 2, i])
    return columns, bounds


@kernel
def _row_word(columns: NDArray[np.float64], row: int, block: int, threshold: float, excess: NDArray[np.float64]) -> int:
    """Bits of the windows of `block` whose IoU with window `row` exceeds the threshold; `excess` is room for 64 numbers."""
    x1 = columns[0, row]
    y1 = columns[1, row]
    x2 = columns[2, row]
    y2 = columns[3, row]
    area = columns[4, row]
    base = 64 * block
    lefts = columns[0, base : base + 64]
    tops = columns[1, base : base + 64]
    rights = columns[2, base : base + 64]
    bottoms = columns[3, base : base + 64]
    areas = columns[4, base : base + 64]
    # Division is slow, so inter > threshold * union decides, a little leniently, for 64 windows in one go: the compiler
    # makes vector code of this loop, which has no branch.
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
        hits &= ~(np.uint64(1) << np.uint64(row & 63))  # a window is no neighbour of its own
    # Where the two sides are within a rounding of each other, the quotient itself decides, as in reference/nms.py.
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
def _touch(bounds: NDArray[np.float64], block: int, x1: float, y1: float, x2: float, y2: float) -> bool:
    """Whether the bounding box of a block shares area with a box: otherwise no window of it can."""
    return bounds[block, 0] < x2 and bounds[block, 2] > x1 and bounds[block, 1] < y2 and bounds[block, 3] > y1


@kernel
def image_rows(
    boxes: NDArray[np.float64], index_of: NDArray[np.int32], word0: int, word1: int, threshold: float
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.uint64]]:
    """Rows of one image (words word0 to word1): entries per window, then their words and bits."""
    # Blocks of 64 windows whose bounding boxes do not touch share no pair: most pairs are never looked at.
    columns, bounds = _block_bounds(boxes, index_of, word0, word1)
    blocks = word1 - word0
    entries = np.zeros(64 * blocks, dtype=np.int64)
    words = np.empty(max(16, 8 * 64 * blocks), dtype=np.int32)
    bits = np.empty(len(words), dtype=np.uint64)
    near = np.empty(blocks, dtype=np.int64)
    excess = np.empty(64)
    filled = 0
    for block in range(blocks):
        near_blocks = 0
        for other in range(blocks):
            if _touch(bounds, other, bounds[block, 0], bounds[block, 1], bounds[block, 2], bounds[block, 3]):
                near[near_blocks] = other
                near_blocks += 1
        # Room for the most that this block can need, so that the loop below does not have to ask.
        if filled + 64 * near_blocks > len(words):
            capacity = max(2 * len(words), filled + 64 * near_blocks)
            more_words = np.empty(capacity, dtype=np.int32)
            more_bits = np.empty(capacity, dtype=np.uint64)
            for e in range(filled):
                more_words[e] = words[e]
                more_bits[e] = bits[e]
            words = more_words
            bits = more_bits
        for row in range(64 * block, 64 * block + 64):
            if index_of[64 * word0 + row] < 0:
                continue
            for k in range(near_blocks):
                other = near[k]
                # The other block may touch this block, but not this window of it.
                if _touch(bounds, other, columns[0, row], columns[1, row], columns[2, row], columns[3, row]):
                    word = _row_word(columns, row, other, threshold, excess)
                    if word:
                        words[filled] = word0 + other
                        bits[filled] = word
                        filled += 1
                        entries[row] += 1
    return entries, words[:filled].copy(), bits[:filled].copy()
