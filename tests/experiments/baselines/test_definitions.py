"""Each loss against its formula: pair by pair, over all rankings there are, or over all outcomes of its coins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from experiments.baselines import windows as labelling
from experiments.baselines.base import ListLoss, average_precision, row_chunks
from experiments.baselines.error_driven import error_driven_ap
from experiments.baselines.max_oracle import best_ranking, ranking_loss, ranking_score
from experiments.baselines.smooth_ap import smooth_ap
from experiments.baselines.soft_rank import TaylorSoftAPLoss, soft_precision
from experiments.baselines.structured import song_ap, yue_ap
from experiments.baselines.windows import window_labels
from stepgrad.metric.batch import make_batch
from tests.oracles import baselines as oracle
from tests.scenes import over_seeds, small_batch

NAMES = {labelling.POSITIVE: "positive", labelling.NEGATIVE: "negative", labelling.LEFT_OUT: "left out"}
sizes = pytest.mark.parametrize(("P", "N"), [(P, N) for P in range(1, 7) for N in range(1, 8 - P)], ids=str)


@over_seeds(ci=25, nightly=1000)
@pytest.mark.parametrize("grey_zone", [None, 0.25])
def test_labels_equal_those_of_one_window_at_a_time(seed: int, grey_zone: float | None) -> None:
    batch = small_batch(np.random.default_rng(seed), crowds=True)
    labels = window_labels(make_batch(*batch.tensors()), 0.5, grey_zone)
    offsets = np.cumsum([0] + [len(s) for s in batch.scores])
    for image, window, c in batch.windows():
        target, own = batch.targets[image], batch.boxes[image][window]
        chosen = target["labels"] == c
        none = np.zeros(len(chosen), dtype=bool)
        ignored = target.get("difficult", none) | target.get("iscrowd", none)
        box = own[c] if own.ndim == 2 else own
        expected = oracle.label_of(box, target["boxes"][chosen], ignored[chosen], 0.5, grey_zone)
        assert NAMES[labels[offsets[image] + window, c]] == expected


@over_seeds(ci=20, nightly=500)
def test_average_precision_equals_walking_down_the_list(seed: int) -> None:
    rng = np.random.default_rng(seed)
    positives, negatives = (rng.integers(-4, 5, size=rng.integers(low, 9)).astype(float) for low in (1, 0))
    found = average_precision(torch.tensor(positives), torch.tensor(negatives))
    assert float(found) == pytest.approx(oracle.average_precision(positives, negatives), abs=1e-14)


def lists(seed: int, most: int = 8, ties: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores of 1 to `most` positives and negatives, in no order."""
    rng = np.random.default_rng(seed)
    P, N = rng.integers(1, most + 1, size=2)
    both = rng.integers(-3, 4, size=P + N).astype(float) if ties else rng.normal(size=P + N) * 2.0
    return torch.tensor(both[:P]), torch.tensor(both[P:])


def assert_same(found: Any, expected: Any, tolerance: float) -> None:
    """Of values and their gradients by positives and negatives."""
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance)


def with_slopes(loss: Callable[..., float], positives: torch.Tensor, negatives: torch.Tensor) -> list[Any]:
    """A value and its central differences."""
    p, n, step = positives.numpy(), negatives.numpy(), 1e-5

    def slopes(value: Callable[[np.ndarray], float], at: np.ndarray) -> list[float]:
        return [(value(at + m) - value(at - m)) / (2.0 * step) for m in np.eye(len(at)) * step]

    return [loss(p, n), slopes(lambda q: loss(q, n), p), slopes(lambda q: loss(p, q), n)]


@over_seeds(ci=12, nightly=300)
@pytest.mark.parametrize("tau", [0.3, 2.0])
def test_smooth_ap_and_its_gradient_equal_the_sum_over_pairs(seed: int, tau: float) -> None:
    pair = lists(seed, ties=seed % 2 == 0)
    assert_same(smooth_ap(*pair, tau), with_slopes(lambda p, n: oracle.smooth_ap(p, n, tau), *pair), 1e-8)


@over_seeds(ci=8, nightly=100)
@pytest.mark.parametrize("sigma", [0.2, 0.7])
def test_soft_ap_and_its_gradient_equal_the_mean_over_all_outcomes(seed: int, sigma: float) -> None:
    pair = lists(seed, most=4)
    expected = with_slopes(lambda p, n: 1.0 - oracle.soft_ap(p, n, sigma), *pair)
    assert_same(TaylorSoftAPLoss(1, sigma=sigma).of_list(*pair), expected, 1e-7)


@over_seeds(ci=12, nightly=300)
@pytest.mark.parametrize("interpolated", [False, True])
@pytest.mark.parametrize("delta", [0.1, 1.0])
def test_error_driven_update_equals_the_published_walk(seed: int, delta: float, interpolated: bool) -> None:
    pair = lists(seed, ties=seed % 2 == 0)
    expected = oracle.error_driven(*(part.tolist() for part in pair), delta, interpolated)
    assert_same(error_driven_ap(*pair, delta, interpolated), expected, 1e-14)


SMOOTHED: dict[str, Callable[..., Any]] = {
    "smooth_ap": lambda p, n: smooth_ap(p, n, 1e-4).value,
    "error_driven_ap": lambda p, n: error_driven_ap(p, n, 1e-4, interpolated=False).value,
    "soft_rank": lambda p, n: 1.0 - soft_precision(p, n, 1e-4).mean(),
}


