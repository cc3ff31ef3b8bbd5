"""Truncated SVD of fc6 and fc7: the best approximation of its rank, and the model it came from stays as it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from stepgrad.detector import FastRCNN, compressed
from stepgrad.detector.compress import factors
from stepgrad.errors import ConfigError, NonFiniteError
from tests.detector.scenes import batch, tiny
from tests.double_precision import double_precision

EPS = torch.finfo(torch.float64).eps


def random_weight(outputs: int, inputs: int, seed: int = 0) -> Tensor:
    """A matrix whose singular values fall, as those of trained layers do."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(outputs, inputs, generator=generator, dtype=torch.float64)
    return weight / torch.arange(1, inputs + 1, dtype=torch.float64)


def rounding(weight: Tensor) -> float:
    """Largest error of a few products with orthonormal matrices of these sizes, in the spectral norm.

    A product of n terms is off by n eps at most, relative to the norms of its factors, and eigh's vectors are as far
    from orthonormal; there are three of these.
    """
    return 3 * sum(weight.shape) * EPS * torch.linalg.matrix_norm(weight, 2).item()


@pytest.mark.parametrize("shape", [(12, 30), (30, 12), (16, 16)])
def test_at_full_rank_the_product_is_the_matrix(shape: tuple[int, int]) -> None:
    weight = random_weight(*shape)
    down, up = factors(weight, min(shape))
    assert torch.linalg.matrix_norm(up @ down - weight, 2).item() <= rounding(weight)


@pytest.mark.parametrize("shape", [(12, 30), (30, 12), (16, 16)])
@pytest.mark.parametrize("rank", [1, 5, 11])
def test_no_matrix_of_the_rank_is_closer(shape: tuple[int, int], rank: int) -> None:
    """Eckart and Young: the error is the first singular value left out, and in squares the sum of all left out."""
    weight = random_weight(*shape)
    down, up = factors(weight, rank)
    assert (down.shape, up.shape) == ((rank, shape[1]), (shape[0], rank))
    left_out = np.linalg.svd(weight.numpy(), compute_uv=False)[rank:]
    error = (up @ down - weight).numpy()
    # eigenvalues, squares of singular values, are right up to rounding relative to the largest one
    slack = rounding(weight) * torch.linalg.matrix_norm(weight, 2).item()
    assert np.linalg.norm(error, 2) ** 2 == pytest.approx(left_out[0] ** 2, rel=0, abs=slack)
    assert np.linalg.norm(error) ** 2 == pytest.approx((left_out**2).sum(), rel=0, abs=len(left_out) * slack)


def test_a_model_whose_layers_have_the_rank_detects_the_same() -> None:
    images, proposals, _ = batch(3)
    with double_precision():
        model = tiny().eval()
        with torch.no_grad():
            for layer in (model.head.fc6, model.head.fc7):
                layer.weight.copy_(layer.weight[:, :6] @ layer.weight[:6])
        faster = compressed(model, fc6=6, fc7=6)
        for a, b in zip(model.score_windows(images, proposals), faster.score_windows(images, proposals), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-9)  # scores of size 10, weights up to 1e2 of eps
        for found, other in zip(model(images, proposals), faster(images, proposals), strict=True):
            assert torch.equal(found["boxes"], other["boxes"])
            assert torch.equal(found["labels"], other["labels"])


def test_the_model_stays_as_it_is() -> None:
    model = tiny()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    faster = compressed(model, fc6=4, fc7=None)
    assert model.training
    assert not faster.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert before.keys() == model.state_dict().keys()
    with torch.no_grad():
        for parameter in faster.parameters():
            parameter.zero_()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_only_the_layers_asked_for_change() -> None:
    model = tiny()
    faster = compressed(model, fc6=None, fc7=5)
    assert torch.equal(faster.head.fc6.weight, model.head.fc6.weight)
    first, second = faster.head.get_submodule("fc7")  # type: ignore[misc]  # two layers
    assert (first.weight.shape, second.weight.shape) == ((5, 32), (32, 5))
    assert first.bias is None
    assert torch.equal(second.bias, model.head.fc7.bias)
    assert first.weight.dtype == torch.float32


def test_the_largest_rank_that_is_taken_is_the_last_that_makes_the_layer_smaller() -> None:
    model = tiny()  # fc7 is 32 x 32: 15 * 64 < 1024 = 16 * 64
    smaller = compressed(model, fc6=None, fc7=15).head.get_submodule("fc7")
    assert sum(p.numel() for p in smaller.parameters() if p.ndim == 2) < 32 * 32
    with pytest.raises(ConfigError, match=r"rank of fc7 to be at most 15 but got 16"):
        compressed(model, fc6=None, fc7=16)


@pytest.mark.parametrize("rank", [0, -1, 2.0, True, "8"])
def test_ranks_are_whole_numbers_from_1(rank: Any) -> None:
    with pytest.raises(ConfigError, match=r"the rank of fc6 to be a whole number >= 1"):
        compressed(tiny(), fc6=rank, fc7=None)


def test_a_compressed_model_is_not_compressed_again() -> None:
    faster = compressed(tiny(), fc6=4, fc7=4)
    with pytest.raises(ConfigError, match=r"fc6: .*compressed already"):
        compressed(faster, fc6=2, fc7=2)


def test_weights_that_are_not_finite_are_named() -> None:
    model: FastRCNN = tiny()
    with torch.no_grad():
        model.head.fc7.weight[3, 4] = float("nan")
    with pytest.raises(NonFiniteError, match="finite weights"):
        compressed(model, fc6=4, fc7=4)
