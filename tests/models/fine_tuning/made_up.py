"""Images with windows that a small head can learn from."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from stepgrad.models.fine_tuning import ImageWindows

CLASSES = 2
FEATURES = 5


def image(seed: int, windows: int = 14) -> ImageWindows:
    """The first windows show the objects, more or less; their features say so, more or less."""
    g = torch.Generator().manual_seed(seed)
    corner = 60 * torch.rand(windows, 2, generator=g)
    boxes = torch.cat([corner, corner + 20 + 10 * torch.rand(windows, 2, generator=g)], dim=1)
    labels = torch.randint(CLASSES, (3,), generator=g)
    features = torch.randn(windows, FEATURES, generator=g)
    features[torch.arange(3), labels] += 2.0
    shift = 4 * torch.rand(3, 1, generator=g)
    return ImageWindows(features, boxes, {"boxes": boxes[:3] + shift, "labels": labels})


def images(first: int, count: int) -> list[ImageWindows]:
    return [image(seed) for seed in range(first, first + count)]


def new_head(seed: int = 0, outputs: int = CLASSES) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, outputs))


def weights(head: nn.Module) -> list[list[float]]:
    return [weight.detach().flatten().tolist() for weight in head.state_dict().values()]


TRAIN, VAL, TEST = images(0, 24), images(100, 10), images(200, 10)
SMALL: dict[str, Any] = {"steps": 3, "images_per_step": 8, "rates": [3e-3], "stock_rates": [1e-3], "seeds": [0, 1]}
