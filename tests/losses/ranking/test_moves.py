"""Moves in longer lists."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from stepgrad.losses.ranking.linear import _where
from stepgrad.losses.ranking.lists import Lists, rank_lists
from stepgrad.losses.ranking.precision import AveragePrecision


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


@each_list
def test_documents_may_move_both_ways_at_once(hit: np.ndarray) -> None:
    metric, here = AveragePrecision(ranked(hit)), np.arange(len(hit))
    target = np.random.default_rng(2).integers(0, len(hit), len(hit))
    apart = metric.moved(np.minimum(target, here)) + metric.moved(np.maximum(target, here))
    assert metric.moved(target).tolist() == apart.tolist()


@pytest.mark.parametrize("queries", [1, 40, 70_000])  # more than 16 bits can number, too
def test_documents_are_ranked_by_query_then_score_then_index(queries: int) -> None:
    generator = np.random.default_rng(3)
    scores, query = generator.integers(0, 50, 80_000) / 2.0, generator.integers(0, queries, 80_000)
    found = rank_lists(scores, np.zeros(80_000), query, queries).document
    assert found.tolist() == np.lexsort((np.arange(80_000), -scores, query)).tolist()


def test_chosen_places_are_the_true_ones_as_a_slice_or_not() -> None:
    for flags in itertools.product([False, True], repeat=5):
        chosen, places = _where(np.array(flags))
        assert np.arange(5)[chosen].tolist() == places.tolist() == [i for i, flag in enumerate(flags) if flag]
