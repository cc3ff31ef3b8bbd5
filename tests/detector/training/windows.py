"""Made-up windows whose features tell where objects are, and a model small enough to train in a moment."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

FEATURES, CLASSES = 6, 3


@dataclass(frozen=True)
class Windows:
    """One entry per image."""

    features: list[Tensor]  # (N, FEATURES)
    boxes: list[Tensor]  # (N, 4)
    targets: list[dict[str, Tensor]]
    num_classes: int = CLASSES

    def __getitem__(self, part: slice) -> Windows:
        return Windows(self.features[part], self.boxes[part], self.targets[part])

    def cut(self, image: int, windows: int) -> Windows:
        """The same with fewer windows in one image."""
        features, boxes = list(self.features), list(self.boxes)
        features[image], boxes[image] = features[image][:windows], boxes[image][:windows]
        return Windows(features, boxes, self.targets)

    def without_objects(self) -> Windows:
        return Windows(self.features, self.boxes, [{k: v[:0] for k, v in t.items()} for t in self.targets])


def made_windows(images: int, windows: int = 12, seed: int = 0, dtype: torch.dtype = torch.float32) -> Windows:
    """A few objects per image; half of the windows lie on one, and their features say so, with noise."""
    generator = torch.Generator().manual_seed(seed)
    parts = [_image(windows + i % 3, generator) for i in range(images)]
    return Windows([p[0].to(dtype) for p in parts], [p[1] for p in parts], [p[2] for p in parts])


def _image(windows: int, generator: torch.Generator) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    corner = torch.rand(3, 2, generator=generator) * 60
    objects = torch.cat([corner, corner + 20 + 20 * torch.rand(3, 2, generator=generator)], dim=1)
    labels = torch.randint(CLASSES, (3,), generator=generator)
    near = torch.randint(3, (windows,), generator=generator)
    on_object = torch.rand(windows, generator=generator) < 0.5
    jitter = 4 * torch.randn(windows, 4, generator=generator)
    boxes = objects[near] + torch.where(on_object[:, None], jitter, jitter + torch.tensor([60.0, 0.0, 60.0, 0.0]))
    features = torch.randn(windows, FEATURES, generator=generator)
    features[torch.arange(windows), labels[near]] += 1.5 * on_object
    return features, boxes, {"boxes": objects, "labels": labels}


def small_model(dropout: float = 0.0, seed: int = 1) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, CLASSES))
