"""Fresh scores without fresh images: each part of the training images is scored by a head of the other parts.

A head that knows its training images by heart ranks them almost right, and mAP would learn the outliers that are left. What is
learnt on fresh scores is a correction, which then sits on the head of all images.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from stepgrad.errors import InputError
from stepgrad.models.fine_tuning.training import outputs_of
from stepgrad.models.fine_tuning.windows import ImageWindows, Labelled

Refit = Callable[[list[ImageWindows]], nn.Module]
"""Trains a new head on the images it is given."""


class Correction(nn.Module):
    """Adds to the outputs of a head, which come as the last columns of its features; at first nothing."""

    def __init__(self, inputs: int, outputs: int, units: int) -> None:
        super().__init__()
        self.outputs = outputs
        self.hidden, self.output = nn.Linear(inputs, units), nn.Linear(units, outputs)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def forward(self, features: Tensor) -> Tensor:
        corrected: Tensor = features[:, -self.outputs :] + self.output(self.hidden(features).relu())
        return corrected


class Corrected(nn.Module):
    """A head, and the correction that sits on it."""

    def __init__(self, head: nn.Module, correction: nn.Module) -> None:
        super().__init__()
        self.head, self.correction = head, correction

    def forward(self, features: Tensor) -> Tensor:
        corrected: Tensor = self.correction(torch.cat([features, self.head(features)], dim=1))
        return corrected


def fresh_outputs(images: Sequence[Labelled], refit: Refit, folds: int) -> list[Labelled]:
    """The images, each with the outputs of a head that was not trained on it as further features."""
    if not 2 <= folds <= len(images):
        raise InputError(f"Expected folds to be from 2 to the number of images, {len(images)}, but got {folds}.")
    with_outputs: dict[int, Labelled] = {}
    for fold in range(folds):
        others = [ImageWindows(i.features, i.boxes, i.target) for n, i in enumerate(images) if n % folds != fold]
        head = refit(others)
        for number in range(fold, len(images), folds):
            with_outputs[number] = _with_outputs(head, images[number])
    return [with_outputs[number] for number in range(len(images))]


@torch.no_grad()
def _with_outputs(head: nn.Module, image: Labelled) -> Labelled:
    outputs = outputs_of(head.eval(), [image]).to(image.features.device, image.features.dtype)
    return replace(image, features=torch.cat([image.features, outputs], dim=1))
