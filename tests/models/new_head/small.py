"""Images and options with which a new head is trained in a second."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tests.models.tiny import tiny_batch

QUICK: dict[str, Any] = {
    "start_steps": 4,
    "start_rates": [1e-2],
    "weight_decays": [0.0],
    "steps": 2,
    "images_per_step": 4,
    "rates": [1e-2],
    "stock_rates": [1e-2],
    "seeds": [0, 1],
    "protocol": "voc12",
    "windows": 40,
    "others": 10,
    "progress": False,
}


def pairs(count: int, seed: int) -> list[tuple[Tensor, dict[str, Tensor]]]:
    images, targets = tiny_batch("retinanet", count, seed)  # whose labels count from 0
    return list(zip(images, targets, strict=True))


TRAIN, VAL = pairs(6, seed=1), pairs(4, seed=2)
