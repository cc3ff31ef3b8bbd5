"""How strongly mAP pulls at a stock model's weights next to its own losses, which says what weight to give it."""

from __future__ import annotations

import statistics
from typing import Any

import torch
from torch import Tensor, nn

from stepgrad.models.torchvision import restore, train_for_map

Batch = tuple[list[Tensor], list[dict[str, Any]]]


def lengths(model: nn.Module, batches: list[Batch]) -> dict[str, float]:
    """Mean length of the gradient in all weights, by entry of the loss dict; mAP ("loss_map") at weight 1."""
    train_for_map(model.train(), weight=1.0, absent_classes="skip")
    weights = [p for p in model.parameters() if p.requires_grad]
    found: dict[str, list[float]] = {}
    for given in batches:
        for name, loss in model(*given).items():
            found.setdefault(name, []).append(_length(loss, weights))
    restore(model)
    return {name: statistics.mean(values) for name, values in found.items()}


def _length(loss: Tensor, weights: list[nn.Parameter]) -> float:
    parts = torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True)
    return float(torch.stack([part.norm() for part in parts if part is not None]).norm())
