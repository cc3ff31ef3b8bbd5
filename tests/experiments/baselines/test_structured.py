"""The max-oracle and the two losses built on it, against all rankings there are."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.baselines.max_oracle import best_ranking, ranking_loss, ranking_score, score_gradient
from experiments.baselines.structured import song_ap, yue_ap
from tests.oracles import baselines as oracle
from tests.scenes import over_seeds

SIZES = [(P, N) for P in range(1, 7) for N in range(1, 8 - P)]
sizes = pytest.mark.parametrize(("P", "N"), SIZES, ids=str)
Lists = tuple[np.ndarray, np.ndarray]


def lists(seed: int, P: int, N: int, ties: bool = False) -> Lists:
    """Scores of positives and negatives in descending order."""
    rng = np.random.default_rng([seed, P, N])
    both = rng.integers(-2, 3, size=P + N).astype(float) if ties else rng.normal(size=P + N) * rng.choice([0.1, 1.0])
    return -np.sort(-both[:P]), -np.sort(-both[P:])


def weight_for(seed: int, sign: int) -> float:
    return sign * float(np.random.default_rng(seed).choice([0.01, 0.1, 0.3, 1.0, 3.0, 30.0]))


def objective(positives: np.ndarray, negatives: np.ndarray, weight: float) -> float:
    above = best_ranking(positives, negatives, weight)
    assert (np.diff(above) >= 0).all()
    return ranking_score(positives, negatives, above) + weight * ranking_loss(above)


@sizes
@pytest.mark.parametrize("sign", [1, -1])
def test_no_ranking_is_better_than_the_oracles(P: int, N: int, sign: int) -> None:
    every = oracle.all_rankings(P, N)
    for seed in range(12):
        positives, negatives = lists(seed, P, N, ties=seed % 3 == 0)
        weight = weight_for(seed, sign)
        best = (every.scores(positives, negatives) + weight * every.loss).max()
        assert objective(positives, negatives, weight) == pytest.approx(best, abs=1e-12)


@over_seeds(ci=6, nightly=60)
@pytest.mark.parametrize("sign", [1, -1])
def test_no_merging_of_longer_lists_is_better(seed: int, sign: int) -> None:
    positives, negatives = lists(seed, 4, 9)
    weight = weight_for(seed, sign)
    best = oracle.best_interleaving(positives, negatives, weight)
    assert objective(positives, negatives, weight) == pytest.approx(best, abs=1e-12)


@pytest.mark.parametrize("P_N", [(1, 300), (40, 300), (300, 40), (500, 10_000)], ids=str)
@pytest.mark.parametrize("weight", [0.001, 1.0, 100.0])
def test_the_oracle_equals_the_greedy_algorithm_of_yue(P_N: tuple[int, int], weight: float) -> None:
    positives, negatives = lists(0, *P_N)
    above = oracle.greedy_ranking(positives, negatives, weight)
    expected = ranking_score(positives, negatives, above) + weight * ranking_loss(above)
    assert objective(positives, negatives, weight) == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize("sign", [1, -1])
def test_scores_near_the_largest_number_rank_like_small_ones(sign: int) -> None:
    positives, negatives = lists(0, 5, 7)
    found = best_ranking(positives * 1e307, negatives * 1e307, sign * 3e307)
    assert found.tolist() == best_ranking(positives, negatives, sign * 3.0).tolist()


@sizes
def test_score_and_gradient_equal_the_sum_over_pairs(P: int, N: int) -> None:
    positives, negatives = lists(1, P, N)
    above = np.sort(np.random.default_rng(0).integers(0, N + 1, size=P))
    y = np.where(np.arange(N)[None, :] < above[:, None], -1, 1)
    expected = float((y * (positives[:, None] - negatives[None, :])).mean())
    assert ranking_score(positives, negatives, above) == pytest.approx(expected, abs=1e-14)
    for found, brute in zip(score_gradient(above, N), oracle.score_gradient(y), strict=True):
        np.testing.assert_allclose(found, brute, atol=1e-15)


@sizes
@pytest.mark.parametrize("update", ["positive", "negative"])
def test_direct_loss_gradient_equals_brute_force(P: int, N: int, update: str) -> None:
    moved = 0
    for seed in range(8):
        positives, negatives = lists(seed, P, N)
        eps = weight_for(seed, 1)
        expected, found = oracle.song(positives, negatives, eps, update), song_ap(positives, negatives, eps, update)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-11)
        moved += bool(np.any(expected[1]))
    assert moved > 0


@sizes
def test_hinge_and_subgradient_equal_brute_force(P: int, N: int) -> None:
    for seed in range(8):
        positives, negatives = lists(seed, P, N)
        margin = weight_for(seed, 1)
        for one, other in zip(
            yue_ap(positives, negatives, margin), oracle.yue(positives, negatives, margin), strict=True
        ):
            np.testing.assert_allclose(one, other, atol=1e-12)


def test_direct_gradient_with_a_large_eps_compares_with_the_worst_and_the_best_ranking() -> None:
    positives, negatives = np.array([2.0, 0.0]), np.array([3.0, 1.0, -1.0])
    _, push, _ = song_ap(positives, negatives, 1e3, "positive")
    _, pull, _ = song_ap(positives, negatives, 1e3, "negative")
    np.testing.assert_allclose(push * 1e3, [-2 * 2 / 6, -2 * 1 / 6])  # pairs right by score, wrong in the worst ranking
    np.testing.assert_allclose(pull * 1e3, [-2 * 1 / 6, -2 * 2 / 6])  # pairs wrong by score, right in the best ranking


@pytest.mark.parametrize("update", ["positive", "negative"])
def test_equal_scores_get_a_direct_gradient_that_parts_them(update: str) -> None:
    value, by_positive, by_negative = song_ap(np.zeros(3), np.zeros(4), 0.5, update)
    assert value == pytest.approx(1.0 - (1 / 5 + 2 / 6 + 3 / 7) / 3)
    np.testing.assert_allclose(by_positive, -1.0 / 3 / 0.5)
    np.testing.assert_allclose(by_negative, 1.0 / 4 / 0.5)


@over_seeds(ci=10, nightly=300)
def test_hinge_is_above_one_minus_ap_and_convex(seed: int) -> None:
    positives, negatives = lists(seed, 12, 40)
    value, by_positive, by_negative = yue_ap(positives, negatives, 1.0)
    assert value >= 1.0 - oracle.average_precision(positives, negatives) - 1e-12
    for other in range(5):
        p, n = lists(1000 + other, 12, 40)
        bound = value + by_positive @ (p - positives) + by_negative @ (n - negatives)
        assert yue_ap(p, n, 1.0)[0] >= bound - 1e-12
