"""Greedy non-maximum suppression that remembers who suppressed whom (Henderson & Ferrari 2016, Sec. 2.1).

A window's *stoppers* are the kept, higher windows that overlap it. How many a window has is counted for 64 windows at
once: bit b of planes[w, i] is binary digit i of the count of slot 64 w + b.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepgrad.kernels.jit import kernel, lowest_bit
from stepgrad.kernels.overlaps import Rows

PLANES = 4  # counts up to 15; windows with more stoppers are marked as `many`


class Kept(NamedTuple):
    """What NMS decided for one class; sets are bit words over slots."""

    suppressor: NDArray[np.int32]  # (slots,) the highest kept neighbour, -1 for kept windows and padding
    kept: NDArray[np.uint64]  # (W,)
    twice: NDArray[np.uint64]  # (W,) windows with at least two stoppers
    many: NDArray[np.uint64]  # (W,) with more than the planes can count
    planes: NDArray[np.uint64]  # (W, PLANES) the number of stoppers
    stops: NDArray[np.uint64]  # like Rows.bits: the neighbours that a kept window is a stopper of


@kernel
def count_up(planes: NDArray[np.uint64], word: int, who: int) -> int:
    """Add one to the counts of the windows `who` of a word; returns those that overflowed."""
    carry = who
    for i in range(PLANES):
        both = planes[word, i] & carry
        planes[word, i] ^= carry
        carry = both
    return carry


@kernel
def greedy_nms(order: NDArray[np.int32], rows: Rows, words: int) -> Kept:
    """Walk `order` (slots by decreasing score): keep a window unless a kept, higher one overlaps it."""
    suppressor = np.full(64 * words, -1, dtype=np.int32)
    kept = np.zeros(words, dtype=np.uint64)
    once = np.zeros(words, dtype=np.uint64)
    twice = np.zeros(words, dtype=np.uint64)
    many = np.zeros(words, dtype=np.uint64)
    planes = np.zeros((words, PLANES), dtype=np.uint64)
    stops = np.empty(len(rows.bits), dtype=np.uint64)
    lower = np.zeros(words, dtype=np.uint64)  # not walked yet
    for slot in order:
        lower[slot >> 6] |= np.uint64(1) << np.uint64(slot & 63)
    for slot in order:
        word, bit = slot >> 6, np.uint64(1) << np.uint64(slot & 63)
        lower[word] &= ~bit
        if once[word] & bit:
            continue
        kept[word] |= bit
        for entry in range(rows.ptr[slot], rows.ptr[slot + 1]):
            at = rows.words[entry]
            hit = rows.bits[entry] & lower[at]
            stops[entry] = hit
            fresh = hit & ~once[at]
            twice[at] |= hit & once[at]
            once[at] |= hit
            many[at] |= count_up(planes, at, hit)
            while fresh:
                suppressor[64 * at + lowest_bit(fresh)] = slot
                fresh &= fresh - np.uint64(1)
    return Kept(suppressor, kept, twice, many, planes, stops)
