"""Draws the windows of an image for a training step, and labels them (Fast R-CNN, Sec. 2.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torchvision.ops import box_iou

from stepgrad.errors import ConfigError

FOREGROUND_OVERLAP = 0.5
"""IoU with an object from which on a window shows it."""


@dataclass(frozen=True)
class Sampling:
    """The rule by which windows are drawn from each image; the defaults are the original's."""

    windows: int | None = 64
    """Number of windows per image, or as many as there are; None: all of them, whatever the other options say."""
    foreground: float | None = 0.25
    """Largest share of windows on objects (IoU >= 0.5); None: drawn without regard to objects."""
    background_overlap: float = 0.1
    """Least IoU with an object of the other windows; 0: any. Not used if `foreground` is None."""
    ground_truth: bool = True
    """Whether the boxes of the objects count as windows, too."""

    def __post_init__(self) -> None:
        if self.windows is not None and self.windows < 1:
            raise ConfigError(f"Expected windows to be at least 1 or None but got {self.windows!r}.")
        if self.foreground is not None and not 0.0 <= self.foreground <= 1.0:
            raise ConfigError(f"Expected foreground to be a share from 0 to 1 or None but got {self.foreground!r}.")
        if not 0.0 <= self.background_overlap <= FOREGROUND_OVERLAP:
            raise ConfigError(f"Expected background_overlap in [0, 0.5] but got {self.background_overlap!r}.")


class Sample(NamedTuple):
    """The windows drawn from one image."""

    windows: Tensor  # (N, 4)
    labels: Tensor  # (N,) int64: the class shown, K for background
    positives: int  # windows on objects
    boxes: Tensor = torch.zeros(0, 4)  # (N, 4) the box of the object that each window overlaps most, or its own


def sample_windows(
    windows: Tensor,
    object_boxes: Tensor,
    object_labels: Tensor,
    num_classes: int,
    sampling: Sampling,
    generator: torch.Generator | None = None,
) -> Sample:
    """Draw windows of one image, all tensors on the CPU.

    A window shows the object it overlaps most (of equals the first) if their IoU is at least 0.5, else background.

    >>> boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0], [0.0, 0.0, 10.0, 8.0], [50.0, 50.0, 60.0, 60.0]])
    >>> sample_windows(boxes, boxes[:1], torch.tensor([3]), 20, Sampling(windows=None, ground_truth=False)).labels
    tensor([ 3,  3, 20])
    """
    if sampling.ground_truth:
        windows = torch.cat([object_boxes.to(windows.dtype), windows])
    overlap, labels, which = label_windows(windows, object_boxes, object_labels, num_classes)
    chosen = _choose(overlap, sampling, generator)
    labels = labels[chosen]
    boxes = object_boxes[which[chosen]].to(windows.dtype) if len(object_boxes) else windows[chosen]
    return Sample(windows[chosen], labels, int((labels < num_classes).sum()), boxes)


def label_windows(
    windows: Tensor, object_boxes: Tensor, object_labels: Tensor, num_classes: int
) -> tuple[Tensor, Tensor, Tensor]:
    """(N,) largest IoU with an object, in float64; the object's class, or background; which object: of equals the first."""
    if len(object_boxes) == 0:
        none = torch.zeros(len(windows), dtype=torch.long)
        return none.double(), none + num_classes, none
    overlap, which = box_iou(windows.double(), object_boxes.double()).max(dim=1)
    labels = torch.where(overlap >= FOREGROUND_OVERLAP, object_labels[which], num_classes)
    return overlap, labels, which


def _choose(overlap: Tensor, sampling: Sampling, generator: torch.Generator | None) -> Tensor:
    if sampling.windows is None:
        return torch.arange(len(overlap))
    if sampling.foreground is None:
        return _draw(torch.arange(len(overlap)), sampling.windows, generator)
    shows_object = overlap >= FOREGROUND_OVERLAP
    most = round(sampling.foreground * sampling.windows)
    foreground = _draw(shows_object.nonzero().flatten(), most, generator)
    background = (~shows_object & (overlap >= sampling.background_overlap)).nonzero().flatten()
    return torch.cat([foreground, _draw(background, sampling.windows - len(foreground), generator)])


def _draw(indices: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    """At most `count` of the indices, without replacement; all of them, in order, where there are no more."""
    if len(indices) <= count:
        return indices
    return indices[torch.randperm(len(indices), generator=generator)[:count]]
