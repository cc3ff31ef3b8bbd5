"""Train RF-DETR (package `rfdetr`), RT-DETR, D-FINE or DEIM in their own repositories for mAP: one call on the criterion.

They share one shape. A criterion turns outputs (`pred_logits`, `pred_boxes`) and targets into a dict of losses, and whoever
trains adds them up with the coefficients of its `weight_dict`. mAP is one entry more in both.

    from rfdetr.training import RFDETRModelModule      # what RFDETR.train() makes; it takes no callbacks, the module does
    module = RFDETRModelModule(model_config, train_config)
    train_for_map(module)
    build_trainer(train_config, model_config).fit(module, datamodule)

Nothing is imported from these packages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from torch import Tensor, nn

from stepgrad.errors import ConfigError, InputError
from stepgrad.losses.detection import DetectionLoss
from stepgrad.losses.distributed import DistributedMAPLoss
from stepgrad.metric.batch import Target
from stepgrad.metric.protocol import Protocol
from stepgrad.models.auto_weight import AutoWeight, StockLoss
from stepgrad.models.detr.ignored import BOXES, LABELS, CriterionWithRegions, any_regions, crowds_apart, regions_of
from stepgrad.models.detr.transformers import QuerySwitch, loss_of_queries
from stepgrad.models.left_out import has_crowds
from stepgrad.models.specialised import despecialise, specialise
from stepgrad.models.switch import MAP_KEY, NAME

__all__ = ["AutoWeight", "restore", "train_for_map"]

CLASS_LOSSES = ("loss_ce", "loss_vfl", "loss_mal", "loss_focal", "loss_bce")
M = TypeVar("M", bound=nn.Module)


def train_for_map(
    module: M,
    *,
    weight: float | str | AutoWeight = "auto",
    enabled: bool = True,
    protocol: str | Protocol | None = None,
    loss_fn: DetectionLoss | DistributedMAPLoss | None = None,
    ignore: bool = True,
    **loss_options: Any,
) -> M:
    """Make a criterion, or the one in a module, add mAP to its losses in training; returns the module.

    Args:
        module: a criterion with a `weight_dict`, or what holds one, such as RF-DETR's Lightning module.
        weight: of MAPLoss: "auto", `AutoWeight(share=...)` or a number, as for transformers' models.
        enabled: False keeps the losses for now and only measures mAP: `criterion.map_loss_switch.enabled` turns it on and off,
            as does `MAPCallback` of `stepgrad.models.frameworks.lightning`.
        protocol: "voc07", "voc12" (the default), "coco" or a `Protocol`.
        loss_fn: a ready `MAPLoss`, or another `DetectionLoss`, with `nms_threshold=None`.
        ignore: regions that nobody judges, "ignored_boxes" (R, 4) of the targets with "ignored_labels" (R,), without which they
            are of every class, and crowds (`iscrowd`): queries that lie in one by half or more count neither in mAP nor as
            background in the classification losses. Targets of a model with denoising queries name regions in the first way.
        loss_options: of `MAPLoss`, if `loss_fn` is None.

    In eval mode the same criterion gives its stock losses. `restore(module)` undoes it.
    """
    criterion = _find_criterion(module)
    loss_fn = loss_of_queries(criterion.num_classes, loss_fn, protocol, loss_options, train_for_map)
    restore(criterion)  # where this is not the first time
    setattr(criterion, NAME, QuerySwitch(loss_fn, "sigmoid", ignore=ignore, weight=weight, enabled=enabled))
    specialise(criterion, MAPCriterion)
    criterion.weight_dict[MAP_KEY] = 1.0  # the weight is in the loss, as it may change from batch to batch
    return module


def restore(module: M) -> M:
    """Undo `train_for_map`; other modules come back as they are."""
    for part in module.modules():
        if isinstance(part, MAPCriterion):
            del part.__dict__[NAME]
            part.weight_dict.pop(MAP_KEY, None)
            despecialise(part)
    return module


class MAPCriterion(CriterionWithRegions):
    """A criterion whose losses mAP joins in training."""

    map_loss_switch: QuerySwitch
    num_classes: int
    weight_dict: dict[str, float]

    def forward(
        self, outputs: Mapping[str, Any], targets: Sequence[Target], *more: Any, **named: Any
    ) -> dict[str, Tensor]:
        switch = self.map_loss_switch
        if self.training and switch.ignore:
            targets = self._with_regions(outputs, targets)
        try:
            losses: dict[str, Tensor] = super().forward(outputs, targets, *more, **named)
        finally:
            self.__dict__.pop("regions", None)
        if not self.training or not switch.needed:
            return losses
        logits = outputs["pred_logits"]
        queries = logits.shape[1] // max(1, getattr(self, "group_detr", 1))  # inference has the first group of them

        def ranked(given: Tensor) -> Tensor:
            return given[:, :queries]

        labels = [_as_transformers_has_it(target) for target in targets]
        stock = StockLoss(self._class_loss(losses), [logits], ranked)
        map_loss = switch.loss_of(ranked(logits), ranked(outputs["pred_boxes"]), labels, stock)
        return losses if map_loss is None else {**losses, MAP_KEY: map_loss}

    def _with_regions(self, outputs: Mapping[str, Any], targets: Sequence[Target]) -> Sequence[Target]:
        """The targets without crowds; regions are known to `get_loss` from here on."""
        if any(map(has_crowds, targets)):
            if any(name.startswith("dn_") for name in outputs):
                raise InputError(
                    "Expected targets without crowds, as the model's denoising queries are made of them, too; take them out of "
                    'boxes and labels, and give them as "ignored_boxes" and "ignored_labels".'
                )
            targets = crowds_apart(targets, "labels")
        if any_regions(targets):
            if not hasattr(self.stock_class, "get_loss"):
                raise ConfigError(
                    f"Expected a criterion with get_loss(name, outputs, targets, indices, ...) for ignored regions but "
                    f"{self.stock_class.__name__} has none; call train_for_map(..., ignore=False)."
                )
            self.__dict__["regions"] = [regions_of(target, self.num_classes) for target in targets]
        return targets

    def _class_loss(self, losses: Mapping[str, Tensor]) -> Tensor | None:
        """As it enters the sum of losses."""
        name = next((name for name in CLASS_LOSSES if name in losses and name in self.weight_dict), None)
        return None if name is None else losses[name] * self.weight_dict[name]


def _as_transformers_has_it(target: Target) -> Target:
    kept = {key: target[key] for key in ("boxes", "iscrowd", "orig_size", BOXES, LABELS) if key in target}
    return {"class_labels": target["labels"], **kept}


def _find_criterion(module: nn.Module) -> Any:
    found = [part for part in module.modules() if isinstance(getattr(part, "weight_dict", None), dict)]
    if len(found) != 1 or not hasattr(found[0], "num_classes"):
        raise InputError(
            f"Expected a criterion with a weight_dict and num_classes, or a module with one in it, but {type(module).__name__} "
            f"has {len(found)}; pass the SetCriterion itself."
        )
    return found[0]
