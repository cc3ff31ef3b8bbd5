"""A batch as a detector in training gives it: windows around objects and elsewhere, scores for every class."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from stepgrad.metric.batch import Target

SIDE = 640.0
_OBJECTS = 7  # of an image, as in COCO


@dataclass(frozen=True)
class DeviceScene:
    """Scores, boxes and objects of some images."""

    scores: list[Tensor]
    boxes: list[Tensor]
    targets: list[Target]

    def on(self, device: torch.device) -> DeviceScene:
        """The same with scores and boxes there; scores are new leaves."""
        scores = [s.detach().to(device).requires_grad_() for s in self.scores]
        return replace(self, scores=scores, boxes=[b.to(device) for b in self.boxes])


def draw_scene(
    images: int, windows: int, classes: int, seed: int = 0, dtype: torch.dtype = torch.float32
) -> DeviceScene:
    """Half of the windows lie around objects; these look more like the class of their object than others do."""
    random = torch.Generator().manual_seed(seed)
    scores: list[Tensor] = []
    boxes: list[Tensor] = []
    targets: list[Target] = []
    for _ in range(images):
        objects = _boxes(_OBJECTS, random)
        labels = torch.randint(classes, (_OBJECTS,), generator=random)
        near = torch.randint(_OBJECTS, (windows // 2,), generator=random)
        shift = 20.0 * torch.randn(len(near), 4, generator=random)
        around = _in_order(objects[near] + shift)
        logits = torch.randn(windows, classes, generator=random) - 4.0
        logits[torch.arange(len(near)), labels[near]] += 3.0
        scores.append(logits.to(dtype).requires_grad_())
        boxes.append(torch.cat([around, _boxes(windows - len(near), random)]))
        targets.append({"boxes": objects, "labels": labels})
    return DeviceScene(scores, boxes, targets)


def _boxes(count: int, random: torch.Generator) -> Tensor:
    corners = SIDE * 0.7 * torch.rand(count, 2, generator=random)
    return torch.cat([corners, corners + 20.0 + 0.3 * SIDE * torch.rand(count, 2, generator=random)], dim=1)


def _in_order(boxes: Tensor) -> Tensor:
    """Corners with the lower ones first, a pixel apart at least."""
    low = torch.minimum(boxes[:, :2], boxes[:, 2:])
    return torch.cat([low, torch.maximum(torch.maximum(boxes[:, :2], boxes[:, 2:]), low + 1.0)], dim=1)
