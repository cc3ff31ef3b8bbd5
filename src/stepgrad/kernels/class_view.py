"""One class of a batch after NMS: what every kernel that follows reads."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepgrad.kernels.jit import inlined, kernel
from stepgrad.kernels.matching import Objects, Pairs
from stepgrad.kernels.metric_code import MetricCode
from stepgrad.kernels.nms import Kept, greedy_nms
from stepgrad.kernels.overlaps import Rows, Slots


class ClassView(NamedTuple):
    """A class of a batch: its windows by decreasing score, who suppressed whom, and which objects windows overlap.

    Arrays over windows are indexed by slot (see overlaps.py); a *position* is a place in `order`.
    """

    scores: NDArray[np.float64]  # (slots,)
    order: NDArray[np.int32]  # (N,) slots by decreasing score, the window of lower index first among equals
    position: NDArray[np.int32]  # (slots,) the way back: slot -> position, -1 for padding
    slots: Slots
    rows: Rows
    kept: Kept
    pairs: Pairs
    objects: Objects
    images: int
    P: int  # objects to be found
    cumulative: NDArray[np.int64]  # (P + 1,) recall levels that k true positives reach
    norm: int  # recall levels in all: AP = sum / norm
    max_detections: int  # per image; the rest are ignored
    metric: MetricCode  # what the sum is, if not AP's


@inlined
def image_of(view: ClassView, slot: int) -> int:
    """The image a slot belongs to: images start at multiples of 64 slots, so a word never holds two of them."""
    return view.slots.image_of_word[slot >> 6]


@inlined
def is_kept(view: ClassView, slot: int) -> bool:
    """Whether NMS kept the window."""
    return view.kept.kept[slot >> 6] & (np.uint64(1) << np.uint64(slot & 63)) != 0


@kernel
def order_and_suppress(
    scores: NDArray[np.floating], by_window: NDArray[np.int32], slots: Slots, rows: Rows
) -> tuple[NDArray[np.float64], NDArray[np.int32], NDArray[np.int32], Kept]:
    """Scores, order and positions of a class by slot, from its windows in decreasing score; and what NMS keeps of them."""
    words = len(slots.image_of_word)
    by_slot = np.zeros(64 * words)
    order = np.empty(len(by_window), dtype=np.int32)
    position = np.full(64 * words, -1, dtype=np.int32)
    for p in range(len(by_window)):
        slot = slots.slot_of[by_window[p]]
        order[p] = slot
        position[slot] = p
        by_slot[slot] = scores[by_window[p]]
    return by_slot, order, position, greedy_nms(order, rows, words)


def count_kept(view: ClassView) -> int:
    """How many windows NMS kept."""
    return int(np.unpackbits(view.kept.kept.view(np.uint8)).sum())
