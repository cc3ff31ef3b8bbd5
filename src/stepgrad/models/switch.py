"""The switch between a model's own classification loss and MAPLoss, which `train_for_map` attaches to a model."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, signature
from typing import Any

import torch
from torch import Tensor, nn

from stepgrad.errors import (
    ConfigError,
    InputError,
    LikelyMistakeWarning,
    one_of,
    suggest,
    whole_number,
)
from stepgrad.losses.detection import DetectionLoss
from stepgrad.losses.distributed import DistributedDetectionLoss, DistributedMAPLoss
from stepgrad.metric.batch import Target
from stepgrad.metric.protocol import Protocol, get_protocol
from stepgrad.models.auto_weight import AutoWeight, StockLoss, weight_of

NAME = "map_loss_switch"  # of the attribute of a wrapped model
MAP_KEY = "loss_map"  # what "mix" adds to a model's losses
MODES = ["mix", "replace"]
FINE_TUNING = {"estimator": "radius", "radius": 3.0, "balance": "class", "absent_classes": "skip"}
"""Options of MAPLoss that generalise best when fine-tuning."""


class MapLossSwitch:
    """Turns MAPLoss on and off in a model, and holds the metrics of the last training batch.

    A plain object, not a module: it adds nothing to the state_dict of the model it hangs on.

    Attributes:
        enabled: whether MAPLoss takes part in the loss; set it at any time.
        held_off: while True, MAPLoss takes no part whatever `enabled` is set to: so a control trains by the same loop.
        measure: whether `metrics` are brought up to date while it does not.
        mode: "mix": the model's loss plus `weight` times MAPLoss; "replace": `weight` times MAPLoss alone.
        weight: of MAPLoss; set to a number, to "auto" or to an `AutoWeight`, it reads as the number in use.
        loss_fn: the MAPLoss, or another DetectionLoss.
        metrics: those of `loss_fn` for the last training batch: "map", "ap" and so on, or "metric", "value", "by_class" and
            so on of another DetectionLoss; empty before the first.

    >>> from stepgrad.losses.detection import MAPLoss
    >>> switch = MapLossSwitch(MAPLoss(num_classes=1), weight=2.0, enabled=False)
    >>> box, scores = torch.tensor([[0.0, 0.0, 10.0, 10.0]]), torch.tensor([[0.5]], requires_grad=True)
    >>> batch = [scores], [box], [{"boxes": box, "labels": torch.tensor([0])}]
    >>> switch.map_loss(*batch), switch.metrics["map"]
    (None, 1.0)
    >>> switch.enabled = True
    >>> round(switch.map_loss(*batch).item(), 4)    # -2 log(1 + eps)
    -0.0199
    """

    def __init__(
        self,
        loss_fn: DetectionLoss | DistributedDetectionLoss,
        mode: str = "mix",
        weight: float | str | AutoWeight = 1.0,
        enabled: bool = True,
        measure: bool = True,
    ) -> None:
        one_of("mode", mode, MODES)
        self.loss_fn = loss_fn
        self.mode = mode
        self._weight = weight_of(weight)
        self._enabled = enabled
        self.held_off = False
        self.measure = measure
        self.metrics: dict[str, Any] = {}

    @property
    def enabled(self) -> bool:
        """Whether MAPLoss takes part in the loss."""
        return self._enabled and not self.held_off

    @enabled.setter
    def enabled(self, enabled: bool) -> None:
        self._enabled = enabled

    @property
    def weight(self) -> float:
        """The weight of MAPLoss in use."""
        return self._weight.value if isinstance(self._weight, AutoWeight) else self._weight

    @weight.setter
    def weight(self, weight: float | str | AutoWeight) -> None:
        self._weight = weight_of(weight)

    @property
    def is_auto(self) -> bool:
        """Whether the weight balances itself, for which it has to see the model's own classification loss."""
        return isinstance(self._weight, AutoWeight)

    @property
    def needed(self) -> bool:
        """Whether `map_loss` would look at scores and boxes: when not, the model need not prepare them."""
        return self.enabled or self.measure

    @property
    def batch_value(self) -> dict[str, float]:
        """What to log of the last training batch: its "map", or the metric of another loss by its name; empty before it."""
        objective = self.loss_fn.objective
        return {objective.logged_name: self.metrics[objective.names[0]]} if self.metrics else {}

    def map_loss(
        self,
        scores: Sequence[Tensor],
        boxes: Sequence[Tensor],
        targets: Sequence[Target],
        stock: StockLoss | None = None,
    ) -> Tensor | None:
        """`weight` times MAPLoss, or None while it takes no part in the loss; either way `metrics` are of this batch.

        An automatic weight looks at the `stock` loss first.
        """
        return self.term(lambda: (self.loss_fn(scores, boxes, targets), stock))

    def term(self, find_loss: Callable[[], tuple[Tensor, StockLoss | None]]) -> Tensor | None:
        """The same for a loss that `find_loss` computes by `loss_fn`, if it is needed."""
        if not self.needed:
            return None
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.enabled):
            loss, stock = find_loss()
            if isinstance(self._weight, AutoWeight) and stock is not None and torch.is_grad_enabled():
                self._weight.look_at(stock, loss, getattr(self.loss_fn, "group", None))
            loss = self.weight * loss
        self.metrics = self.loss_fn.metrics
        return loss if self.enabled else None

    def detections(
        self, model: nn.Module, batch: Any, device: torch.device
    ) -> tuple[list[dict[str, Any]], list[Target]]:
        """What a model in eval mode finds in a training batch, and the targets, both on the CPU, as for `Evaluator`."""
        raise NotImplementedError

    def __repr__(self) -> str:
        state = "on" if self.enabled else "off"
        return f"MapLossSwitch({state}, mode={self.mode!r}, weight={self._weight}, {self.loss_fn})"


