"""What NMS would keep if one window were missing, or were kept on top: only the windows that change (docs/method.md, Sec. 5).

Taking a kept window away frees the windows that it alone suppressed; a freed window, if nothing higher stops it, is kept and
suppresses lower kept neighbours, which frees others. Candidates are decided in decreasing score, so that everything
above a candidate is final when its turn comes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepgrad.kernels.class_view import ClassView
from stepgrad.kernels.jit import kernel, lowest_bit
from stepgrad.kernels.nms import PLANES, count_up
from stepgrad.kernels.overlaps import Rows

REMOVED, ADDED, WAITING = 0, 1, 2  # what Cascade.counts counts


class Cascade(NamedTuple):
    """The last replay: windows no longer kept and windows newly kept, with room to work in."""

    removed: NDArray[np.int32]
    added: NDArray[np.int32]
    counts: NDArray[np.int64]  # (3,) by REMOVED, ADDED, WAITING
    heap: NDArray[np.int64]  # waiting candidates, highest first: position * 2^32 + slot
    gone: NDArray[np.uint64]  # (W,) removed, as a set
    new: NDArray[np.uint64]  # (W,) added, as a set
    barred: NDArray[np.uint64]  # (W,) may not come back: neighbours of the window on top
    lost: NDArray[np.uint64]  # (W, PLANES) how many of their stoppers windows have lost


@kernel
def new_cascade(words: int) -> Cascade:
    """Room for a replay."""
    slots = 64 * words
    return Cascade(
        removed=np.empty(slots, dtype=np.int32),
        added=np.empty(slots, dtype=np.int32),
        counts=np.zeros(3, dtype=np.int64),
        heap=np.empty(slots, dtype=np.int64),
        gone=np.zeros(words, dtype=np.uint64),
        new=np.zeros(words, dtype=np.uint64),
        barred=np.zeros(words, dtype=np.uint64),
        lost=np.zeros((words, PLANES), dtype=np.uint64),
    )


@kernel
def _push(cascade: Cascade, candidate: int) -> None:
    """Put a candidate on the heap. numba has heapq for lists only, and a list would be allocated for every replay."""
    heap = cascade.heap
    at = cascade.counts[WAITING]
    cascade.counts[WAITING] += 1
    while at > 0 and heap[(at - 1) // 2] > candidate:
        heap[at] = heap[(at - 1) // 2]
        at = (at - 1) // 2
    heap[at] = candidate


@kernel
def _pop(cascade: Cascade) -> int:
    """Take the highest candidate from the heap."""
    heap = cascade.heap
    smallest = heap[0]
    cascade.counts[WAITING] -= 1
    size = cascade.counts[WAITING]
    moved = heap[size]
    at = 0
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
def _overlaps_added(slot: int, cascade: Cascade, rows: Rows) -> bool:
    """Whether a newly kept window, all of which rank higher, overlaps this one."""
    for entry in range(rows.ptr[slot], rows.ptr[slot + 1]):
        if rows.bits[entry] & cascade.new[rows.words[entry]]:
            return True
    return False


@kernel
def _has_stopper(slot: int, cascade: Cascade, view: ClassView) -> bool:
    """Whether a kept, higher window that is not gone overlaps this one."""
    rows = view.rows
    kept = view.kept
    position = view.position
    for entry in range(rows.ptr[slot], rows.ptr[slot + 1]):
        word = rows.words[entry]
        alive = rows.bits[entry] & kept.kept[word] & ~cascade.gone[word]
        while alive:
            if position[64 * word + lowest_bit(alive)] < position[slot]:
                return True
            alive &= alive - np.uint64(1)
    return False


@kernel
def _free(slot: int, cascade: Cascade, view: ClassView, limit: int) -> None:
    """Kept window `slot` is gone: put the windows it was the last to stop on the heap."""
    rows = view.rows
    kept = view.kept
    position = view.position
    cascade.removed[cascade.counts[REMOVED]] = slot
    cascade.counts[REMOVED] += 1
    cascade.gone[slot >> 6] |= np.uint64(1) << np.uint64(slot & 63)
    for entry in range(rows.ptr[slot], rows.ptr[slot + 1]):
        word = rows.words[entry]
        stopped = kept.stops[entry] & ~cascade.barred[word]
        if not stopped:
            continue
        # A window is free once it has lost as many stoppers as it had: the two counts agree in every binary digit.
        count_up(cascade.lost, word, stopped)
        freed = stopped
        for i in range(PLANES):
            freed &= ~(cascade.lost[word, i] ^ kept.planes[word, i])
        # The digits count modulo 2^PLANES. Of windows with more stoppers than that, some may be left: look.
        unsure = stopped & kept.many[word]
        while freed:
            bit = lowest_bit(freed)
            freed &= freed - np.uint64(1)
            other = 64 * word + bit
            if position[other] > limit:  # too low to change any true positive's rank
                continue
            if unsure >> np.uint64(bit) & np.uint64(1) and _has_stopper(other, cascade, view):
                continue
            _push(cascade, np.int64(position[other]) << 32 | other)


@kernel
def _settle(cascade: Cascade, view: ClassView, limit: int) -> None:
    """Decide the freed windows by decreasing score."""
    rows = view.rows
    kept = view.kept
    position = view.position
    while cascade.counts[WAITING] > 0:
        slot = _pop(cascade) & 0xFFFFFFFF
        # It lost every stopper it had; only a window that this replay added, all of them higher, can still stop it.
        if cascade.counts[ADDED] > 0 and _overlaps_added(slot, cascade, rows):
            continue
        cascade.added[cascade.counts[ADDED]] = slot
        cascade.counts[ADDED] += 1
        cascade.new[slot >> 6] |= np.uint64(1) << np.uint64(slot & 63)
        # Newly kept, it suppresses the kept windows below it, which frees others in turn, all lower than itself.
        for entry in range(rows.ptr[slot], rows.ptr[slot + 1]):
            word = rows.words[entry]
            hit = rows.bits[entry] & kept.kept[word] & ~cascade.gone[word]
            while hit:
                other = 64 * word + lowest_bit(hit)
                hit &= hit - np.uint64(1)
                if position[slot] < position[other] <= limit:
                    _free(other, cascade, view, limit)


@kernel
def clear(cascade: Cascade, rows: Rows) -> None:
    """Forget the last replay, touching only what it touched: there is one replay per window."""
    for i in range(cascade.counts[REMOVED]):
        slot = cascade.removed[i]
        cascade.gone[slot >> 6] = 0
        for entry in range(rows.ptr[slot], rows.ptr[slot + 1]):
            for plane in range(PLANES):
                cascade.lost[rows.words[entry], plane] = 0
    for i in range(cascade.counts[ADDED]):
        cascade.new[cascade.added[i] >> 6] = 0
    cascade.counts[:] = 0


@kernel
def only_lift_out(slot: int, cascade: Cascade, rows: Rows) -> None:
    """A replay in which nothing changes but that kept window `slot` leaves its place."""
    clear(cascade, rows)
    cascade.removed[0] = slot
    cascade.counts[REMOVED] = 1
    cascade.gone[slot >> 6] |= np.uint64(1) << np.uint64(slot & 63)


@kernel
def without(slot: int, cascade: Cascade, view: ClassView, limit: int) -> None:
    """Replay NMS without kept window `slot`; changes at positions beyond `limit` are left out."""
    clear(cascade, view.rows)
    _free(slot, cascade, view, limit)
    _settle(cascade, view, limit)


@kernel
def _only_takes_its_place(slot: int, cascade: Cascade, view: ClassView, limit: int) -> bool:
    """Whether window `slot`, on top, suppresses one kept window that frees nobody: the commonest replay, done at once."""
    rows, kept, position = view.rows, view.kept, view.position
    first, stop = rows.ptr[slot], rows.ptr[slot + 1]
    below = kept.suppressor[slot]
    if position[below] > limit:
        return False
    for entry in range(first, stop):
        word = rows.words[entry]
        hit = rows.bits[entry] & kept.kept[word]
        while hit:
            other = 64 * word + lowest_bit(hit)
            hit &= hit - np.uint64(1)
            if other != below and position[other] <= limit:
                return False
    near = first
    for entry in range(rows.ptr[below], rows.ptr[below + 1]):
        word = rows.words[entry]
        freed = kept.stops[entry] & ~kept.twice[word]
        if not freed:
            continue
        while near < stop and rows.words[near] < word:
            near += 1
        if near < stop and rows.words[near] == word:
            freed &= ~rows.bits[near]  # the window on top stops them now
        if word == slot >> 6:
            freed &= ~(np.uint64(1) << np.uint64(slot & 63))
        while freed:
            if position[64 * word + lowest_bit(freed)] <= limit:
                return False
            freed &= freed - np.uint64(1)
    cascade.removed[0] = below
    cascade.counts[REMOVED] = 1
    cascade.gone[below >> 6] |= np.uint64(1) << np.uint64(below & 63)
    return True


@kernel
def on_top(slot: int, cascade: Cascade, view: ClassView, limit: int) -> None:
    """Replay NMS with suppressed window `slot` ranked above its suppressor; `slot` itself is not listed as added."""
    rows = view.rows
    kept = view.kept
    position = view.position
    clear(cascade, rows)
    if _only_takes_its_place(slot, cascade, view, limit):
        return
    # The window on top stops all its neighbours for good: none of them may be freed by what follows.
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
                _free(other, cascade, view, limit)
    _settle(cascade, view, limit)
    cascade.barred[slot >> 6] = 0
    for entry in range(rows.ptr[slot], rows.ptr[slot + 1]):
        cascade.barred[rows.words[entry]] = 0


@kernel
def highest_freed(slot: int, view: ClassView) -> int:
    """Position of the best window that only kept window `slot` suppresses; -1 if there is none."""
    rows, kept = view.rows, view.kept
    best = -1
    for entry in range(rows.ptr[slot], rows.ptr[slot + 1]):
        word = rows.words[entry]
        freed = kept.stops[entry] & ~kept.twice[word]  # stopped by `slot` and by nobody else
        while freed:
            other = 64 * word + lowest_bit(freed)
            freed &= freed - np.uint64(1)
            if best < 0 or view.position[other] < best:
                best = view.position[other]
    return best
