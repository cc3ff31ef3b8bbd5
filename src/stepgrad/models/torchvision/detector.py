"""What torchvision's detectors share when they train for mAP: options, checks of the targets, the loss dict with mAP in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from stepgrad.errors import ConfigError, InputError, real_number, whole_number
from stepgrad.losses.detection import DetectionLoss
from stepgrad.losses.ragged import ScoredPairs, ragged_map_loss
from stepgrad.metric.batch import Target
from stepgrad.models.auto_weight import StockLoss
from stepgrad.models.left_out import has_crowds, judged, judged_pairs, split_crowds
from stepgrad.models.specialised import Specialised
from stepgrad.models.switch import MAP_KEY, MapLossSwitch, check_int64, pair_of
from stepgrad.models.torchvision.families import RetinaNetFamily, TwoStage
from stepgrad.overlaps import Keypoints, Masks, Overlap
from stepgrad.overlaps.masks import coco_masks

MASK_LEVEL = 0.5  # a pixel belongs to a predicted mask where its probability is above
_KEYS = ("boxes", "difficult", "iscrowd", "area")  # of a target, for the loss


_BOXES = "'boxes' (G, 4) and 'labels' (G,)"
_FORMS = {
    "labels": _BOXES,
    "masks": f"{_BOXES} and 'masks' (G, H, W)",
    "keypoints": f"{_BOXES} and 'keypoints' (G, k, 3)",
}


@dataclass(frozen=True)
class Selection:
    """The options of `train_for_map` that choose the windows that take part."""

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


@dataclass(frozen=True)
class Aside:
    """The targets of a batch, resized with their images, and the crowds among them, which the stock model does not see."""

    targets: list[Target]
    crowds: list[Target]  # of boxes and labels


class DetectorSwitch(MapLossSwitch):
    """The switch of a torchvision detector: losses are entries of its loss dict."""

    loss_fn: DetectionLoss
    aside: Aside | None = None
    """While the model works on a batch with crowds that are to be ignored."""

    def __init__(
        self,
        loss_fn: DetectionLoss,
        selection: Selection,
        family: TwoStage | RetinaNetFamily,
        ignore: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(loss_fn, **options)
        self.selection = selection
        self.family: Any = family
        self.first_label = family.first_label
        self.ignore = ignore

    @property
    def watches(self) -> bool:
        """Whether the losses of a training batch are anything else than the model's own."""
        return self.needed or self.aside is not None

    def with_crowds(self, targets: Sequence[Target]) -> Sequence[Target]:
        """The targets of the batch, those included that the stock model does not see."""
        return targets if self.aside is None else self.aside.targets

    @property
    def overlap(self) -> Overlap:
        """What windows and objects are compared by."""
        return self.loss_fn.objective.overlap

    @property
    def replacing(self) -> bool:
        """Whether mAP stands in the place of the model's own classification loss."""
        return self.enabled and self.mode == "replace"

    @property
    def skips_stock_loss(self) -> bool:
        """Whether nobody looks at the model's own classification loss, so that it need not be computed."""
        return self.replacing and not self.is_auto

    def present(self, targets: Sequence[Target]) -> Tensor:
        """The columns of classes that are ranked, in ascending order: those with objects, or all where others can cost."""
        if not self.loss_fn.objective.metric.needs_objects:
            return torch.arange(self.loss_fn.num_classes, device=targets[0]["labels"].device)
        return torch.cat([t["labels"] for t in targets]).unique() - self.first_label

    def put_into(
        self,
        losses: dict[str, Tensor],
        key: str,
        targets: Sequence[Target],
        find_candidates: Callable[[], tuple[ScoredPairs, StockLoss]],
    ) -> dict[str, Tensor]:
        """The loss dict to train with, given the model's own; `key` is its classification loss."""

        def find_loss() -> tuple[Tensor, StockLoss]:
            candidates, stock = find_candidates()
            there: Sequence[Target] = self._columns(self.with_crowds(targets))
            if self.ignore:
                candidates, there = judged_pairs(candidates, there, self.loss_fn.objective.protocol)
            return ragged_map_loss(self.loss_fn, candidates, there), stock

        loss = self.term(find_loss)
        return losses if loss is None else losses | {key if self.mode == "replace" else MAP_KEY: loss}

    def detections(
        self, model: nn.Module, batch: Any, device: torch.device
    ) -> tuple[list[dict[str, Any]], list[Target]]:
        """What the model's own inference reports, with labels as columns."""
        images, targets = pair_of(batch, "images", "targets")
        self.check_targets(targets, len(images))
        found = [
            {**self._shapes(f), "scores": f["scores"].cpu(), "labels": f["labels"].cpu() - self.first_label}
            for f in model([image.to(device) for image in images])
        ]
        if self.loss_fn.objective.metric.threshold is not None:  # of the logarithms, which the loss ranks
            found = [{**f, "scores": f["scores"].double().clamp(min=1e-300).log()} for f in found]
        there: list[Target] = [
            {**self._shapes(target), **{key: value.cpu() for key, value in columns.items()}}
            for target, columns in zip(targets, self._columns(targets), strict=True)
        ]
        if not self.ignore:
            return found, there
        pairs = [judged(f, t, self.loss_fn.objective.protocol) for f, t in zip(found, there, strict=True)]
        return [f for f, _ in pairs], [t for _, t in pairs]

    def _shapes(self, given: Mapping[str, Tensor]) -> dict[str, Any]:
        """Boxes of detections or objects, and their masks or keypoints where these count."""
        shapes: dict[str, Any] = {"boxes": given["boxes"].cpu()}
        if isinstance(self.overlap, Masks):
            masks = given["masks"]
            masks = masks[:, 0] > MASK_LEVEL if masks.ndim == 4 else masks > 0
            shapes["masks"] = coco_masks(masks)  # a few numbers instead of an image's pixels for each
        elif isinstance(self.overlap, Keypoints):
            shapes["keypoints"] = given["keypoints"].cpu()
        return shapes

    def check_targets(self, targets: Any, images: int) -> None:
        """Raise InputError unless there is, for every image, a dict with boxes, labels and what else the task compares."""
        keys = dict.fromkeys(["boxes", "labels", self.overlap.key])
        check_targets(targets, images, self.first_label, self.first_label + self.loss_fn.num_classes, list(keys))

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
                **{key: target[key] for key in (*_KEYS, self.overlap.key) if key in target and key != "masks"},
            }
            for target in targets
        ]


