"""Replays of NMS with one window missing or on top, against NMS run again."""

from __future__ import annotations

import math

import numpy as np
import pytest

from stepgrad.kernels.cascade import (
    ADDED,
    REMOVED,
    Cascade,
    _has_stopper,
    _pop,
    _push,
    clear,
    highest_freed,
    new_cascade,
    on_top,
    only_lift_out,
    without,
)
from stepgrad.reference.nms import greedy
from tests.kernels.views import Viewed, viewed

FAR = 2**30  # a position that nothing lies beyond


def replayed(case: Viewed, cascade: Cascade) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    """What the last replay removed and added."""
    removed = case.windows(cascade.removed[: cascade.counts[REMOVED]])
    added = case.windows(cascade.added[: cascade.counts[ADDED]])
    assert len(set(removed)) == len(removed)
    assert len(set(added)) == len(added)
    return set(removed), set(added)


def kept_again(case: Viewed, i: int, b: int, score: float) -> set[tuple[int, int]]:
    """What NMS keeps in image i with another score of window b."""
    scores = list(case.scores[i])
    scores[b] = score
    neighbours = case.scene.images[i].neighbours
    if score == -math.inf:  # not there at all
        neighbours = [frozenset() if c == b else near - {b} for c, near in enumerate(neighbours)]
    return {(i, c) for c in greedy(scores, neighbours)[0]}


def is_clear(cascade: Cascade) -> bool:
    return not (cascade.gone.any() or cascade.new.any() or cascade.lost.any() or cascade.barred.any())


@pytest.mark.parametrize("seed", range(4))
def test_a_replay_without_a_window_is_nms_without_it(seed: int) -> None:
    case = viewed(seed, windows=40 if seed else 160)
    cascade = new_cascade(len(case.view.slots.image_of_word))
    for i, kept in enumerate(case.kept):
        for b in kept:
            expected = kept_again(case, i, b, -math.inf) - {(i, b)}
            without(case.slot(i, b), cascade, case.view, FAR)
            removed, added = replayed(case, cascade)
            assert removed - expected == removed
            assert {(i, c) for c in kept} - removed | added == expected
            assert case.position(i, b) <= min([case.position(*w) for w in added], default=FAR)
    clear(cascade, case.view.rows)
    assert is_clear(cascade)


@pytest.mark.parametrize("seed", range(4))
def test_a_replay_with_a_window_on_top_is_nms_with_it_first(seed: int) -> None:
    case = viewed(seed, windows=40 if seed else 160)
    cascade = new_cascade(len(case.view.slots.image_of_word))
    for i, kept in enumerate(case.kept):
        for b in set(range(len(case.scores[i]))) - set(kept):
            expected = kept_again(case, i, b, math.inf)
            on_top(case.slot(i, b), cascade, case.view, FAR)
            removed, added = replayed(case, cascade)
            assert ({(i, c) for c in kept} - removed | added) == expected - {(i, b)}
            assert not cascade.barred.any()
    clear(cascade, case.view.rows)
    assert is_clear(cascade)


@pytest.mark.parametrize("limit", [0, 5, 12, 25])
def test_changes_beyond_the_limit_are_left_out_and_no_others(limit: int) -> None:
    for seed in range(3):
        case = viewed(seed, windows=40)
        cascade = new_cascade(len(case.view.slots.image_of_word))
        for i, scores in enumerate(case.scores):
            for b in range(len(scores)):
                replay = without if b in case.kept[i] else on_top
                replay(case.slot(i, b), cascade, case.view, FAR)
                removed, added = replayed(case, cascade)
                replay(case.slot(i, b), cascade, case.view, limit)
                near_removed, near_added = replayed(case, cascade)
                assert near_removed - {(i, b)} == {w for w in removed - {(i, b)} if case.position(*w) <= limit}
                assert near_added == {w for w in added if case.position(*w) <= limit}


@pytest.mark.parametrize("seed", range(3))
def test_a_window_lifted_out_changes_nothing_else(seed: int) -> None:
    case = viewed(seed)
    cascade = new_cascade(len(case.view.slots.image_of_word))
    for i, kept in enumerate(case.kept):
        for b in kept:
            only_lift_out(case.slot(i, b), cascade, case.view.rows)
            assert replayed(case, cascade) == ({(i, b)}, set())
            marked = [
                s for s in range(len(case.view.position)) if cascade.gone[s >> 6] >> np.uint64(s & 63) & np.uint64(1)
            ]
            assert marked == [case.slot(i, b)]


@pytest.mark.parametrize("seed", range(4))
def test_the_highest_window_freed_is_the_best_that_nobody_else_stops(seed: int) -> None:
    case = viewed(seed, windows=160 if seed == 0 else 50)
    for i, kept in enumerate(case.kept):
        neighbours = case.scene.images[i].neighbours
        stoppers = {
            c: [d for d in kept if d in neighbours[c] and case.position(i, d) < case.position(i, c)]
            for c in range(len(case.scores[i]))
        }
        for b in kept:
            freed = [case.position(i, c) for c, above in stoppers.items() if above == [b]]
            assert highest_freed(case.slot(i, b), case.view) == min(freed, default=-1)


@pytest.mark.parametrize("seed", range(3))
def test_a_stopper_is_a_kept_higher_neighbour_that_is_not_gone(seed: int) -> None:
    case = viewed(seed, windows=160 if seed == 0 else 50)
    cascade = new_cascade(len(case.view.slots.image_of_word))
    for i, kept in enumerate(case.kept):
        neighbours = case.scene.images[i].neighbours
        for gone in kept[:3]:
            only_lift_out(case.slot(i, gone), cascade, case.view.rows)
            for b in range(len(case.scores[i])):
                above = [d for d in kept if d in neighbours[b] and case.position(i, d) < case.position(i, b)]
                assert _has_stopper(case.slot(i, b), cascade, case.view) == bool(set(above) - {gone})


def test_candidates_leave_the_heap_in_the_order_of_the_list() -> None:
    rng = np.random.default_rng(1)
    cascade = new_cascade(1)
    for size in (1, 2, 3, 5, 20, 64):
        positions = rng.permutation(100)[:size].tolist()
        for p in positions:
            _push(cascade, p)
        assert [_pop(cascade) for _ in range(size)] == sorted(positions)
    waiting: list[int] = []
    for p in rng.permutation(100).tolist():  # in and out by turns
        _push(cascade, p)
        waiting = sorted([*waiting, p])
        if p % 3:
            assert _pop(cascade) == waiting.pop(0)
