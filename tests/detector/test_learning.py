"""The whole point: trained for mAP, the detector reaches it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from stepgrad import mean_average_precision
from stepgrad.detector import FastRCNN, Sampling
from stepgrad.losses.detection import MAPLoss
from tests.detector.scenes import random_windows

CLASSES = 3


def painted_scene(seed: int) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """A grey picture with two squares, whose colour is their class, and windows on, near and off them."""
    generator = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=generator)

    image = draw(90, 166, 3, 96, 96).to(torch.uint8)
    corners = draw(0, 16, 2, 2) + 48 * torch.stack(
        [torch.arange(2), draw(0, 2, 2)], dim=1
    )  # one to the left, one right
    boxes = torch.cat([corners, corners + draw(20, 32, 2, 1)], dim=1)
    labels = draw(0, CLASSES, 2)
    for (x1, y1, x2, y2), label in zip(boxes.tolist(), labels.tolist(), strict=True):
        image[:, y1:y2, x1:x2] = 30
        image[label, y1:y2, x1:x2] = 225
    near = boxes.repeat(6, 1) + draw(-8, 9, 12, 4)
    windows = torch.cat([boxes, near, random_windows(20, seed, 96, 96)]).float().clamp(0, 96)
    return image, windows, {"boxes": boxes.float(), "labels": labels}


def learned(seed: int, score: str, scale: float = 1.0, steps: int = 100) -> tuple[float, float]:
    """mAP on four pictures before and after training on them; `scale` multiplies the gradient."""
    torch.manual_seed(seed)
    images, windows, targets = zip(*(painted_scene(100 * seed + i) for i in range(4)), strict=True)
    model = FastRCNN(CLASSES, "tiny", score=score, loss="map", hidden=64, dropout=0.0, shortest_side=None)
    loss_fn = MAPLoss(CLASSES, absent_classes="skip")
    model.train_for("map", map_loss=loss_fn, sampling=Sampling(None, ground_truth=False))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.0)
    history: list[float] = []
    while len(history) < steps and 1.0 not in history:
        (loss,) = model(images, windows, targets).values()
        history.append(model.metrics["map"])
        if history[-1] < 1.0:
            optimizer.zero_grad()
            (scale * loss).backward()
            optimizer.step()
    scores = model.eval().score_windows(images, windows)
    return history[0], mean_average_precision(scores, windows, targets, absent_classes="skip").map


@pytest.mark.parametrize("score", ["raw", "logprob"])
@pytest.mark.parametrize("seed", range(3))
def test_training_for_map_reaches_it(seed: int, score: str) -> None:
    before, after = learned(seed, score)
    assert before < 0.5
    assert after == 1.0


def test_without_a_gradient_nothing_is_learned() -> None:
    before, after = learned(0, "raw", scale=0.0, steps=5)
    assert after == before < 1.0
