"""MAPLoss at its edges: one class, narrow dtypes, and scores the L4 term cannot hold."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import stepgrad as sg
from stepgrad.errors import NonFiniteError
from stepgrad.losses.objective import loss_precision
from stepgrad.plain_tensors import narrowed
from stepgrad.reference.map_loss import batch_gradient
from stepgrad.reference.mean_ap import batch_map
from tests.oracles.options import Options
from tests.scenes import random_batch


@pytest.mark.parametrize("absent", ["zero", "skip"])
@pytest.mark.parametrize("log", [True, False])
def test_gradient_of_a_single_class_is_its_whole_slope(log: bool, absent: str) -> None:
    batch = random_batch(np.random.default_rng(70), windows=30, images=2, objects=12)
    options = Options("voc12", 0.3, estimator="mee", min_step=0.1, absent_classes=absent)
    scores, boxes, targets = batch.tensors(requires_grad=True)
    sg.MAPLoss(1, **options.for_gradient(), log=log, eps=0.01)(scores, boxes, targets).backward()
    outer = -1.0 / (batch_map(batch, options) + 0.01) if log else -1.0
    assert any(s.grad.any() for s in scores)
    for s, slope in zip(scores, batch_gradient(batch, options), strict=True):
        np.testing.assert_allclose(s.grad.numpy(), outer * slope, rtol=1e-12, atol=1e-15)


def test_class_that_counts_alone_is_not_diluted_by_those_left_out() -> None:
    batch = random_batch(np.random.default_rng(71), windows=30, images=2, objects=12)
    wide = batch.with_scores([np.concatenate([s, s, s], axis=1) for s in batch.scores])
    gradients = []
    for scene in (batch, wide):
        scores, boxes, targets = scene.tensors(requires_grad=True)
        sg.MAPLoss(scene.K, absent_classes="skip")(scores, boxes, targets).backward()
        gradients.append([s.grad[:, 0] for s in scores])
    for one, of_three in zip(*gradients, strict=True):
        assert torch.equal(one, of_three)


def test_numbers_beyond_a_narrow_dtype_become_its_largest() -> None:
    gradient = torch.tensor([[1e6, -1e6, 2.5, float(torch.finfo(torch.float16).max)]], dtype=torch.float64)
    largest = torch.finfo(torch.float16).max
    assert narrowed(gradient, torch.float16).tolist() == [[largest, -largest, 2.5, largest]]
    assert narrowed(gradient, torch.float32).tolist() == gradient.tolist()
    huge = torch.tensor([1e300, -1e300], dtype=torch.float64)
    assert narrowed(huge, torch.float32).isfinite().all()
    assert torch.equal(narrowed(huge, torch.float64), huge)
    assert narrowed(torch.zeros(3, 2, dtype=torch.float64).T, torch.float32).is_contiguous()


def test_loss_is_double_for_double_scores_and_single_otherwise() -> None:
    dtypes = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
    assert [loss_precision(d) for d in dtypes] == [torch.float32, torch.float32, torch.float32, torch.float64]


L4_LIMITS = {  # l4, number of scores, largest score that passes, smallest that does not, dtype
    "sum of fourth powers, single": (1.0, 2, 3.6e9, 3.7e9, torch.float32),  # (max / 2) ** (1 / 4) = 3.612e9
    "sum of fourth powers, double": (1.0, 1, 1.15e77, 1.16e77, torch.float64),  # max ** (1 / 4) = 1.158e77
    "gradient, half": (0.25, 1, 40.3, 40.4, torch.float16),  # 65504 ** (1 / 3) = 40.31
    "weight of the gradient": (1e-3, 1, 253.0, 255.0, torch.float16),  # (65504 / 0.004) ** (1 / 3) = 253.9
}


@pytest.mark.parametrize("case", L4_LIMITS)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_l4_is_refused_exactly_where_it_would_overflow(case: str, sign: float) -> None:
    l4, count, passes, fails, dtype = L4_LIMITS[case]
    for score, expected in ((passes, True), (fails, False)):
        scores = np.full((count, 1), sign * score)
        scores[1:] = 0.0  # the bound takes the largest for all
        if expected:
            sg.MAPLoss(1, l4=l4).objective.check_l4(scores, dtype)
            continue
        with pytest.raises(NonFiniteError, match=f"the largest of {count} is"):
            sg.MAPLoss(1, l4=l4).objective.check_l4(scores, dtype)


def test_no_scores_at_all_cannot_overflow() -> None:
    sg.MAPLoss(1, l4=1e30).objective.check_l4(np.zeros((0, 3)), torch.float16)
