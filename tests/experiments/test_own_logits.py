"""Bounds of better scores, and scores changed by a look at the neighbours."""

from __future__ import annotations

import pytest
import torch

from experiments.yolo import own_logits
from experiments.yolo.own_logits import (
    CLASSES,
    Found,
    Rescorer,
    bounds,
    detect,
    exact,
    fit,
    measure,
    regress,
)
from stepgrad.losses.detection import MAPLoss
from stepgrad.models.fine_tuning import ImageWindows


def scene(seed: int) -> tuple[ImageWindows, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    low = torch.rand(3, 2, generator=generator) * 100
    objects = torch.cat([low, low + 30], dim=1)
    labels = torch.randint(3, (3,), generator=generator)
    windows = objects.repeat(4, 1) + 3 * torch.randn(12, 4, generator=generator)
    no = torch.zeros(3, dtype=torch.bool)
    target = {"boxes": objects, "labels": labels, "difficult": no, "iscrowd": no}
    return ImageWindows(torch.zeros(12, 1), windows, target), torch.randn(12, CLASSES, generator=generator)


def found(seed: int) -> Found:
    return detect(*scene(seed))


def test_no_oracle_is_worse_than_the_scores_as_they_are() -> None:
    images, logits = zip(*(scene(seed) for seed in range(10)), strict=True)
    values = [value["coco"] for value in bounds(images, logits).values()]
    assert values[0] == min(values)
    assert values[-1] == max(values)


def test_a_new_network_changes_no_score() -> None:
    images = [found(0), found(1)]
    for image, scores in zip(images, Rescorer().eval()(images), strict=True):
        assert torch.equal(image.logits, scores)


def test_both_losses_teach_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_logits, "IMAGES_PER_STEP", 4)
    images = [found(seed) for seed in range(4)]
    torch.manual_seed(0)
    before = measure(Rescorer().eval(), images)["coco"]
    for loss in (regress, exact(MAPLoss(CLASSES, "coco", nms_threshold=None))):
        assert measure(fit(Rescorer(), images, loss, 150, 3e-3, 0), images)["coco"] > before
