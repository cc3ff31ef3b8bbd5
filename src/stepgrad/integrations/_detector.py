"""What all torchvision detectors share: checks at the door, and the loss dict with mAP in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stepgrad.errors import ConfigError, InputError, real_number, whole_number
from stepgrad.integrations._labels import check_int64
from stepgrad.integrations._specialise import Specialised
from stepgrad.integrations._switch import MapLossSwitch
from stepgrad.losses.map_loss import MAPLoss
from stepgrad.losses.ragged import Candidates, ragged_map_loss
from stepgrad.metric.batch import Target

MAP_KEY = "loss_map"  # what "mix" adds to the loss dict


def wide(values: Tensor) -> Tensor:
    """The same numbers in at least float32: half precision ties scores that differ."""
    return values if values.dtype == torch.float64 else values.float()


@dataclass(frozen=True)
class Selection:
    """Which windows take part; see `train_for_map`."""

    windows_per_image: int | None = None
    topk: int | None = None
    score_thresh: float = 0.0
    keep_positives: bool = True

    def __post_init__(self) -> None:
        for name, number in (("windows_per_image", self.windows_per_image), ("topk", self.topk)):
            if number is not None:
                whole_number(name, number, least=1)
        if not 0.0 <= real_number("score_thresh", self.score_thresh) < 1.0:
            raise ConfigError(f"Expected score_thresh to be a probability in [0, 1) but got {self.score_thresh!r}.")


class DetectorSwitch(MapLossSwitch):
    """The switch of a torchvision detector: losses are entries of its loss dict."""

    loss_fn: MAPLoss

    def __init__(self, loss_fn: MAPLoss, selection: Selection, first_label: int, **options: Any) -> None:
        super().__init__(loss_fn, **options)
        self.selection, self.first_label = selection, first_label

    @property
    def replacing(self) -> bool:
        """Whether nobody needs the model's own classification loss."""
        return self.enabled and self.mode == "replace"

    def present(self, targets: Sequence[Target]) -> Tensor:
        """The columns of classes with objects in the batch, in ascending order: the only ones that are ranked."""
        return torch.cat([t["labels"] for t in targets]).unique() - self.first_label

    def put_into(
        self,
        losses: dict[str, Tensor],
        key: str,
        targets: Sequence[Target],
        find_candidates: Callable[[], Candidates],
    ) -> dict[str, Tensor]:
        """The loss dict to train with, given the model's own; `key` is its classification loss."""
        if not self.needed:
            return losses
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.enabled):
            loss = self.weight * ragged_map_loss(self.loss_fn, find_candidates(), self._columns(targets))
        self.metrics = self.loss_fn.metrics
        if not self.enabled:
            return losses
        return losses | {key if self.mode == "replace" else MAP_KEY: loss}

    def check_columns(self, columns: int) -> None:
        """Raise unless the model has a column for each class of the loss."""
        if columns != self.loss_fn.num_classes:
            raise InputError(
                f"Expected scores of {self.loss_fn.num_classes} classes, as train_for_map found or was given them, but "
                f"the model has {columns} (background not counted); call train_for_map after changing the model's head."
            )

    def _columns(self, targets: Sequence[Target]) -> list[Target]:
        return [
            {
                "labels": target["labels"] - self.first_label,
                **{key: target[key] for key in ("boxes", "difficult", "iscrowd") if key in target},
            }
            for target in targets
        ]


class Detector(Specialised):
    """Mixin of a whole model: bad targets end the call before any work, and the loss can be reached."""

    map_loss_switch: DetectorSwitch

    @property
    def map_loss(self) -> MAPLoss:
        """The loss; its `metrics` are those of the last training batch."""
        return self.map_loss_switch.loss_fn

    def check_call(self, images: Sequence[Tensor], targets: Sequence[Target] | None) -> None:
        """Raise InputError unless the call asks for what the mode gives: losses in training, else detections."""
        if self.training:
            switch = self.map_loss_switch
            check_targets(targets, len(images), switch.first_label, switch.first_label + switch.loss_fn.num_classes)
        elif targets is not None:
            raise InputError(
                "Expected no targets in eval mode, where the model gives detections and no loss; call model.train() "
                "first to train, or leave the targets out to detect."
            )


def check_targets(targets: Any, images: int, first: int, end: int) -> None:
    """Raise InputError unless there is, for every image, a dict with boxes and with labels in [first, end)."""
    if not isinstance(targets, (list, tuple)) or len(targets) != images:
        came = f"{len(targets)}" if isinstance(targets, (list, tuple)) else type(targets).__name__
        raise InputError(f"Expected targets to be a list with one dict for each of {images} images but got {came}.")
    for i, target in enumerate(targets):
        missing = [key for key in ("boxes", "labels") if not isinstance(target, Mapping) or key not in target]
        if missing:
            keys = sorted(target) if isinstance(target, Mapping) else type(target).__name__
            raise InputError(
                f"image {i}: expected targets with 'boxes' (G, 4) and 'labels' (G,) but {missing[0]!r} is not in {keys}; "
                "an image without objects has tensors of no rows."
            )
        _check_labels(target["labels"], i, first, end)


def _check_labels(labels: Any, image: int, first: int, end: int) -> None:
    check_int64("labels", labels, image)
    outside = (labels < first) | (labels >= end)
    if outside.any():
        wrong = int(labels[outside][0])
        hint = (
            "; 0 is this model's background: count the classes from 1"
            if wrong == 0
            else ", as many as the model has columns"
        )
        raise InputError(f"image {image}: expected labels in [{first}, {end}) but got {wrong}{hint}.")
