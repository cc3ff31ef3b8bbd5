"""Smooth-AP, AP-Loss and the smoothed AP of SoftRank, each against its formula pair by pair or outcome by outcome."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from experiments.baselines.base import ListLoss, row_chunks
from experiments.baselines.error_driven import error_driven_ap
from experiments.baselines.smooth_ap import smooth_ap
from experiments.baselines.soft_rank import TaylorSoftAPLoss, count_distribution, soft_precision
from tests.oracles import baselines as oracle
from tests.scenes import over_seeds


def lists(seed: int, most: int = 8, ties: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores of 1 to `most` positives and negatives, in no order."""
    rng = np.random.default_rng(seed)
    P, N = rng.integers(1, most + 1, size=2)
    both = rng.integers(-3, 4, size=P + N).astype(float) if ties else rng.normal(size=P + N) * 2.0
    return torch.tensor(both[:P]), torch.tensor(both[P:])


def slopes(value: Callable[[np.ndarray], float], at: torch.Tensor, step: float = 1e-6) -> np.ndarray:
    """Central differences."""
    points = at.numpy()
    moves = np.eye(len(points)) * step
    return np.array([(value(points + m) - value(points - m)) / (2.0 * step) for m in moves])


@over_seeds(ci=12, nightly=300)
@pytest.mark.parametrize("tau", [0.3, 2.0])
def test_smooth_ap_and_its_gradient_equal_the_sum_over_pairs(seed: int, tau: float) -> None:
    positives, negatives = lists(seed, ties=seed % 2 == 0)
    found = smooth_ap(positives, negatives, tau)
    assert float(found.value) == pytest.approx(oracle.smooth_ap(positives.tolist(), negatives.tolist(), tau), abs=1e-13)
    by_positive = slopes(lambda p: oracle.smooth_ap(p, negatives.tolist(), tau), positives)
    by_negative = slopes(lambda n: oracle.smooth_ap(positives.tolist(), n, tau), negatives)
    np.testing.assert_allclose(found.positives, by_positive, atol=1e-8)
    np.testing.assert_allclose(found.negatives, by_negative, atol=1e-8)


@over_seeds(ci=12, nightly=300)
@pytest.mark.parametrize("interpolated", [False, True])
@pytest.mark.parametrize("delta", [0.1, 1.0])
def test_error_driven_update_equals_the_published_walk(seed: int, delta: float, interpolated: bool) -> None:
    positives, negatives = lists(seed, ties=seed % 2 == 0)
    found = error_driven_ap(positives, negatives, delta, interpolated)
    value, by_positive, by_negative = oracle.error_driven(positives.tolist(), negatives.tolist(), delta, interpolated)
    assert float(found.value) == pytest.approx(value, abs=1e-14)
    np.testing.assert_allclose(found.positives, by_positive, atol=1e-14)
    np.testing.assert_allclose(found.negatives, by_negative, atol=1e-14)


def test_interpolation_raises_a_low_precision_to_that_of_a_lower_score() -> None:
    """In order: negative, positive, positive. The second precision, 2/3, also counts for the first, 1/2."""
    positives, negatives = torch.tensor([20.0, 10.0]), torch.tensor([30.0])
    assert float(error_driven_ap(positives, negatives, 1.0, False).value) == pytest.approx(1 - (1 / 2 + 2 / 3) / 2)
    assert float(error_driven_ap(positives, negatives, 1.0, True).value) == pytest.approx(1 - 2 / 3)


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
    positives, negatives = torch.randn(2, 17, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    whole = CHUNKED[module](positives, negatives)
    most = {"smooth_ap": 3 * 34, "error_driven": 3 * 34, "soft_rank": 3 * 2 * 17**2}[module]
    chunks = []

    def counted(rows: int, columns: int, usual: int = 0) -> Any:
        chunks.append(len(list(row_chunks(rows, columns, most))))
        return row_chunks(rows, columns, most)

    monkeypatch.setattr(f"experiments.baselines.{module}.row_chunks", counted)
    for one, other in zip(CHUNKED[module](positives, negatives), whole, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-14)
    assert min(chunks) >= 3


@over_seeds(ci=8, nightly=100)
@pytest.mark.parametrize("sigma", [0.2, 1.0])
def test_soft_ap_equals_the_mean_over_all_outcomes(seed: int, sigma: float) -> None:
    positives, negatives = lists(seed, most=4)
    expected = oracle.soft_ap(positives.tolist(), negatives.tolist(), sigma)
    assert float(soft_precision(positives, negatives, sigma).mean()) == pytest.approx(expected, abs=1e-13)


def test_counts_of_fair_coins_are_binomial() -> None:
    found = count_distribution(torch.full((2, 4), 0.5, dtype=torch.float64))
    assert found.tolist() == [[1 / 16, 4 / 16, 6 / 16, 4 / 16, 1 / 16]] * 2


@over_seeds(ci=3, nightly=20)
def test_soft_precision_passes_gradcheck(seed: int) -> None:
    leaves = [s.requires_grad_() for s in lists(seed, most=6)]
    assert torch.autograd.gradcheck(partial(soft_precision, sigma=0.8), leaves)


@over_seeds(ci=4, nightly=40)
def test_gradient_of_the_soft_rank_loss_equals_central_differences(seed: int) -> None:
    positives, negatives = lists(seed, most=5)
    found = TaylorSoftAPLoss(1, sigma=0.7).of_list(positives, negatives)
    by_positive = slopes(lambda p: 1.0 - oracle.soft_ap(p, negatives.tolist(), 0.7), positives, 1e-5)
    by_negative = slopes(lambda n: 1.0 - oracle.soft_ap(positives.tolist(), n, 0.7), negatives, 1e-5)
    np.testing.assert_allclose(found.positives, by_positive, atol=1e-8)
    np.testing.assert_allclose(found.negatives, by_negative, atol=1e-8)


def test_soft_rank_keeps_the_hardest_negatives_only() -> None:
    positives = torch.tensor([0.0, 1.0], dtype=torch.float64)
    negatives = torch.tensor([0.3, -2.0, 0.9, 0.1, -3.0], dtype=torch.float64)
    few = TaylorSoftAPLoss(1, max_windows=5).of_list(positives, negatives)
    alone = TaylorSoftAPLoss(1, max_windows=None).of_list(positives, negatives[[0, 2, 3]])
    assert float(few.value) == pytest.approx(float(alone.value), abs=1e-15)
    assert few.negatives[[1, 4]].tolist() == [0.0, 0.0]
    torch.testing.assert_close(few.negatives[[0, 2, 3]], alone.negatives)


def test_soft_rank_keeps_negatives_even_if_positives_fill_the_list() -> None:
    found = TaylorSoftAPLoss(1, max_windows=4).of_list(torch.zeros(9), torch.tensor([1.0, 2.0, 3.0]))
    assert (found.negatives != 0).tolist() == [False, True, True]
