"""Small pictures, windows and models for the detector's tests."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stepgrad.detector import FastRCNN

K = 3


def random_windows(count: int, seed: int = 0, width: int = 96, height: int = 80) -> Tensor:
    """(count, 4) whole-numbered windows inside the picture, at least 6 pixels long each way."""
    generator = torch.Generator().manual_seed(seed)
    sides = torch.randint(6, 40, (count, 2), generator=generator)
    room = torch.tensor([width, height]) - sides
    corners = (torch.rand(count, 2, generator=generator) * room).floor()
    return torch.cat([corners, corners + sides], dim=1).float()


def random_image(seed: int = 0, width: int = 96, height: int = 80) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (3, height, width), generator=generator, dtype=torch.uint8)


def random_target(seed: int = 0, objects: int = 2) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "boxes": random_windows(objects, seed + 1000),
        "labels": torch.randint(K, (objects,), generator=generator),
        "difficult": torch.zeros(objects, dtype=torch.bool),
    }


def tiny(seed: int = 0, **options: Any) -> FastRCNN:
    """A model that differs from others only in what is asked for; spread-out scores, so that rankings mean something."""
    torch.manual_seed(seed)
    model = FastRCNN(K, **{"backbone": "tiny", "hidden": 32, "dropout": 0.0, "shortest_side": None, **options})
    with torch.no_grad():
        model.head.scores.weight.mul_(50)
    return model


def batch(count: int, windows: int = 30, seed: int = 0) -> tuple[list[Tensor], list[Tensor], list[dict[str, Tensor]]]:
    """Images, proposals and targets."""
    seeds = range(seed, seed + count)
    images = [random_image(s) for s in seeds]
    return images, [random_windows(windows, s) for s in seeds], [random_target(s) for s in seeds]
