"""Step functions and layers on another device give the CPU's numbers."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor

import stepgrad as sg
from tests.accelerators.test_losses import CPU, Place, assert_same, on

LAYERS: list[Any] = [
    sg.layers.Sign(),
    sg.layers.Round(estimator="sde"),
    sg.layers.Threshold(estimator="radius"),
    sg.layers.Staircase([-1.0, 0.0, 2.0], [0.0, 1.0, 3.0, 2.0]),
    sg.layers.UniformQuantizer(0.5, -2.0, 2.0),
    sg.layers.ArgmaxOneHot(),
    sg.layers.Ranks(),
    sg.layers.TopKMask(2),
]


def pulled(layer: Any, place: Place, x: Tensor, *rest: Tensor) -> list[Tensor]:
    """Values and gradient of a weighted sum of them."""
    x = on(place, x)
    y = deepcopy(layer).to(place)(x, *on(place, list(rest)))
    assert (y.device, y.dtype) == (x.device, x.dtype)
    weights = torch.linspace(-1.0, 1.0, y.numel(), dtype=y.dtype).reshape(y.shape).to(place)
    (gradient,) = torch.autograd.grad(y, x, weights)
    assert (gradient.device, gradient.dtype) == (x.device, x.dtype)
    return [y.detach().cpu(), gradient.cpu()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: type(layer).__name__)
def test_layers_are_the_cpus(device: Place, layer: Any, dtype: torch.dtype) -> None:
    x = torch.randn(3, 7, generator=torch.Generator().manual_seed(1)).to(dtype).requires_grad_()
    found, expected = pulled(layer, device, x), pulled(layer, CPU, x)
    assert_same(found[:1], expected[:1])
    # slopes are worked out on the device, by a few operations in double precision, and may be fused there
    torch.testing.assert_close(found[1], expected[1], rtol=4 * torch.finfo(dtype).eps, atol=2.0**-48)


def test_nms_as_a_layer_is_the_cpus(device: Place) -> None:
    random = torch.Generator().manual_seed(2)
    corners = 30 * torch.rand(20, 2, generator=random)
    boxes = torch.cat([corners, corners + 10], dim=1)
    scores = torch.randn(20, generator=random, requires_grad=True)
    layer = sg.layers.NMSLayer()
    assert_same(pulled(layer, device, scores, boxes), pulled(layer, CPU, scores, boxes))


def test_step_functions_of_ones_own_are_the_cpus(device: Place) -> None:
    def accuracy(x: Tensor) -> Tensor:
        return (x.sort().values.flip(0)[:2] > 0.5).double().mean()

    x = torch.tensor([0.1, 0.7, 0.4, 0.9], dtype=torch.float64)
    results = []
    for place in (device, CPU):
        there = x.to(place)
        steps, slopes = sg.find_steps(accuracy, there), sg.pseudogradient(accuracy, there)
        assert slopes.device == there.device
        own = there.detach().requires_grad_()
        sg.step_function(accuracy)(own).backward()
        assert own.grad is not None
        results.append([steps.value.cpu(), steps.up_at.cpu(), steps.down_at.cpu(), slopes.cpu(), own.grad.cpu()])
    assert_same(*results)


def test_closed_forms_are_the_cpus(device: Place) -> None:
    columns = [torch.tensor(v) for v in ([0.0, 1.0], [0.5, 0.25], [1.0, 2.0], [1.0, 0.5], [-0.5, 0.0], [0.0, 0.0])]
    for form in (sg.sde, sg.mee):
        assert_same([form(*on(device, columns)).cpu()], [form(*columns)])
