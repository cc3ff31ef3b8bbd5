"""Small made worlds of detections: right ones, loose ones and false alarms around random objects."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from stepgrad.models.rescore import train

CLASSES = 2
World = tuple[list[dict[str, Any]], list[dict[str, Any]], list[Tensor]]


def shorten(monkeypatch: pytest.MonkeyPatch, steps: int = 40, metric_steps: int = 3) -> None:
    """Fewer steps than are good."""
    monkeypatch.setattr(train, "LEAST_STEPS", steps)
    monkeypatch.setattr(train, "METRIC_STEPS", metric_steps)


def world(images: int, seed: int, objects: int = 3) -> World:
    """Detections, objects, and a feature per detection that says how well it fits; scores say nothing of that."""
    generator = torch.Generator().manual_seed(seed)
    detections, targets, features = [], [], []
    for _ in range(images):
        low = torch.rand(objects, 2, generator=generator) * 80
        boxes = torch.cat([low, low + 10 + torch.rand(objects, 2, generator=generator) * 20], dim=1)
        labels = torch.randint(CLASSES, (objects,), generator=generator)
        loose = torch.rand(2 * objects, generator=generator)
        again = boxes.repeat(2, 1)
        size = (again[:, 2:] - again[:, :2]).repeat(1, 2)
        moved = again + loose[:, None] * size * torch.tensor([0.5, 0.5, 0.5, 0.5])
        found = {
            "boxes": moved,
            "scores": torch.rand(2 * objects, generator=generator) * 0.9 + 0.05,
            "labels": labels.repeat(2),
        }
        detections.append(found)
        targets.append({"boxes": boxes, "labels": labels})
        features.append(loose[:, None])
    return detections, targets, features
