"""Optimizers and schedules by the rules of the original Fast R-CNN."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from stepgrad.train.config import PhaseConfig

BIAS_LR = 2.0
"""Biases learn twice as fast in the original, and do not decay."""


def parameter_groups(model: nn.Module, phase: PhaseConfig) -> list[dict[str, Any]]:
    """Trainable parameters: those that decay, and biases and scales of normalisation, which do not."""
    trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    weights = [p for _, p in trainable if p.ndim > 1]
    scales = [p for name, p in trainable if p.ndim <= 1 and not name.endswith("bias")]
    biases = [p for name, p in trainable if p.ndim <= 1 and name.endswith("bias")]
    groups = [(weights, 1.0, phase.weight_decay), (scales, 1.0, 0.0), (biases, BIAS_LR, 0.0)]
    return [{"params": p, "lr_factor": factor, "weight_decay": decay} for p, factor, decay in groups if p]


def make_optimizer(model: nn.Module, phase: PhaseConfig) -> torch.optim.Optimizer:
    """A fresh optimizer for the trainable parameters."""
    groups = parameter_groups(model, phase)
    if phase.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=phase.lr)
    return torch.optim.SGD(groups, lr=phase.lr, momentum=phase.momentum)


def learning_rate(phase: PhaseConfig, step: int) -> float:
    """The rate of a step of the phase, counted from 0.

    >>> phase = PhaseConfig(lr=1.0, drop_every=10, warmup=2)
    >>> [round(learning_rate(phase, step), 3) for step in (0, 1, 9, 10, 20)]
    [0.5, 1.0, 1.0, 0.1, 0.01]
    """
    drops = 0 if phase.drop_every is None else step // phase.drop_every
    rise = min(1.0, (step + 1) / phase.warmup) if phase.warmup else 1.0
    return phase.lr * phase.drop_factor**drops * rise


def set_learning_rate(optimizer: torch.optim.Optimizer, phase: PhaseConfig, step: int) -> float:
    """Set the rate of a step; returns it."""
    rate = learning_rate(phase, step)
    if phase.caffe_momentum and phase.optimizer == "sgd" and step > 0:
        _rescale_velocity(optimizer, learning_rate(phase, step - 1) / rate)
    for group in optimizer.param_groups:
        group["lr"] = rate * group["lr_factor"]
    return rate


def _rescale_velocity(optimizer: torch.optim.Optimizer, ratio: float) -> None:
    """Caffe's velocity contains the rate it was gathered at; PyTorch's does not."""
    if ratio == 1.0:
        return
    for state in optimizer.state.values():
        if state.get("momentum_buffer") is not None:
            state["momentum_buffer"].mul_(ratio)