def wide(values: Tensor) -> Tensor:
    """The same numbers in at least float32: half precision ties scores that differ."""
    return values if values.dtype == torch.float64 else values.float()


def find_switch(model: nn.Module) -> MapLossSwitch:
    """The switch of the one wrapped model in a module: the model itself, or what DDP, Lightning or compile wrap."""
    switch: MapLossSwitch = find_prepared(model).__dict__[NAME]
    return switch


def find_prepared(model: nn.Module) -> nn.Module:
    """The one model with a switch in a module."""
    prepared = [module for module in model.modules() if NAME in module.__dict__]
    if len(prepared) != 1:
        raise InputError(
            f"Expected one model prepared by `train_for_map` in {type(model).__name__} but found {len(prepared)}; call "
            "`train_for_map` of stepgrad.models.torchvision or .transformers on the detector first."
        )
    return prepared[0]


def loss_settings(
    options: Mapping[str, Any],
    protocol: str | Protocol | None,
    loss_fn: DetectionLoss | DistributedMAPLoss | None,
    kinds: Sequence[type[nn.Module]],
    caller: Callable[..., Any],
) -> dict[str, Any]:
    """The settings of the loss that `train_for_map` makes where none is handed in.

    Args:
        options: what was asked for by name; a ConfigError unless all are arguments of one of `kinds`.
        protocol: what was asked for; a ready loss keeps its own, with a warning where the two differ.
        loss_fn: the ready loss; then there may be no options.
        kinds: classes of losses that may be made.
        caller: whose arguments a misspelt option may have meant.
    """
    loss_options = _arguments(*(kind.__init__ for kind in kinds))
    loss_options -= {"self", "num_classes", "overlap"}  # the model knows how many, and what its task compares
    for name in options:
        if name not in loss_options:
            meant = suggest(name, sorted(loss_options | _arguments(caller)))
            raise ConfigError(
                f"Expected options of {kinds[-1].__name__}, {sorted(loss_options)}, but got {name!r}.{meant}"
            )
    if loss_fn is not None and options:
        raise ConfigError(f"Expected either a ready loss_fn or options of one but got both: {sorted(options)}.")
    if protocol is None:
        return {**FINE_TUNING, **options}
    asked = get_protocol(protocol).name
    if isinstance(loss_fn, (DetectionLoss, DistributedMAPLoss)) and loss_fn.objective.protocol.name != asked:
        warnings.warn(
            f"protocol {asked!r} is not used: loss_fn counts by {loss_fn.objective.protocol.name!r}; leave one of them out.",
            LikelyMistakeWarning,
            stacklevel=3,
        )
    return {**FINE_TUNING, "protocol": protocol, **options}


def _arguments(*functions: Callable[..., Any]) -> set[str]:
    every = (argument for function in functions for argument in signature(function).parameters.values())
    return {argument.name for argument in every if argument.kind is not Parameter.VAR_KEYWORD}


def check_switch_at(switch_at: int | None) -> None:
    """Raise unless this is a step at which a callback can switch to MAPLoss, or None."""
    if switch_at is not None:
        whole_number("switch_at (None to leave the switch alone)", switch_at, least=0)


def check_int64(name: str, labels: Any, image: int) -> None:
    """Raise InputError unless the labels of an image are an int64 tensor (G,): what models index with."""
    if not isinstance(labels, Tensor) or labels.ndim != 1 or labels.dtype != torch.int64:
        came = f"{labels.dtype} of shape {tuple(labels.shape)}" if isinstance(labels, Tensor) else type(labels).__name__
        raise InputError(
            f"image {image}: expected {name} to be an int64 tensor of shape (G,) but got {came}; "
            "for no objects, torch.zeros(0, dtype=torch.int64)."
        )


def pair_of(batch: Any, inputs: str, targets: str) -> tuple[Any, Any]:
    """The model's inputs and targets in a batch of held-out data: a pair, or a dict with these keys."""
    if isinstance(batch, Mapping) and inputs in batch and targets in batch:
        return batch[inputs], batch[targets]
    if isinstance(batch, (list, tuple)) and len(batch) == 2:
        return batch[0], batch[1]
    came = sorted(batch) if isinstance(batch, Mapping) else type(batch).__name__
    raise InputError(f"Expected batches of ({inputs}, {targets}), as the model trains on them, but got {came}.")
