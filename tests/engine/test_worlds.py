"""The other worlds of NMS, with one window missing or on top, against NMS run again."""

from __future__ import annotations

import math

import numpy as np
import pytest

from stepgrad.engine.nms import ADDED, REMOVED, World, as_now, highest_freed, lift_out, new_world, on_top, without
from stepgrad.reference.nms import greedy
from tests.engine.views import Viewed, viewed

FAR = 2**30  # a position that nothing lies beyond
Windows = set[tuple[int, int]]


def world_of(case: Viewed) -> World:
    return new_world(len(case.one.neighbours.image_of_word))


def changes(case: Viewed, world: World) -> tuple[Windows, Windows]:
    """What a world removes and adds."""
    removed = case.windows(world.removed[: world.counts[REMOVED]])
    added = case.windows(world.added[: world.counts[ADDED]])
    assert len(set(removed)) == len(removed)
    assert len(set(added)) == len(added)
    assert added == sorted(added, key=lambda window: case.position(*window))
    return set(removed), set(added)


def turned(case: Viewed, world: World, i: int, b: int, limit: int = FAR) -> tuple[Windows, Windows]:
    """The other world of a window."""
    find = without if b in case.kept[i] else on_top
    find(case.number(i, b), world, case.one.ranking, case.one.neighbours, limit)
    return changes(case, world)


def kept_again(case: Viewed, i: int, b: int, score: float) -> Windows:
    """What NMS keeps in image i with another score of window b."""
    scores = list(case.scores[i])
    scores[b] = score
    neighbours = case.scene.images[i].neighbours
    if score == -math.inf:  # not there at all
        neighbours = [frozenset() if c == b else near - {b} for c, near in enumerate(neighbours)]
    return {(i, c) for c in greedy(scores, neighbours)[0]}


@pytest.mark.parametrize("seed", range(6))
def test_the_other_world_of_a_window_is_nms_without_it_or_with_it_first(seed: int) -> None:
    case = viewed(seed, windows=40 if seed else 160)
    world = world_of(case)
    for i, scores in enumerate(case.scores):
        kept = {(i, c) for c in case.kept[i]}
        for b in range(len(scores)):
            removed, added = turned(case, world, i, b)
            expected = kept_again(case, i, b, -math.inf if (i, b) in kept else math.inf)
            assert kept - removed | added == expected - {(i, b)}
    as_now(world, case.one.neighbours)
    assert [bits.any() for bits in (world.gone, world.new, world.lost)] == [False] * 3


@pytest.mark.parametrize("limit", [0, 5, 12, 25])
def test_changes_beyond_the_limit_are_left_out_and_no_others(limit: int) -> None:
    for seed in range(3):
        case = viewed(seed, windows=40)
        world = world_of(case)
        for i, scores in enumerate(case.scores):
            for b in range(len(scores)):
                removed, added = turned(case, world, i, b)
                near_removed, near_added = turned(case, world, i, b, limit)
                assert near_removed - {(i, b)} == {w for w in removed - {(i, b)} if case.position(*w) <= limit}
                assert near_added == {w for w in added if case.position(*w) <= limit}


def test_a_window_lifted_out_changes_nothing_else() -> None:
    case = viewed(1)
    world = world_of(case)
    for i, kept in enumerate(case.kept):
        for b in kept:
            number = case.number(i, b)
            lift_out(number, world, case.one.neighbours)
            assert changes(case, world) == ({(i, b)}, set())
            gone = np.unpackbits(world.gone.view(np.uint8), bitorder="little")
            assert np.flatnonzero(gone).tolist() == [number]


@pytest.mark.parametrize("seed", range(4))
def test_the_highest_window_freed_is_the_best_that_nothing_else_stops(seed: int) -> None:
    case = viewed(seed, windows=160 if seed == 0 else 50)
    for i, kept in enumerate(case.kept):
        neighbours = case.scene.images[i].neighbours
        stoppers = {
            c: [d for d in kept if d in neighbours[c] and case.position(i, d) < case.position(i, c)]
            for c in range(len(case.scores[i]))
        }
        for b in kept:
            freed = [case.position(i, c) for c, above in stoppers.items() if above == [b]]
            found = highest_freed(case.number(i, b), case.one.ranking, case.one.neighbours)
            assert found == min(freed, default=-1)
