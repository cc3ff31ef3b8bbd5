"""Images that no training sees, and how well a detector does on them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import nn

import stepgrad as sg
from experiments.endless.families import CLASS_NAMES, Family
from stepgrad.data import FreshImage, ShapesDataset

PROTOCOLS = ["voc12", "coco"]
"""Area under the precision-recall curve at IoU 0.5; COCO's AP."""


@cache
def held_out(split: str, length: int, seed: int = 0, task: str = "boxes") -> list[FreshImage]:
    """The first images of a split, in memory: "val" to choose by, "test" to look at once."""
    data = ShapesDataset(split, length=length, seed=seed, task=task)
    return [FreshImage(i, data[i][0], data.windows(i), data.target(i)) for i in range(length)]


@torch.no_grad()
def evaluate(family: Family, model: nn.Module, images: Sequence[FreshImage]) -> dict[str, float]:
    """mAP by protocol, from 0 to 1, of what the family's task says; the model's mode is as it was."""
    evaluator = sg.Evaluator(len(CLASS_NAMES), PROTOCOLS, task=family.task, empty_boxes="count")
    training = model.training
    model.eval()
    for image in images:
        evaluator.update([family.detect(model, image)], [image.target])
    model.train(training)
    result = evaluator.compute()
    return {name: float(result[name].map) for name in PROTOCOLS}
