"""Optimizer and schedule against the rules of the original, written out by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from stepgrad.detector.training.config import PhaseConfig
from stepgrad.detector.training.step import learning_rate, make_optimizer, parameter_groups, set_learning_rate


def _model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 3), nn.GroupNorm(1, 3), nn.Linear(3, 1)).double()


def test_biases_learn_twice_as_fast_and_only_weights_decay() -> None:
    model = _model()
    groups = parameter_groups(model, PhaseConfig(weight_decay=0.5))
    by_name = {
        name: group for group in groups for name, p in model.named_parameters() if any(p is q for q in group["params"])
    }
    assert {name: (g["lr_factor"], g["weight_decay"]) for name, g in by_name.items()} == {
        "0.weight": (1, 0.5),
        "0.bias": (2, 0),
        "1.weight": (1, 0),
        "1.bias": (2, 0),
        "2.weight": (1, 0.5),
        "2.bias": (2, 0),
    }


def test_frozen_parameters_are_left_out() -> None:
    model = _model()
    model[0].requires_grad_(False)
    assert sum(len(group["params"]) for group in parameter_groups(model, PhaseConfig())) == 4


def _caffe_sgd(gradients: list[float], rates: list[float], momentum: float) -> float:
    w = v = 0.0
    for g, lr in zip(gradients, rates, strict=True):
        v = momentum * v + lr * g
        w -= v
    return w


@pytest.mark.parametrize("caffe", [True, False])
def test_caffe_momentum_is_caffes_across_a_drop(caffe: bool) -> None:
    phase = PhaseConfig(lr=0.1, momentum=0.9, weight_decay=0.0, drop_every=4, drop_factor=0.1, caffe_momentum=caffe)
    layer = nn.Linear(1, 1, bias=False).double()
    nn.init.zeros_(layer.weight)
    optimizer = make_optimizer(layer, phase)
    gradients = [1.0, -2.0, 0.5, 3.0, 1.0, 0.25, -1.0, 2.0]
    for step, gradient in enumerate(gradients):
        set_learning_rate(optimizer, phase, step)
        layer.weight.grad = torch.full_like(layer.weight, gradient)
        optimizer.step()
    rates = [learning_rate(phase, step) for step in range(len(gradients))]
    expected = _caffe_sgd(gradients, rates, 0.9)
    assert (abs(layer.weight.item() - expected) < 1e-12) == caffe


def test_adamw_takes_the_same_groups() -> None:
    optimizer = make_optimizer(_model(), PhaseConfig(optimizer="adamw", weight_decay=0.1))
    set_learning_rate(optimizer, PhaseConfig(optimizer="adamw", lr=0.5), 0)
    assert [(g["lr"], g["weight_decay"]) for g in optimizer.param_groups] == [(0.5, 0.1), (0.5, 0.0), (1.0, 0.0)]
