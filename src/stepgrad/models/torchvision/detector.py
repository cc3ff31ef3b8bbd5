"""What all torchvision detectors share: a class with a mixin, checks of the targets, and the loss dict with mAP in it.

A model stays the object it is; only its class gains a mixin. Parameters, buffers, submodules and hooks are untouched, so a
`state_dict` fits the stock class both ways, and `isinstance` still works. Copies and pickles keep the mixin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from stepgrad.errors import ConfigError, InputError, real_number, whole_number
from stepgrad.losses.detection import DetectionLoss
from stepgrad.losses.ragged import ScoredPairs, ragged_map_loss
from stepgrad.metric.batch import Target
from stepgrad.models.auto_weight import StockLoss
from stepgrad.models.switch import MapLossSwitch, check_int64, pair_of

MAP_KEY = "loss_map"  # what "mix" adds to the loss dict
M = TypeVar("M", bound=nn.Module)


def wide(values: Tensor) -> Tensor:
    """The same numbers in at least float32: half precision ties scores that differ."""
    return values if values.dtype == torch.float64 else values.float()


class Specialised(nn.Module):
    """Base of the mixins. `stock_class` is the class before."""

    stock_class: ClassVar[type[nn.Module]]
    mixin: ClassVar[type[Specialised]]

    def __reduce_ex__(self, protocol: Any) -> Any:
        stock: Any = super().__reduce_ex__(max(2, int(protocol)))  # __newobj__, (class, *arguments), state, ...
        _, (_, *arguments), *state = stock
        return _blank, (self.mixin, self.stock_class, *arguments), *state


def _blank(mixin: type[Specialised], stock_class: type[nn.Module], *arguments: Any) -> nn.Module:
    """An object of the specialised class before its state is put back."""
    kind = specialised_class(mixin, stock_class)
    blank: nn.Module = kind.__new__(kind, *arguments)
    return blank


_made: dict[tuple[type, type], Any] = {}


def specialised_class(mixin: type[Specialised], stock_class: type[nn.Module]) -> Any:
    """`stock_class` with `mixin` in front; always the same one for the same two."""
    if (mixin, stock_class) not in _made:
        about = {"stock_class": stock_class, "mixin": mixin, "__doc__": mixin.__doc__, "__module__": mixin.__module__}
        _made[mixin, stock_class] = type(f"{stock_class.__name__}ForMAP", (mixin, stock_class), about)
    return _made[mixin, stock_class]


def specialise(module: M, mixin: type[Specialised]) -> M:
    """The same object with the mixin in front of its class."""
    module.__class__ = specialised_class(mixin, type(module))
    return module


def despecialise(module: M) -> M:
    """The same object with its stock class."""
    if isinstance(module, Specialised):
        module.__class__ = module.stock_class  # type: ignore[assignment]
    return module


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


class DetectorSwitch(MapLossSwitch):
    """The switch of a torchvision detector: losses are entries of its loss dict."""

    loss_fn: DetectionLoss

    def __init__(self, loss_fn: DetectionLoss, selection: Selection, first_label: int, **options: Any) -> None:
        super().__init__(loss_fn, **options)
        self.selection = selection
        self.first_label = first_label

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
        if not self.needed:
            return losses
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.enabled):
            candidates, stock = find_candidates()
            loss = self.weighted(ragged_map_loss(self.loss_fn, candidates, self._columns(targets)), stock)
        self.metrics = self.loss_fn.metrics
        if not self.enabled:
            return losses
        return losses | {key if self.mode == "replace" else MAP_KEY: loss}

    def detections(
        self, model: nn.Module, batch: Any, device: torch.device
    ) -> tuple[list[dict[str, Tensor]], list[Target]]:
        """What the model's own inference reports, with labels as columns."""
        images, targets = pair_of(batch, "images", "targets")
        check_targets(targets, len(images), self.first_label, self.first_label + self.loss_fn.num_classes)
        found = [
            {"boxes": f["boxes"].cpu(), "scores": f["scores"].cpu(), "labels": f["labels"].cpu() - self.first_label}
            for f in model([image.to(device) for image in images])
        ]
        if self.loss_fn.objective.metric.threshold is not None:  # of the logarithms, which the loss ranks
            found = [{**f, "scores": f["scores"].double().clamp(min=1e-300).log()} for f in found]
        return found, [{key: value.cpu() for key, value in target.items()} for target in self._columns(targets)]

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
                **{key: target[key] for key in ("boxes", "difficult", "iscrowd", "area") if key in target},
            }
            for target in targets
        ]


class Detector(Specialised):
    """Mixin of a whole model: bad targets end the call before any work, and the loss can be reached."""

    map_loss_switch: DetectorSwitch

    @property
    def map_loss(self) -> DetectionLoss:
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
                "for an image without objects, give tensors without rows."
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
