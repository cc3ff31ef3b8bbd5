"""What a balanced gradient promises: no net push along a shift of the scores, nor, if asked, along their scale."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import stepgrad as sg
from benchmarks.scenes import Scene, clustered_scene
from stepgrad.engine.balance import _remove_scale, balanced
from stepgrad.errors import NonFiniteError


@pytest.fixture(scope="module")
def scene() -> Scene:
    return clustered_scene(images=3, windows=150, classes=4, seed=5)


def gradient_of(scene: Scene, **options: object) -> torch.Tensor:
    scores = [s.double().requires_grad_() for s in scene.scores]
    sg.MAPLoss(4, **options)(scores, scene.boxes, scene.targets).backward()  # type: ignore[arg-type]
    return torch.cat([s.grad for s in scores])  # type: ignore[misc]


@pytest.mark.parametrize("balance", ["class", "class+scale"])
def test_the_pushes_of_every_class_sum_to_zero(scene: Scene, balance: str) -> None:
    gradient = gradient_of(scene, balance=balance)
    assert gradient.abs().sum(0).min() > 0
    assert gradient.sum(0).abs().max() <= 1e-12 * gradient.abs().sum()
    assert gradient_of(scene, balance="none").sum(0).abs().min() > 1e-3


def test_class_scale_leaves_nothing_along_the_scores(scene: Scene) -> None:
    scores = torch.cat(scene.scores).double()
    stretch = (gradient_of(scene, balance="class+scale") * scores).sum(0)
    assert stretch.abs().max() <= 1e-10
    assert (gradient_of(scene, balance="class") * scores).sum(0).abs().min() > 1e-3


def test_class_keeps_the_sign_of_every_push(scene: Scene) -> None:
    raw, mended = gradient_of(scene, balance="none"), gradient_of(scene, balance="class")
    assert torch.equal(raw.sign(), mended.sign())


@pytest.mark.parametrize("balance", ["none", "class", "class+scale"])
def test_no_element_exceeds_the_clip(scene: Scene, balance: str) -> None:
    gradient = gradient_of(scene, balance=balance, clip=0.003)
    assert 0 < gradient.abs().max() <= 0.003 * (1 + 1e-12)


def test_pushes_of_one_sign_leave_nothing() -> None:
    assert balanced(np.array([1.0, 0.0, 2.0])).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("scores", [[2.0, 2.0, 5.0], [1e200, -1e200, 5.0]], ids=["equal", "enormous"])
def test_scores_without_a_finite_spread_keep_their_gradient(scores: list[float]) -> None:
    gradient = np.array([1.0, -1.0, 0.0])
    _remove_scale(gradient, np.array(scores))
    assert gradient.tolist() == [1.0, -1.0, 0.0]


def test_the_stretch_is_taken_out_of_windows_with_a_gradient_only() -> None:
    gradient, scores = np.array([3.0, -1.0, 0.0, -2.0]), np.array([1.0, 2.0, 50.0, 6.0])
    _remove_scale(gradient, scores)
    centred = scores[[0, 1, 3]] - 3.0
    expected = np.array([3.0, -1.0, -2.0])
    expected -= centred * (expected @ centred) / (centred @ centred)
    np.testing.assert_allclose(gradient, [*expected[:2], 0.0, expected[2]], rtol=1e-14)


def test_l4_of_enormous_scores_is_an_error_and_not_an_infinite_loss() -> None:
    boxes = torch.tensor([[0.0, 0, 9, 9], [20.0, 0, 29, 9]])
    target = {"boxes": boxes[:1], "labels": torch.tensor([0])}
    scores = torch.tensor([[1e38], [0.0]], requires_grad=True)
    with pytest.raises(NonFiniteError, match=r"1e\+38.*l4=None"):
        sg.MAPLoss(1, l4=1e-6)([scores], [boxes], [target])
    assert torch.isfinite(sg.MAPLoss(1)([scores], [boxes], [target]))
