"""Greedy non-maximum suppression (Henderson & Ferrari 2016, Sec. 2.1), and what it would keep in another world.

With all other scores fixed, NMS has two outcomes as the score of one window moves: in one the window is kept, in the other it is
not (docs/method.md, Sec. 5). So every window has one *other world* besides the present one. For a kept window it is the world
without it (`without`), for a suppressed window the world in which it ranks above its suppressor (`on_top`). A world is told by
the windows whose fate differs from the present: `removed` and `added`.

Taking a kept window out frees the windows that nothing else stops. A freed window is kept unless one that was kept before it
in this world overlaps it; it then takes out kept windows below it, which frees others. Freed windows are decided in
decreasing score, so everything above a window is final when its turn comes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepgrad.engine.jit import inlined, kernel, lend, lowest_bit, take_back
from stepgrad.engine.neighbours import Neighbours

NONE = -1
REMOVED, ADDED, WAITING = 0, 1, 2  # what World.counts counts


class AfterNMS(NamedTuple):
    """One class after NMS. Arrays over windows go by number; a *position* is a place in `order`; sets are words of bits."""

    scores: NDArray[np.float64]  # (windows,)
    order: NDArray[np.int32]  # (N,) windows by decreasing score, of equal scores the lower index first
    position: NDArray[np.int32]  # (windows,) the inverse of `order`; NONE for padding and windows that take no part
    suppressor: NDArray[np.int32]  # (windows,) the highest kept window that overlaps it; NONE for kept ones and padding
    kept: NDArray[np.uint64]  # (W,)
    twice: NDArray[np.uint64]  # (W,) windows that two or more kept, higher windows overlap
    stops: NDArray[np.uint64]  # like Neighbours.bits, in the rows of kept windows: their lower neighbours


class World(NamedTuple):
    """How another world differs from the present one; and room to find it."""

    removed: NDArray[np.int32]  # windows no longer kept
    added: NDArray[np.int32]  # windows newly kept, by decreasing score
    waiting: NDArray[np.int32]  # freed windows, the highest last
    counts: NDArray[np.int64]  # (3,) how many of the above there are: REMOVED, ADDED, WAITING
    gone: NDArray[np.uint64]  # (W,) `removed` as a set
    new: NDArray[np.uint64]  # (W,) `added` as a set
    lost: NDArray[np.uint64]  # (W,) windows that a removed one had stopped


@inlined
def bit_of(window: int | np.integer) -> int:
    """The bit of a window in its word, number window >> 6."""
    return np.uint64(1) << np.uint64(window & 63)


@inlined
def is_kept(ranking: AfterNMS, window: int) -> bool:
    """Whether NMS kept the window."""
    return ranking.kept[window >> 6] & bit_of(window) != 0


@inlined
def image_of(neighbours: Neighbours, window: int) -> int:
    """The image of a window: images start at multiples of 64, so a word never holds windows of two."""
    return neighbours.image_of_word[window >> 6]


@kernel
def suppress(scores: NDArray[np.floating], by_score: NDArray[np.int32], neighbours: Neighbours) -> AfterNMS:
    """Walk the windows by decreasing score: keep each one unless a kept, higher one overlaps it.

    `scores` go by the caller's index, `by_score` holds these indices in decreasing score.
    """
    words = len(neighbours.image_of_word)
    by_number = np.zeros(64 * words)
    order = np.empty(len(by_score), dtype=np.int32)
    position = np.full(64 * words, NONE, dtype=np.int32)
    suppressor = np.full(64 * words, NONE, dtype=np.int32)
    kept = np.zeros(words, dtype=np.uint64)
    once = np.zeros(words, dtype=np.uint64)  # overlapped by a kept, higher window: suppressed
    twice = np.zeros(words, dtype=np.uint64)
    stops = np.empty(len(neighbours.bits), dtype=np.uint64)
    lower = np.zeros(words, dtype=np.uint64)  # windows that were not walked yet
    for p in range(len(by_score)):
        window = neighbours.number_of[by_score[p]]
        order[p] = window
        position[window] = p
        by_number[window] = scores[by_score[p]]
        # At first every window that takes part is still to come.
        lower[window >> 6] |= bit_of(window)
    for window in order:
        # Its turn: whatever it stops from here on ranks below it.
        lower[window >> 6] &= ~bit_of(window)
        # A kept, higher window overlaps it: suppressed, and it stops nothing.
        if once[window >> 6] & bit_of(window):
            continue
        kept[window >> 6] |= bit_of(window)
        for entry in range(neighbours.ptr[window], neighbours.ptr[window + 1]):
            word = neighbours.words[entry]
            # 64 neighbours at a time: those that are still to come are stopped now.
            stopped = neighbours.bits[entry] & lower[word]
            stops[entry] = stopped
            fresh = stopped & ~once[word]  # the first to stop a window is the highest: its suppressor
            twice[word] |= stopped & once[word]
            once[word] |= stopped
            while fresh:
                suppressor[64 * word + lowest_bit(fresh)] = window
                fresh &= fresh - np.uint64(1)
    return AfterNMS(by_number, order, position, suppressor, kept, twice, stops)


@kernel
def new_world(words: int) -> World:
    """Room for other worlds of a class."""
    windows = 64 * words
    return World(
        removed=np.empty(windows, dtype=np.int32),
        added=np.empty(windows, dtype=np.int32),
        waiting=np.empty(windows, dtype=np.int32),
        counts=np.zeros(3, dtype=np.int64),
        gone=np.zeros(words, dtype=np.uint64),
        new=np.zeros(words, dtype=np.uint64),
        lost=np.zeros(words, dtype=np.uint64),
    )


@kernel
def as_now(world: World, neighbours: Neighbours) -> None:
    """The present world. Only what the last world touched is cleared: there is one world per window."""
    for i in range(world.counts[REMOVED]):
        window = world.removed[i]
        world.gone[window >> 6] = 0
        for entry in range(neighbours.ptr[window], neighbours.ptr[window + 1]):
            world.lost[neighbours.words[entry]] = 0
    for i in range(world.counts[ADDED]):
        world.new[world.added[i] >> 6] = 0
    world.counts[:] = 0


@kernel
def lift_out(window: int, world: World, neighbours: Neighbours) -> None:
    """The present world with a kept window taken out of its place, and nothing else: it will be put elsewhere."""
    as_now(world, neighbours)
    _remove(window, world)


@kernel
def without(window: int, world: World, ranking: AfterNMS, neighbours: Neighbours, limit: int) -> None:
    """The world in which kept window `window` is missing; changes at positions beyond `limit` are left out."""
    as_now(world, neighbours)
    _take_out(window, NONE, world, ranking, neighbours, limit)
    _settle(NONE, world, ranking, neighbours, limit)


@kernel
def on_top(window: int, world: World, ranking: AfterNMS, neighbours: Neighbours, limit: int) -> None:
    """The world in which suppressed window `window` ranks above its suppressor; it is not listed among the added itself."""
    as_now(world, neighbours)
    for entry in range(neighbours.ptr[window], neighbours.ptr[window + 1]):
        word = neighbours.words[entry]
        hit = neighbours.bits[entry] & ranking.kept[word]
        while hit:
            other = 64 * word + lowest_bit(hit)
            hit &= hit - np.uint64(1)
            # All kept windows that it overlaps fall: those above it are passed, those below are suppressed by it.
            if ranking.position[other] <= limit:
                _take_out(other, window, world, ranking, neighbours, limit)
    _settle(window, world, ranking, neighbours, limit)


@kernel
def highest_freed(window: int, ranking: AfterNMS, neighbours: Neighbours) -> int:
    """Position of the best window that only kept window `window` stops: where the two worlds of a kept window meet."""
    best = NONE
    for entry in range(neighbours.ptr[window], neighbours.ptr[window + 1]):
        word = neighbours.words[entry]
        # Overlapped by one kept, higher window only: this one.
        freed = ranking.stops[entry] & ~ranking.twice[word]
        while freed:
            other = 64 * word + lowest_bit(freed)
            freed &= freed - np.uint64(1)
            if best == NONE or ranking.position[other] < best:
                best = ranking.position[other]
    return best


@inlined
def _remove(window: int, world: World) -> None:
    world.removed[world.counts[REMOVED]] = window
    world.counts[REMOVED] += 1
    world.gone[window >> 6] |= bit_of(window)


@kernel
def _take_out(window: int, top: int, world: World, ranking: AfterNMS, neighbours: Neighbours, limit: int) -> None:
    """Remove a kept window; the windows it was the last to stop wait for a decision. `top`: a window kept for good, or NONE."""
    _remove(window, world)
    # The row of `top` is walked along with the row of the window: both have increasing words.
    near = neighbours.ptr[top] if top != NONE else 0
    last = neighbours.ptr[top + 1] if top != NONE else 0
    for entry in range(neighbours.ptr[window], neighbours.ptr[window + 1]):
        word = neighbours.words[entry]
        stopped = ranking.stops[entry]
        # A window with a second stopper can only be free if it has lost one before.
        unsure = stopped & world.lost[word] & ranking.twice[word]
        freed = stopped & ~ranking.twice[word] | unsure
        # Whatever this window stopped has one stopper less.
        world.lost[word] |= stopped
        if not freed:
            continue
        while near < last and neighbours.words[near] < word:  # words of a row increase
            near += 1
        if near < last and neighbours.words[near] == word:
            freed &= ~neighbours.bits[near]  # the window on top stops its neighbours for good
        if top != NONE and word == top >> 6:
            freed &= ~bit_of(top)
        while freed:
            other = 64 * word + lowest_bit(freed)
            freed &= freed - np.uint64(1)
            if ranking.position[other] > limit:  # too low to change the rank of any true positive
                continue
            # Bits know "one" and "two or more" stoppers. Only windows that had more have to be looked at.
            if unsure & bit_of(other) and _is_stopped(other, world, ranking, neighbours):
                continue
            _wait(other, world, ranking)


@kernel
def _is_stopped(window: int, world: World, ranking: AfterNMS, neighbours: Neighbours) -> bool:
    """Whether a kept, higher window that is not gone overlaps this one."""
    for entry in range(neighbours.ptr[window], neighbours.ptr[window + 1]):
        word = neighbours.words[entry]
        left = neighbours.bits[entry] & ranking.kept[word] & ~world.gone[word]
        while left:
            if ranking.position[64 * word + lowest_bit(left)] < ranking.position[window]:
                return True
            left &= left - np.uint64(1)
    return False


@kernel
def _wait(window: int, world: World, ranking: AfterNMS) -> None:
    """Put a freed window among those that wait, the highest last; there are seldom more than a few."""
    at = world.counts[WAITING]
    world.counts[WAITING] += 1
    while at > 0 and ranking.position[world.waiting[at - 1]] < ranking.position[window]:
        world.waiting[at] = world.waiting[at - 1]
        at -= 1
    world.waiting[at] = window


@kernel
def _settle(top: int, world: World, ranking: AfterNMS, neighbours: Neighbours, limit: int) -> None:
    """Decide the freed windows by decreasing score."""
    while world.counts[WAITING] > 0:
        world.counts[WAITING] -= 1
        window = world.waiting[world.counts[WAITING]]
        # It lost every stopper it had; only a window added in this world, all of which are higher, can still stop it.
        if world.counts[ADDED] > 0 and _overlaps_added(window, world, neighbours):
            continue
        world.added[world.counts[ADDED]] = window
        world.counts[ADDED] += 1
        world.new[window >> 6] |= bit_of(window)
        for entry in range(neighbours.ptr[window], neighbours.ptr[window + 1]):
            word = neighbours.words[entry]
            hit = neighbours.bits[entry] & ranking.kept[word] & ~world.gone[word]
            while hit:
                other = 64 * word + lowest_bit(hit)
                hit &= hit - np.uint64(1)
                # A window that is kept now suppresses the kept ones below it, which may free further ones: a cascade.
                if ranking.position[window] < ranking.position[other] <= limit:
                    _take_out(other, top, world, ranking, neighbours, limit)


@kernel
def _overlaps_added(window: int, world: World, neighbours: Neighbours) -> bool:
    """Whether a window added in this world overlaps this one."""
    for entry in range(neighbours.ptr[window], neighbours.ptr[window + 1]):
        if neighbours.bits[entry] & world.new[neighbours.words[entry]]:
            return True
    return False


@kernel
def rises_of_mask(
    ranking: AfterNMS, neighbours: Neighbours, outer: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
    """By window: how much the sum of `outer` over the kept windows rises from its lower world to its upper one; and the window
    at whose score the two meet, NONE if it has only one world."""
    rise = np.zeros(len(outer))
    meets = np.full(len(outer), NONE, dtype=np.int32)
    room = new_world(len(neighbours.image_of_word))
    world = lend(room)
    ranked = lend(ranking)
    near = lend(neighbours)
    last = len(ranking.order)  # every position matters
    for window in ranking.order:
        kept = is_kept(ranked, window)
        if kept:
            theta = highest_freed(window, ranked, near)
            if theta == NONE:
                continue
            meets[window] = ranking.order[theta]
            without(window, world, ranked, near, last)
        else:
            meets[window] = ranking.suppressor[window]
            on_top(window, world, ranked, near, last)
            rise[window] = outer[window]
        # The upper world of a kept window is the present one, that of a suppressed window its other one.
        sign = 1.0 if kept else -1.0
        for i in range(room.counts[REMOVED]):
            rise[window] += sign * outer[room.removed[i]]
        for i in range(room.counts[ADDED]):
            rise[window] -= sign * outer[room.added[i]]
    take_back(room)
    take_back(ranking)
    take_back(neighbours)
    return rise, meets
