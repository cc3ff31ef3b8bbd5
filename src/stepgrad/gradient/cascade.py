"""What NMS would keep if one window were missing, or were kept on top: only the windows that change (ALGORITHM Sec. 4).

Taking a kept window away frees the windows that it alone suppressed; a freed window, if nothing higher stops it, is kept and
suppresses lower kept neighbours, which frees others. Candidates are decided in decreasing score, so that everything
above a candidate is final when its turn comes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepgrad.metric._jit import kernel, lowest_bit
from stepgrad.metric.nms import Kept
from stepgrad.metric.overlaps import Rows


class Cascade(NamedTuple):
    """The last replay: windows no longer kept and windows newly kept, with room to work in."""

    removed: NDArray[np.int32]
    added: NDArray[np.int32]
    counts: NDArray[np.int64]  # (3,) removed, added, waiting
    heap: NDArray[np.int64]  # positions of waiting candidates, smallest first
    gone: NDArray[np.uint64]  # (W,) removed, as a set
    new: NDArray[np.uint64]  # (W,) added, as a set
    barred: NDArray[np.uint64]  # (W,) may not come back: neighbours of the window on top
    waiting: NDArray[np.uint64]  # (W,) candidates ever put on the heap


@kernel
def new_cascade(words: int) -> Cascade:
    """Room for a replay."""
    slots = 64 * words
    return Cascade(
        np.empty(slots, dtype=np.int32),
        np.empty(slots, dtype=np.int32),
        np.zeros(3, dtype=np.int64),
        np.empty(slots, dtype=np.int64),
        np.zeros(words, dtype=np.uint64),
        np.zeros(words, dtype=np.uint64),
        np.zeros(words, dtype=np.uint64),
        np.zeros(words, dtype=np.uint64),
    )


@kernel
def _push(cascade: Cascade, position: int) -> None:
    heap, at = cascade.heap, cascade.counts[2]
    cascade.counts[2] += 1
    while at > 0 and heap[(at - 1) // 2] > position:
        heap[at] = heap[(at - 1) // 2]
        at = (at - 1) // 2
    heap[at] = position


@kernel
def _pop(cascade: Cascade) -> int:
    heap = cascade.heap
    smallest = heap[0]
    cascade.counts[2] -= 1
    size = cascade.counts[2]
    moved, at = heap[size], 0
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= moved:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = moved
    return smallest


@kernel
def _stopped(slot: int, cascade: Cascade, kept: Kept, rows: Rows, position: NDArray[np.int32]) -> bool:
    """Whether a higher window, kept as things stand now, overlaps this one."""
    for entry in range(rows.ptr[slot], rows.ptr[slot + 1]):
        word = rows.words[entry]
        alive = rows.bits[entry] & ((kept.kept[word] & ~cascade.gone[word]) | cascade.new[word])
        while alive:
            if position[64 * word + lowest_bit(alive)] < position[slot]:
                return True
            alive &= alive - np.uint64(1)
    return False


@kernel
def _free(slot: int, cascade: Cascade, kept: Kept, rows: Rows, position: NDArray[np.int32], limit: int) -> None:
    """Kept window `slot` is gone: put the windows it may have been the last to suppress on the heap."""
    cascade.removed[cascade.counts[0]] = slot
    cascade.counts[0] += 1
    cascade.gone[slot >> 6] |= np.uint64(1) << np.uint64(slot & 63)
    alone = cascade.counts[0] == 1  # then windows with a second suppressor cannot come back
    for entry in range(rows.ptr[slot], rows.ptr[slot + 1]):
        word = rows.words[entry]
        freed = rows.bits[entry] & kept.once[word] & ~cascade.barred[word] & ~cascade.waiting[word]
        if alone:
            freed &= ~kept.twice[word]
        while freed:
            bit = lowest_bit(freed)
            freed &= freed - np.uint64(1)
            candidate = 64 * word + bit
            if position[candidate] < position[slot] or position[candidate] > limit:
                continue
            cascade.waiting[word] |= np.uint64(1) << np.uint64(bit)
            _push(cascade, position[candidate])


@kernel
def _settle(
    cascade: Cascade, kept: Kept, rows: Rows, order: NDArray[np.int32], position: NDArray[np.int32], limit: int
) -> None:
    while cascade.counts[2] > 0:
        slot = order[_pop(cascade)]
        cascade.waiting[slot >> 6] &= ~(np.uint64(1) << np.uint64(slot & 63))  # leaves the set empty at the end
        if _stopped(slot, cascade, kept, rows, position):
            continue
        cascade.added[cascade.counts[1]] = slot
        cascade.counts[1] += 1
        cascade.new[slot >> 6] |= np.uint64(1) << np.uint64(slot & 63)
        for entry in range(rows.ptr[slot], rows.ptr[slot + 1]):
            word = rows.words[entry]
            hit = rows.bits[entry] & kept.kept[word] & ~cascade.gone[word]
            while hit:
                other = 64 * word + lowest_bit(hit)
                hit &= hit - np.uint64(1)
                if position[slot] < position[other] <= limit:
                    _free(other, cascade, kept, rows, position, limit)


@kernel
def clear(cascade: Cascade) -> None:
    """Forget the last replay."""
    for i in range(cascade.counts[0]):
        cascade.gone[cascade.removed[i] >> 6] = 0
    for i in range(cascade.counts[1]):
        cascade.new[cascade.added[i] >> 6] = 0
    cascade.counts[:] = 0


@kernel
def only_lift_out(slot: int, cascade: Cascade) -> None:
    """A replay in which nothing changes but that kept window `slot` leaves its place."""
    clear(cascade)
    cascade.removed[0] = slot
    cascade.counts[0] = 1
    cascade.gone[slot >> 6] |= np.uint64(1) << np.uint64(slot & 63)


@kernel
def without(
    slot: int, cascade: Cascade, kept: Kept, rows: Rows, order: NDArray[np.int32], position: NDArray[np.int32], limit: int
) -> None:
    """Replay NMS without kept window `slot`; changes at positions beyond `limit` are left out."""
    clear(cascade)
    _free(slot, cascade, kept, rows, position, limit)
    _settle(cascade, kept, rows, order, position, limit)


@kernel
def on_top(
    slot: int, cascade: Cascade, kept: Kept, rows: Rows, order: NDArray[np.int32], position: NDArray[np.int32], limit: int
) -> None:
    """Replay NMS with suppressed window `slot` ranked above its suppressor; `slot` itself is not listed as added."""
    clear(cascade)
    cascade.barred[slot >> 6] |= np.uint64(1) << np.uint64(slot & 63)
    for entry in range(rows.ptr[slot], rows.ptr[slot + 1]):
        cascade.barred[rows.words[entry]] |= rows.bits[entry]
    for entry in range(rows.ptr[slot], rows.ptr[slot + 1]):
        word = rows.words[entry]
        hit = rows.bits[entry] & kept.kept[word]
        while hit:
            other = 64 * word + lowest_bit(hit)
            hit &= hit - np.uint64(1)
            if position[other] <= limit:
                _free(other, cascade, kept, rows, position, limit)
    _settle(cascade, kept, rows, order, position, limit)
    cascade.barred[slot >> 6] = 0
    for entry in range(rows.ptr[slot], rows.ptr[slot + 1]):
        cascade.barred[rows.words[entry]] = 0


@kernel
def highest_freed(slot: int, kept: Kept, rows: Rows, position: NDArray[np.int32]) -> int:
    """Position of the best window that only kept window `slot` suppresses; -1 if there is none."""
    best = -1
    for entry in range(rows.ptr[slot], rows.ptr[slot + 1]):
        word = rows.words[entry]
        freed = rows.bits[entry] & kept.once[word] & ~kept.twice[word]
        while freed:
            candidate = 64 * word + lowest_bit(freed)
            freed &= freed - np.uint64(1)
            if kept.suppressor[candidate] == slot and (best < 0 or position[candidate] < best):
                best = position[candidate]
    return best
