"""The loss of a YOLO with mAP added, and what switches it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from stepgrad.losses.distributed import DistributedDetectionLoss
from stepgrad.losses.ragged import ragged_map_loss
from stepgrad.metric.batch import Target
from stepgrad.models.auto_weight import StockLoss
from stepgrad.models.left_out import judged_pairs
from stepgrad.models.switch import MapLossSwitch
from stepgrad.models.yolo.heads import MANY, ONE, HeadOutput, losses_of_heads, ranked_pairs, read_heads, targets_of
from stepgrad.models.yolo.ignored import Ignored, hidden_windows, masked, without_regions
from stepgrad.models.yolo.settings import NAME, OTHER_NAME, YoloSettings, make_loss, on_log_scores
from stepgrad.models.yolo.shapes import task_of
from stepgrad.processes import world

_PATIENCE = 1800.0  # seconds to wait for other processes, as torch.distributed itself does
_GAINS = {MANY: "o2m", ONE: "o2o"}  # factors of the heads' losses, which move from one head to the other in training


class HeadSwitch(MapLossSwitch):
    """The switch of one head."""

    loss_fn: DistributedDetectionLoss

    def __init__(
        self, loss_fn: DistributedDetectionLoss, settings: YoloSettings, candidates: int, per_object: int, task: str
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
            left = judged_pairs(pairs, targets, self.loss_fn.objective.protocol)
            return scale * ragged_map_loss(self.loss_fn, *left), head.stock(own_loss)

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
        options = on_log_scores({**nms, **settings.loss, **({} if needs_nms else nms)})
        loss_fn = make_loss(loss.nc, options, gradients="summed", timeout=_PATIENCE)
        candidates = settings.candidates if needs_nms else args.max_det
        switches[name] = HeadSwitch(loss_fn, settings, candidates, per_object, task)
    return switches


class WithMAP:
    """A criterion of ultralytics, with mAP joining its losses in training.

    A plain object that hangs on the live model only: the averaged copy that is validated and saved was made before, and has a
    criterion of its own. What else is asked of it, the stock criterion answers.
    """

    def __init__(
        self, stock: Any, switches: Mapping[str, HeadSwitch], shown: str, ignored: Ignored | None = None
    ) -> None:
        self.stock = stock
        self.switches = switches
        self.shown = shown  # the head whose mAP is in the log
        self.ignored = ignored  # None: the data has no regions that are to be ignored
        self.losses = losses_of_heads(stock)

    def __call__(self, preds: Any, batch: Mapping[str, Any]) -> tuple[Tensor, Any]:
        objects = batch if self.ignored is None else without_regions(batch, self.ignored.classes)
        if not torch.is_grad_enabled():
            return self.stock(preds, objects)
        hides = len(objects["cls"]) < len(batch["cls"])
        ranks = any(switch.needed for switch in self.switches.values())
        shown = self.switches[self.shown]
        heads = read_heads(preds, self.losses, batch["img"].shape[2:], shown.task) if hides or ranks else {}
        targets = self._targets(heads, batch) if heads else []
        hidden = {name: hidden_windows(head, targets) for name, head in heads.items()} if hides else {}
        with masked(self.losses, hidden):
            loss, items = self.stock(preds, objects)
        if ranks:
            loss = with_terms(loss, self._terms(heads, targets, loss))
        name = item_name(shown.loss_fn)
        return loss, with_item(items, name, next(iter(shown.batch_value.values()), 0.0), loss)

    def _targets(self, heads: Mapping[str, HeadOutput], batch: Mapping[str, Any]) -> list[Target]:
        numbered = bool(getattr(next(iter(self.losses.values())), "overlap", True))
        dtype = next(iter(heads.values())).boxes.dtype
        targets = targets_of(batch, dtype, self.switches[self.shown].task, numbered)
        if self.ignored is None:
            return targets
        return [self.ignored.as_target(target["boxes"], target["labels"]) for target in targets]

    def _terms(self, heads: Mapping[str, HeadOutput], targets: Sequence[Target], own_loss: Tensor) -> list[Tensor]:
        # The stock losses are means times the number of images, added up over processes; so is mAP, of which there is one.
        images = len(targets) * world()
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


def item_name(loss_fn: DistributedDetectionLoss) -> str:
    """The name of the batch's value among the loss items."""
    return NAME if loss_fn.objective.logged_name == "map" else OTHER_NAME


def with_item(items: Any, name: str, value: float, like: Tensor) -> Any:
    """The loss items with the batch's value at their end: a dict, or in older versions a vector."""
    item = torch.tensor(value, dtype=torch.float32, device=like.device)
    return {**items, name: item} if isinstance(items, Mapping) else torch.cat([items, item[None].to(items)])


def without_item(items: Any, names: Sequence[str]) -> Any:
    """The stock items, of items that have been named.

    >>> without_item(torch.tensor([1.0, 2.0, 0.5]), ["box_loss", "cls_loss", "batch_map"])
    tensor([1., 2.])
    """
    ours = (NAME, OTHER_NAME)
    if isinstance(items, Mapping):
        return {name: value for name, value in items.items() if name not in ours}
    is_ours = isinstance(items, Tensor) and len(items) == len(names) and names[-1:] and names[-1] in ours
    return items[:-1] if is_ours else items
