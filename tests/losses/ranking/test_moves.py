"""Moves in longer lists, where the walks over records of interpolated AP skip, against fresh evaluations."""

from __future__ import annotations

import math

import numpy as np
import pytest

from stepgrad.losses.ranking import metrics
from stepgrad.losses.ranking.interpolated import InterpolatedPrecision
from stepgrad.losses.ranking.lists import Lists, rank_lists
from stepgrad.losses.ranking.precision import AveragePrecision
from tests.oracles.ranking import all_nearest_steps


def _drawn(share: float, n: int = 400) -> np.ndarray:
    return np.random.default_rng(round(100 * share)).random(n) < share


def _falling(T: int) -> np.ndarray:
    """Every relevant document is a record: its precision is below that of all earlier ones."""
    hit = np.zeros(T * (T + 1) // 2 + 3, dtype=bool)
    hit[[k * (k + 1) // 2 for k in range(T)]] = True
    return hit


LISTS = {
    "few relevant": _drawn(0.05),
    "half relevant": _drawn(0.5),
    "most relevant": _drawn(0.95),
    "relevant first": np.arange(300) < 120,
    "relevant last": np.arange(300) >= 120,
    "alternating": np.arange(301) % 2 == 1,
    "all records": _falling(60),
    "all relevant": np.ones(200, dtype=bool),
    "none relevant": np.zeros(50, dtype=bool),
    "one document": np.ones(1, dtype=bool),
}
each_list = pytest.mark.parametrize("hit", LISTS.values(), ids=LISTS.keys())


def ranked(hit: np.ndarray) -> Lists:
    """One query whose documents already stand in order."""
    return rank_lists(-np.arange(len(hit)) * 1.0, hit * 1.0, np.zeros(len(hit), dtype=np.int64), 1)


def interpolated_precisions(hit: np.ndarray) -> np.ndarray:
    at = np.flatnonzero(hit)
    return np.maximum.accumulate((np.arange(1, len(at) + 1) / (at + 1))[::-1])


def change_by_hand(hit: np.ndarray, source: int, target: int) -> float:
    """The difference of two sums of precisions, rounded once, over the number of relevant documents."""
    moved = np.insert(np.delete(hit, source), target, hit[source])
    difference = math.fsum([*interpolated_precisions(moved), *-interpolated_precisions(hit)])
    return difference / max(int(hit.sum()), 1)


@each_list
def test_change_of_any_move_equals_fresh_evaluation(hit: np.ndarray) -> None:
    generator, metric = np.random.default_rng(0), InterpolatedPrecision(ranked(hit))
    for reach in (3, len(hit)):
        target = np.clip(np.arange(len(hit)) + generator.integers(-reach, reach + 1, len(hit)), 0, len(hit) - 1)
        found = metric.moved(target)
        for source in generator.choice(len(hit), min(len(hit), 150), replace=False):
            expected = change_by_hand(hit, source, target[source])
            assert found[source] == pytest.approx(expected, rel=1e-15, abs=0.0)


@each_list
def test_value_is_the_rounded_sum_of_precisions(hit: np.ndarray) -> None:
    found = InterpolatedPrecision(ranked(hit)).value
    assert found.tolist() == [math.fsum(interpolated_precisions(hit)) / max(int(hit.sum()), 1)]


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("grid", [12, 10_000])  # heavily tied, and hardly at all
def test_nearest_steps_of_longer_lists_equal_brute_force(share: float, grid: int) -> None:
    generator = np.random.default_rng(grid)
    scores, relevance = generator.integers(0, grid, 60) / 4.0, generator.random(60) < share
    lists = rank_lists(scores, relevance * 1.0, np.zeros(60, dtype=np.int64), 1)
    metric = InterpolatedPrecision(lists)
    moves, value = metric.nearest(), metric.value[0]
    found = np.empty((4, 60))
    found[:, lists.document] = [
        np.where(moves.up < 0, np.inf, lists.score[moves.up]),
        value + moves.up_change,
        np.where(moves.down < 0, -np.inf, lists.score[moves.down]),
        value + moves.down_change,
    ]
    expected = all_nearest_steps(lambda s: metrics.average_precision(s, relevance, True), scores)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_lists_of_any_length_side_by_side_equal_each_alone() -> None:
    hits = [*LISTS.values(), LISTS["half relevant"][:17]]
    sizes = [len(hit) for hit in hits]
    generator = np.random.default_rng(1)
    targets = [generator.integers(0, size, size) for size in sizes]
    query, start = np.repeat(np.arange(len(hits)), sizes), np.cumsum([0, *sizes[:-1]])
    together = rank_lists(-np.arange(len(query)) * 1.0, np.concatenate(hits) * 1.0, query, len(hits))
    found = InterpolatedPrecision(together).moved(np.concatenate([t + s for t, s in zip(targets, start, strict=True)]))
    alone = [InterpolatedPrecision(ranked(hit)).moved(t) for hit, t in zip(hits, targets, strict=True)]
    assert found.tolist() == np.concatenate(alone).tolist()


@pytest.mark.parametrize("kind", [AveragePrecision, InterpolatedPrecision])
@each_list
def test_documents_may_move_both_ways_at_once(kind: type[AveragePrecision], hit: np.ndarray) -> None:
    metric, here = kind(ranked(hit)), np.arange(len(hit))
    target = np.random.default_rng(2).integers(0, len(hit), len(hit))
    apart = metric.moved(np.minimum(target, here)) + metric.moved(np.maximum(target, here))
    assert metric.moved(target).tolist() == apart.tolist()


@pytest.mark.parametrize("queries", [1, 40, 70_000])  # more than 16 bits can number, too
def test_documents_are_ranked_by_query_then_score_then_index(queries: int) -> None:
    generator = np.random.default_rng(3)
    scores, query = generator.integers(0, 50, 80_000) / 2.0, generator.integers(0, queries, 80_000)
    found = rank_lists(scores, np.zeros(80_000), query, queries).document
    assert found.tolist() == np.lexsort((np.arange(80_000), -scores, query)).tolist()