class Detector(Specialised):
    """Mixin of a whole model: bad targets end the call before any work, and the loss can be reached."""

    map_loss_switch: DetectorSwitch
    transform: Any

    @property
    def map_loss(self) -> DetectionLoss:
        """The loss; its `metrics` are those of the last training batch."""
        return self.map_loss_switch.loss_fn

    def check_call(self, images: Sequence[Tensor], targets: Sequence[Target] | None) -> None:
        """Raise InputError unless the call asks for what the mode gives: losses in training, else detections."""
        if self.training:
            self.map_loss_switch.check_targets(targets, len(images))
        elif targets is not None:
            raise InputError(
                "Expected no targets in eval mode, where the model gives detections and no loss; call model.train() "
                "first to train, or leave the targets out to detect."
            )

    def has_crowds(self, targets: Sequence[Target] | None) -> bool:
        """Whether there are crowds in these targets that are to be ignored."""
        return targets is not None and self.map_loss_switch.ignore and any(map(has_crowds, targets))

    @contextmanager
    def crowds_aside(self, targets: Sequence[Target] | None) -> Iterator[None]:
        """Meanwhile the stock model does not see crowds: they are taken out of the targets once these have been resized."""
        switch = self.map_loss_switch
        if not (self.training and self.has_crowds(targets)):
            yield
            return

        def take_out(module: nn.Module, inputs: Any, output: tuple[Any, list[Target]]) -> tuple[Any, list[Target]]:
            images, resized = output
            parts = [split_crowds(target) if "iscrowd" in target else (target, _nothing(target)) for target in resized]
            switch.aside = Aside(resized, [crowds for _, crowds in parts])
            return images, [objects for objects, _ in parts]

        hook = self.transform.register_forward_hook(take_out)
        try:
            yield
        finally:
            hook.remove()
            switch.aside = None


def _nothing(target: Target) -> Target:
    return {key: target[key][:0] for key in ("boxes", "labels")}


def check_targets(targets: Any, images: int, first: int, end: int, keys: Sequence[str]) -> None:
    """Raise InputError unless there is, for every image, a dict with these keys and with labels in [first, end)."""
    if not isinstance(targets, (list, tuple)) or len(targets) != images:
        came = f"{len(targets)}" if isinstance(targets, (list, tuple)) else type(targets).__name__
        raise InputError(f"Expected targets to be a list with one dict for each of {images} images but got {came}.")
    for i, target in enumerate(targets):
        missing = [key for key in keys if not isinstance(target, Mapping) or key not in target]
        if missing:
            came = str(sorted(target) if isinstance(target, Mapping) else type(target).__name__)
            raise InputError(
                f"image {i}: expected targets with {_FORMS[keys[-1]]} but {missing[0]!r} is not in {came}; "
                "for an image without objects, give tensors without rows."
            )
        _check_labels(target["labels"], i, first, end)
        crowd = target.get("iscrowd")
        if crowd is not None and (not isinstance(crowd, Tensor) or crowd.shape != target["labels"].shape):
            came = str(list(crowd.shape)) if isinstance(crowd, Tensor) else type(crowd).__name__
            raise InputError(
                f"image {i}: expected 'iscrowd' to be a tensor like 'labels', {list(target['labels'].shape)}, but got {came}."
            )


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
