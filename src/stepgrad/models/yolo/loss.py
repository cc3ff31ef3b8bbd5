"""The loss of a YOLO with mAP added, and what switches it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from stepgrad.losses.distributed import DistributedMAPLoss
from stepgrad.losses.ragged import ragged_map_loss
from stepgrad.metric.batch import Target
from stepgrad.models.auto_weight import StockLoss
from stepgrad.models.switch import MapLossSwitch
from stepgrad.models.yolo.heads import MANY, ONE, HeadOutput, losses_of_heads, ranked_pairs, read_heads, targets_of
from stepgrad.models.yolo.settings import YoloSettings
from stepgrad.models.yolo.shapes import task_of
from stepgrad.processes import world

NAME = "batch_map"  # among the loss items: in the progress line, the CSV and the log
_PATIENCE = 1800.0  # seconds to wait for other processes, as torch.distributed itself does
_GAINS = {MANY: "o2m", ONE: "o2o"}  # factors of the heads' losses, which move from one head to the other in training


class HeadSwitch(MapLossSwitch):
    """The switch of one head."""

    loss_fn: DistributedMAPLoss

    def __init__(
        self, loss_fn: DistributedMAPLoss, settings: YoloSettings, candidates: int, per_object: int, task: str
    ) -> None:
        weight = copy.deepcopy(settings.weight) if settings.weighs else 1.0  # each head has its own
        super().__init__(loss_fn, weight=weight, enabled=False, measure=settings.measure)
        self.held_off = not settings.weighs
        self.candidates = candidates
        self.per_object = per_object
        self.task = task

    def of_head(self, head: HeadOutput, targets: Sequence[Target], own_loss: Tensor, scale: float) -> Tensor | None:
        """What mAP adds to the loss, or None; its `metrics` are of this batch either way."""

        def find_loss() -> tuple[Tensor, StockLoss]:
            threshold = self.loss_fn.objective.nms_threshold
            pairs = ranked_pairs(head, targets, self.candidates, self.per_object, threshold)
            return scale * ragged_map_loss(self.loss_fn, pairs, targets), head.stock(own_loss)

        return self.term(find_loss)


def make_switches(settings: YoloSettings, criterion: Any, args: Any) -> dict[str, HeadSwitch]:
    """A switch for each head: with NMS as in validation, or, for the head that needs none, over its `max_det` detections."""
    switches = {}
    task = task_of(settings.task, getattr(args, "task", None))
    for name, loss in losses_of_heads(criterion).items():
        needs_nms = name != ONE
        # One2one is to have one window for an object: more of its anchors would be ranked as duplicates.
        per_object = settings.per_object if needs_nms else min(1, settings.per_object)
        nms = {"nms_threshold": args.iou if needs_nms else None}
        options = {**nms, **settings.loss, **({} if needs_nms else nms)}
        loss_fn = DistributedMAPLoss(loss.nc, gradients="summed", timeout=_PATIENCE, **options)
        candidates = settings.candidates if needs_nms else args.max_det
        switches[name] = HeadSwitch(loss_fn, settings, candidates, per_object, task)
    return switches


class WithMAP:
    """A criterion of ultralytics, with mAP joining its losses in training.

    A plain object that hangs on the live model only: the averaged copy that is validated and saved was made before, and has a
    criterion of its own. What else is asked of it, the stock criterion answers.
    """

    def __init__(self, stock: Any, switches: Mapping[str, HeadSwitch], shown: str) -> None:
        self.stock = stock
        self.switches = switches
        self.shown = shown  # the head whose mAP is in the log
        self.losses = losses_of_heads(stock)

    def __call__(self, preds: Any, batch: Mapping[str, Any]) -> tuple[Tensor, Any]:
        loss, items = self.stock(preds, batch)
        if not torch.is_grad_enabled():
            return loss, items
        if any(switch.needed for switch in self.switches.values()):
            loss = with_terms(loss, self._terms(preds, batch, loss))
        return loss, with_item(items, self.switches[self.shown].metrics.get("map", 0.0), loss)

    def _terms(self, preds: Any, batch: Mapping[str, Any], own_loss: Tensor) -> list[Tensor]:
        task = self.switches[self.shown].task
        heads = read_heads(preds, self.losses, batch["img"].shape[2:], task)
        # The stock losses are means times the number of images, added up over processes; so is mAP, of which there is one.
        images = len(batch["img"]) * world()
        numbered = bool(getattr(next(iter(self.losses.values())), "overlap", True))
        targets = targets_of(batch, next(iter(heads.values())).boxes.dtype, task, numbered)
        terms = []
        for name, head in heads.items():
            gain = float(getattr(self.stock, _GAINS[name], 1.0)) if name else 1.0
            terms.append(self.switches[name].of_head(head, targets, own_loss.sum(), gain * images))
        return [term for term in terms if term is not None]

    def __getattr__(self, name: str) -> Any:
        if name == "stock" or name.startswith("__"):  # while a copy is being made there is no stock criterion yet
            raise AttributeError(name)
        return getattr(self.stock, name)


def with_terms(loss: Tensor, terms: Sequence[Tensor]) -> Tensor:
    """The loss with further terms: a vector of losses grows, a sum of them (before 8.3.100 or so) is added to.

    >>> with_terms(torch.tensor([1.0, 2.0]), [torch.tensor(3.0)])
    tensor([1., 2., 3.])
    >>> with_terms(torch.tensor(3.0), [torch.tensor(3.0)])
    tensor(6.)
    """
    if not terms:
        return loss
    added = torch.stack([term.to(loss.dtype) for term in terms])
    return torch.cat([loss, added]) if loss.ndim else loss + added.sum()


def with_item(items: Any, value: float, like: Tensor) -> Any:
    """The loss items with the batch's mAP at their end: a dict, or in older versions a vector."""
    item = torch.tensor(value, dtype=torch.float32, device=like.device)
    return {**items, NAME: item} if isinstance(items, Mapping) else torch.cat([items, item[None].to(items)])


def without_item(items: Any, names: Sequence[str]) -> Any:
    """The stock items, of items that have been named.

    >>> without_item(torch.tensor([1.0, 2.0, 0.5]), ["box_loss", "cls_loss", "batch_map"])
    tensor([1., 2.])
    """
    if isinstance(items, Mapping):
        return {name: value for name, value in items.items() if name != NAME}
    return items[:-1] if isinstance(items, Tensor) and len(items) == len(names) and NAME in names else items
