"""A small box regressor on the windows of a frozen detector, and the classical loss for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.ops import box_iou

from stepgrad.data.base import DatasetTarget
from stepgrad.data.images import image_to_tensor
from stepgrad.data.shapes.dataset import ShapesDataset
from stepgrad.detector import FastRCNN
from stepgrad.detector.pooling import pool_windows

PROJECTED = 512
SCALE = (0.1, 0.1, 0.2, 0.2)
"""Fast R-CNN's spread of the offsets: what an output of 1 means."""
LARGEST = 1.0
"""Bound on the offsets, in sides and in log sides."""


class BoxHead(nn.Module):
    """Offsets (dx, dy in sides, dw, dh in log sides) of windows from their features; none at first."""

    def __init__(self, features: int, hidden: int = 128) -> None:
        super().__init__()
        last = nn.Linear(hidden, 4)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.layers = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), last)

    def forward(self, features: Tensor) -> Tensor:
        """(N, 4) offsets."""
        return (self.layers(features) * features.new_tensor(SCALE)).clamp(-LARGEST, LARGEST)


def moved(windows: Tensor, offsets: Tensor) -> Tensor:
    """The windows after their offsets.

    >>> moved(torch.tensor([[0.0, 0.0, 10.0, 20.0]]), torch.tensor([[0.1, 0.0, 0.0, 0.0]]))
    tensor([[ 1.,  0., 11., 20.]])
    """
    side = windows[:, 2:] - windows[:, :2]
    centre = windows[:, :2] + side / 2 + offsets[:, :2] * side
    half = side * offsets[:, 2:].exp() / 2
    return torch.cat([centre - half, centre + half], dim=1)


def offsets_to(windows: Tensor, objects: Tensor) -> Tensor:
    """The offsets that make each window its object."""
    side, wanted = windows[:, 2:] - windows[:, :2], objects[:, 2:] - objects[:, :2]
    shift = (objects[:, :2] + wanted / 2 - windows[:, :2] - side / 2) / side
    return torch.cat([shift, (wanted / side).log()], dim=1)


@dataclass(frozen=True)
class Images:
    """The windows of some images with what the frozen detector makes of them."""

    windows: Sequence[Tensor]  # (N, 4) each
    features: Sequence[Tensor]  # (N, PROJECTED): for the box head
    hidden: Sequence[Tensor]  # (N, H): what the last layer sees
    targets: Sequence[DatasetTarget]

    def __len__(self) -> int:
        return len(self.windows)

    def part(self, chosen: Sequence[int]) -> Images:
        lists = (self.windows, self.features, self.hidden, self.targets)
        return Images(*([whole[i] for i in chosen] for whole in lists))  # type: ignore[arg-type]

    def scores(self, layer: nn.Linear) -> list[Tensor]:
        """Log-probabilities of the classes, (N, K) each; background is the last column."""
        joined = F.log_softmax(layer(torch.cat(list(self.hidden))).double(), dim=1)[:, :-1]
        return list(joined.split([len(w) for w in self.windows]))

    def boxes(self, head: BoxHead | None) -> list[Tensor]:
        """The windows where the box head moves them; in place without one."""
        if head is None:
            return list(self.windows)
        joined = moved(torch.cat(list(self.windows)), head(torch.cat(list(self.features))))
        return list(joined.split([len(w) for w in self.windows]))


@torch.no_grad()
def load_images(model: FastRCNN, split: str, count: int, seed: int = 0) -> Images:
    """The first images of a split of `shapes` through a detector."""
    data = ShapesDataset(split, length=count)
    generator = torch.Generator().manual_seed(seed)
    projection = torch.randn(model.head.fc6.in_features, PROJECTED, generator=generator) / PROJECTED**0.5
    windows, features, hidden = [data.windows(i) for i in range(count)], [], []
    for i, own in enumerate(windows):
        (pooled,) = pool_windows(model.extract([image_to_tensor(data.image(i))]), [own], model.geometry, model.pool)
        features.append(pooled @ projection)
        hidden.append(F.relu(model.head.fc7(F.relu(model.head.fc6(pooled)))))
    spread = torch.cat(features).std()
    return Images(windows, [f / spread for f in features], hidden, [data.target(i) for i in range(count)])


def offset_loss(head: BoxHead, images: Images) -> Tensor:
    """Smooth L1 between the outputs and the offsets of windows with an IoU of 0.5 or more, per such window."""
    given, wanted = [], []
    for own, features, target in zip(images.windows, images.features, images.targets, strict=True):
        if len(target["boxes"]):
            overlap, which = box_iou(own, target["boxes"]).max(dim=1)
            shows = overlap >= 0.5
            given.append(head(features[shows]))
            wanted.append(offsets_to(own[shows], target["boxes"][which[shows]]))
    if not given:
        return torch.zeros(())
    scale = torch.tensor(SCALE)
    total = F.smooth_l1_loss(torch.cat(given) / scale, torch.cat(wanted) / scale, reduction="sum")
    return total / max(sum(len(g) for g in given), 1)