@over_seeds(ci=5, nightly=100)
@pytest.mark.parametrize("loss", SMOOTHED.values(), ids=SMOOTHED.keys())
def test_a_narrow_step_gives_plain_ap(seed: int, loss: Callable[..., Any]) -> None:
    spaced = torch.randperm(40, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) / 20
    positives, negatives = spaced[: 1 + seed % 20], spaced[20:]
    expected = 1.0 - oracle.average_precision(positives.tolist(), negatives.tolist())
    assert float(loss(positives, negatives)) == pytest.approx(expected, abs=1e-12)


CHUNKED: dict[str, Callable[..., ListLoss]] = {
    "smooth_ap": lambda p, n: smooth_ap(p, n, 0.5),
    "error_driven": lambda p, n: error_driven_ap(p, n, 1.0, True),
    "soft_rank": lambda p, n: TaylorSoftAPLoss(1).of_list(p, n),
}


@pytest.mark.parametrize("module", CHUNKED)
def test_a_few_positives_at_a_time_give_the_same(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = torch.randn(2, 17, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    whole = CHUNKED[module](*pair)
    most = {"smooth_ap": 3 * 34, "error_driven": 3 * 34, "soft_rank": 3 * 2 * 17**2}[module]
    chunks = []

    def counted(rows: int, columns: int, usual: int = 0) -> Any:
        chunks.append(len(list(row_chunks(rows, columns, most))))
        return row_chunks(rows, columns, most)

    monkeypatch.setattr(f"experiments.baselines.{module}.row_chunks", counted)
    assert_same(CHUNKED[module](*pair), whole, 1e-14)
    assert min(chunks) >= 3


def test_soft_rank_keeps_the_hardest_negatives_only_and_always_some() -> None:
    positives = torch.tensor([0.0, 1.0], dtype=torch.float64)
    negatives = torch.tensor([0.3, -2.0, 0.9, 0.1, -3.0], dtype=torch.float64)
    few = TaylorSoftAPLoss(1, max_windows=5).of_list(positives, negatives)
    alone = TaylorSoftAPLoss(1, max_windows=None).of_list(positives, negatives[[0, 2, 3]])
    assert few.negatives[[1, 4]].tolist() == [0.0, 0.0]
    assert_same(few._replace(negatives=few.negatives[[0, 2, 3]]), alone, 1e-15)
    full = TaylorSoftAPLoss(1, max_windows=4).of_list(torch.zeros(9), torch.tensor([1.0, 2.0, 3.0]))
    assert (full.negatives != 0).tolist() == [False, True, True]


def sorted_lists(seed: int, P: int, N: int, ties: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Scores of positives and negatives in descending order."""
    rng = np.random.default_rng([seed, P, N])
    both = rng.integers(-2, 3, size=P + N).astype(float) if ties else rng.normal(size=P + N) * rng.choice([0.1, 1.0])
    return -np.sort(-both[:P]), -np.sort(-both[P:])


def weight_for(seed: int) -> float:
    return float(np.random.default_rng(seed).choice([0.01, 0.1, 0.3, 1.0, 3.0, 30.0]))


def objective(positives: np.ndarray, negatives: np.ndarray, weight: float) -> float:
    above = best_ranking(positives, negatives, weight)
    assert (np.diff(above) >= 0).all()
    return ranking_score(positives, negatives, above) + weight * ranking_loss(above)


@sizes
@pytest.mark.parametrize("sign", [1, -1])
def test_no_ranking_is_better_than_the_oracles(P: int, N: int, sign: int) -> None:
    every = oracle.all_rankings(P, N)
    for seed in range(12):
        pair, weight = sorted_lists(seed, P, N, ties=seed % 3 == 0), sign * weight_for(seed)
        best = (every.scores(*pair) + weight * every.loss).max()
        assert objective(*pair, weight) == pytest.approx(best, abs=1e-12)


@pytest.mark.parametrize("P_N", [(1, 300), (40, 300), (300, 40), (500, 10_000)], ids=str)
@pytest.mark.parametrize("weight", [0.001, 1.0, 100.0])
def test_the_oracle_equals_the_greedy_algorithm_of_yue(P_N: tuple[int, int], weight: float) -> None:
    pair = sorted_lists(0, *P_N)
    above = oracle.greedy_ranking(*pair, weight)
    expected = ranking_score(*pair, above) + weight * ranking_loss(above)
    assert objective(*pair, weight) == pytest.approx(expected, rel=1e-11)


@sizes
@pytest.mark.parametrize("update", ["positive", "negative"])
def test_direct_loss_gradient_equals_brute_force(P: int, N: int, update: str) -> None:
    moved = 0
    for seed in range(8):
        pair, eps = sorted_lists(seed, P, N), weight_for(seed)
        expected = oracle.song(*pair, eps, update)
        assert_same(song_ap(*pair, eps, update), expected, 1e-11)
        moved += bool(np.any(expected[1]))
    assert moved > 0


@pytest.mark.parametrize("update", ["positive", "negative"])
def test_equal_scores_get_a_direct_gradient_that_parts_them(update: str) -> None:
    expected = (1.0 - (1 / 5 + 2 / 6 + 3 / 7) / 3, np.full(3, -1.0 / 3 / 0.5), np.full(4, 1.0 / 4 / 0.5))
    assert_same(song_ap(np.zeros(3), np.zeros(4), 0.5, update), expected, 1e-12)


@sizes
def test_hinge_and_subgradient_equal_brute_force(P: int, N: int) -> None:
    for seed in range(8):
        pair, margin = sorted_lists(seed, P, N), weight_for(seed)
        assert_same(yue_ap(*pair, margin), oracle.yue(*pair, margin), 1e-12)


@over_seeds(ci=10, nightly=300)
def test_hinge_is_above_one_minus_ap(seed: int) -> None:
    pair = sorted_lists(seed, 12, 40)
    assert yue_ap(*pair, 1.0)[0] >= 1.0 - oracle.average_precision(*pair) - 1e-12
