"""Train DETR-style detectors of Hugging Face transformers for mAP: one call before training, nothing else changes.

These models have no NMS: every query is one detection, and mAP after training is the mAP of what the model says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from stepgrad.errors import ConfigError, InputError, suggest
from stepgrad.extras import need
from stepgrad.losses.detection import DetectionLoss, MAPLoss
from stepgrad.losses.distributed import DistributedMAPLoss
from stepgrad.losses.ragged import ragged_map_loss
from stepgrad.metric.batch import Target
from stepgrad.metric.protocol import Protocol
from stepgrad.models.auto_weight import AutoWeight, StockLoss
from stepgrad.models.detr.ignored import CrowdsApart, any_regions, as_crowds, crowds_apart, ignoring, pairs_of
from stepgrad.models.keep_best import keep_best
from stepgrad.models.left_out import has_crowds, judged, judged_pairs, knows_regions
from stepgrad.models.switch import MAP_KEY, NAME, MapLossSwitch, check_int64, loss_settings, pair_of, wide
from stepgrad.processes import world

__all__ = ["FAMILIES", "AutoWeight", "keep_best", "restore", "train_for_map"]

M = TypeVar("M", bound=nn.Module)
_LEAST_SIDE = 1e-6  # of the image; a sigmoid can round a predicted side to nothing, and a box needs an area
_LARGEST_NORMALISED = 2.0  # coordinates beyond this are pixels


@dataclass(frozen=True)
class Family:
    """The scores and the classification loss of a family of models."""

    scores: str  # "softmax": over the classes and a last column for no object; "sigmoid": each class by itself
    class_loss: str = "loss_ce"  # its name in the loss_dict
    coefficient: str | None = None  # of the classification loss in the sum, by its name in the config; None: 1
    grouped: bool = False  # training has several groups of queries, inference the first of them


FAMILIES = {
    "ConditionalDetrForObjectDetection": Family("sigmoid"),
    "DFineForObjectDetection": Family("sigmoid", "loss_vfl"),
    "DabDetrForObjectDetection": Family("sigmoid"),
    "DeformableDetrForObjectDetection": Family("sigmoid"),
    "Deimv2ForObjectDetection": Family("sigmoid", "loss_mal"),
    "DetrForObjectDetection": Family("softmax"),
    "LwDetrForObjectDetection": Family("sigmoid", coefficient="class_loss_coefficient", grouped=True),
    "RTDetrForObjectDetection": Family("sigmoid", "loss_vfl"),
    "RTDetrV2ForObjectDetection": Family("sigmoid", "loss_vfl"),
    "RfDetrForObjectDetection": Family("sigmoid", coefficient="class_loss_coefficient", grouped=True),
    "TableTransformerForObjectDetection": Family("softmax"),
    "YolosForObjectDetection": Family("softmax"),
}


def train_for_map(
    model: M,
    *,
    mode: str = "mix",
    weight: float | str | AutoWeight = "auto",
    enabled: bool = True,
    protocol: str | Protocol | None = None,
    loss_fn: DetectionLoss | DistributedMAPLoss | None = None,
    ignore: bool = True,
    **loss_options: Any,
) -> M:
    """Make `model(pixel_values, labels=labels)` train for mAP; returns the same model.

    In training, `MAPLoss` over the model's queries is added to the losses, or replaces the last decoder layer's
    classification loss; box losses and those of the other layers stay as they are, and `loss` is still the sum with the
    config's coefficients. In eval mode nothing changes, and the state_dict never changes.

    Args:
        model: one of `FAMILIES`, or a class derived from one.
        mode: "mix": `weight` times MAPLoss is added to the loss, and to the `loss_dict` as "loss_map". "replace": it
            replaces the classification loss, "loss_ce", "loss_vfl" or "loss_mal".
        weight: of MAPLoss. "auto": balances itself, so that mAP's gradient at the class logits is as long as that of
            the model's own classification loss; `AutoWeight(share=...)` sets another share and explains how it is
            measured. A number stays fixed. `model.map_loss_switch.weight` is the number in use.
        enabled: False keeps the model's own loss for now, and only measures mAP: `model.map_loss_switch.enabled` turns
            MAPLoss on and off, and `model.map_loss_switch.metrics["map"]` is the mAP of the last training batch either way.
        protocol: what mAP means: "voc07", "voc12" (the default), "coco" or a `Protocol`. A `loss_fn` has its own.
        loss_fn: a ready `MAPLoss`, or another `DetectionLoss`, with `nms_threshold=None`. None: a MAPLoss with the radius
            estimator, balanced; with several processes its mAP is that of their batches joined (`DistributedMAPLoss`).
        ignore: crowds of the labels (`iscrowd`) are regions that nobody judges, and no objects: queries that lie in one by half
            or more count neither in mAP nor as background in the classification losses of all layers. Labels may also name
            regions apart, "ignored_boxes" (R, 4) and "ignored_labels" (R,), without which they are of every class.
        loss_options: of `MAPLoss`, if `loss_fn` is None.

    `restore(model)` undoes it.

    >>> from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig
    >>> backbone = ResNetConfig(embedding_size=8, hidden_sizes=[8], depths=[1], out_features=["stage1"])
    >>> config = DetrConfig(backbone_config=backbone, use_timm_backbone=False, use_pretrained_backbone=False, num_labels=2,
    ...                     d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2)
    >>> model = train_for_map(DetrForObjectDetection(config).train(), protocol="coco", mode="replace")
    >>> label = {"boxes": torch.tensor([[0.5, 0.5, 0.2, 0.4]]), "class_labels": torch.tensor([1])}
    >>> output = model(torch.rand(1, 3, 32, 32), labels=[label])
    >>> output.loss.backward()
    >>> model.map_loss_switch.metrics["objects"]
    1
    """
    need("transformers", purpose="stepgrad.models.detr.transformers")
    family = family_of(model)
    classes: int = model.config.num_labels  # type: ignore[union-attr, assignment]
    if loss_fn is not None and loss_fn.num_classes != classes:
        raise ConfigError(
            f"Expected a loss_fn for the model's {classes} classes but got one for {loss_fn.num_classes}."
        )
    loss_fn = loss_of_queries(classes, loss_fn, protocol, loss_options, train_for_map)
    switch = QuerySwitch(loss_fn, family.scores, ignore=ignore, mode=mode, weight=weight, enabled=enabled)
    restore(model)  # where this is not the first time
    hook = model.register_forward_pre_hook(CrowdsApart(), with_kwargs=True) if ignore else None
    loss = LossWithMAP(model, model.loss_function, "_loss_function" in model.__dict__, family, switch, hook)
    setattr(model, NAME, switch)
    model.loss_function = loss  # type: ignore[assignment]
    return model


def loss_of_queries(
    classes: int,
    loss_fn: DetectionLoss | DistributedMAPLoss | None,
    protocol: str | Protocol | None,
    options: Mapping[str, Any],
    caller: Callable[..., Any],
) -> DetectionLoss | DistributedMAPLoss:
    """The loss that was handed in, or one for detections without NMS; `caller` was asked for it."""
    settings = loss_settings(options, protocol, loss_fn, [MAPLoss, DistributedMAPLoss], caller)
    if loss_fn is None:
        return DistributedMAPLoss(classes, **{"nms_threshold": None, **settings})
    if loss_fn.objective.nms_threshold is not None:
        raise ConfigError(
            "Expected a loss_fn with nms_threshold=None, as the model uses no NMS, but got "
            f"{loss_fn.objective.nms_threshold}."
        )
    return loss_fn


def restore(model: M) -> M:
    """Undo `train_for_map`: the same model with the loss it had. Other models come back as they are."""
    wrapped = model.__dict__.get("_loss_function")
    if isinstance(wrapped, LossWithMAP):
        del model.__dict__[NAME], model.__dict__["_loss_function"]
        if wrapped.hook is not None:
            wrapped.hook.remove()
        if wrapped.was_set:
            model.loss_function = wrapped.stock
    return model


class QuerySwitch(MapLossSwitch):
    """The switch of a model whose queries are its detections."""

    def __init__(
        self, loss_fn: DetectionLoss | DistributedMAPLoss, scores: str, ignore: bool = True, **options: Any
    ) -> None:
        super().__init__(loss_fn, **options)
        self.scores = scores
        self.ignore = ignore

    def loss_of(
        self, logits: Tensor, boxes: Tensor, labels: Sequence[Target], stock: StockLoss | None = None
    ) -> Tensor | None:
        """`map_loss` of the queries of inference, those in ignored regions left out."""
        protocol = self.loss_fn.objective.protocol
        if not self.ignore:
            return self.map_loss(*self.ranked_lists(logits, boxes, labels), stock)
        lists = self.ranked_lists(logits, boxes, [as_crowds(label, self.loss_fn.num_classes) for label in labels])
        alike = world() > 1 or any(map(has_crowds, lists[2]))  # all processes rank lists of one kind
        if knows_regions(protocol) or not alike:
            return self.map_loss(*lists, stock)
        left = judged_pairs(pairs_of(*lists[:2]), lists[2], protocol)
        return self.term(lambda: (ragged_map_loss(self.loss_fn, *left), stock))

    def ranked_lists(
        self, logits: Tensor, boxes: Tensor, labels: Sequence[Target]
    ) -> tuple[list[Tensor], list[Tensor], list[Target]]:
        """Scores, windows and targets of each image: every query in every class."""
        pixels = _image_sizes(labels, boxes.device, self.loss_fn.objective.protocol.pixel_offset > 0)
        windows = [corners(b, size) for b, size in zip(boxes, pixels, strict=True)]
        targets = [_target(label, size) for label, size in zip(labels, pixels, strict=True)]
        return list(log_scores(logits, self.scores)), windows, targets

    def detections(
        self, model: nn.Module, batch: Any, device: torch.device
    ) -> tuple[list[dict[str, Tensor]], list[Target]]:
        """The list that training ranks: every query in every class."""
        pixels, labels = pair_of(batch, "pixel_values", "labels")
        _check_labels(labels, self.loss_fn.num_classes)
        masked = isinstance(batch, Mapping) and "pixel_mask" in batch
        mask = {"pixel_mask": batch["pixel_mask"].to(device)} if masked else {}
        output = model(pixels.to(device), **mask)
        here: list[Target] = [
            {k: v.cpu() if isinstance(v, Tensor) else v for k, v in label.items()} for label in labels
        ]
        if self.ignore:
            here = [as_crowds(label, self.loss_fn.num_classes) for label in crowds_apart(here)]
        scores, boxes, targets = self.ranked_lists(output.logits.cpu(), output.pred_boxes.cpu(), here)
        found = [every_class(s, b) for s, b in zip(scores, boxes, strict=True)]
        if not self.ignore:
            return found, targets
        pairs = [judged(f, t, self.loss_fn.objective.protocol) for f, t in zip(found, targets, strict=True)]
        return [f for f, _ in pairs], [t for _, t in pairs]


def every_class(scores: Tensor, boxes: Tensor) -> dict[str, Tensor]:
    """Detections of an image: each of N boxes with its score in each of K classes."""
    N, K = scores.shape
    labels = torch.arange(K).repeat(N)
    return {"boxes": boxes.repeat_interleave(K, dim=0), "scores": scores.flatten(), "labels": labels}


@dataclass
class LossWithMAP:
    """The loss function of a model, with MAPLoss in addition to or instead of its classification loss while it trains."""

    model: nn.Module
    stock: Any
    was_set: bool  # whether the stock loss was one of the user's own
    family: Family
    switch: QuerySwitch
    hook: Any = None  # that takes crowds out of the labels before the forward pass

    def __call__(
        self,
        logits: Tensor,
        labels: Sequence[Target],
        device: Any,
        pred_boxes: Tensor,
        config: Any,
        *more: Any,
        **named: Any,
    ) -> tuple[Tensor, dict[str, Tensor], Any]:
        working = self.model.training and self.switch.needed
        if working:
            _check_labels(labels, config.num_labels)
        ignores = self.model.training and self.switch.ignore and any_regions(labels)
        with ignoring(labels, config.num_labels) if ignores else nullcontext():
            loss, parts, auxiliary = self.stock(logits, labels, device, pred_boxes, config, *more, **named)
        if not working:
            return loss, parts, auxiliary
        name = self.family.class_loss
        coefficient = getattr(config, self.family.coefficient) if self.family.coefficient else 1.0
        mixed = self.switch.mode == "mix"
        ranked = self._ranked(config, named.get("denoising_meta_values"))
        # "replace" multiplies both losses by the coefficient; "mix" the stock loss alone.
        own = parts[name] * coefficient if mixed and name in parts else parts.get(name)
        stock = StockLoss(own, [logits], ranked)
        map_loss = self.switch.loss_of(ranked(logits), ranked(pred_boxes), labels, stock)
        if map_loss is None:
            return loss, parts, auxiliary
        if mixed:
            return loss + map_loss, {**parts, MAP_KEY: map_loss}, auxiliary
        return loss + (map_loss - parts[name]) * coefficient, {**parts, name: map_loss}, auxiliary

    def _ranked(self, config: Any, denoising: Any) -> Callable[[Tensor], Tensor]:
        """What takes, of something (images, queries, ...), the queries of inference."""
        # Denoising queries, which are given the answer, in training only, come first.
        first = 0 if denoising is None else denoising["dn_num_split"][0]
        end = first + config.num_queries if self.family.grouped else None
        return lambda queries: queries[:, first:end]


def log_scores(logits: Tensor, scores: str) -> Tensor:
    """Logarithms of the model's scores by class: what the model ranks by, without the squeeze of 0 to 1.

    >>> log_scores(torch.tensor([[0.0, 0.0, 0.0]]), "softmax").exp()    # the last column stands for no object
    tensor([[0.3333, 0.3333]])
    >>> log_scores(torch.tensor([[0.0, 0.0, 0.0]]), "sigmoid").exp()
    tensor([[0.5000, 0.5000, 0.5000]])
    """
    logits = wide(logits)
    return logits.log_softmax(-1)[..., :-1] if scores == "softmax" else nn.functional.logsigmoid(logits)


def corners(boxes: Tensor, size: Tensor) -> Tensor:
    """(x1, y1, x2, y2) in pixels of boxes given as (centre x, centre y, width, height) in parts of the image.

    >>> corners(torch.tensor([[0.5, 0.5, 0.25, 0.5]]), torch.tensor([80.0, 40.0]))
    tensor([[30., 10., 50., 30.]])
    """
    boxes = wide(boxes)
    centre, half = boxes[:, :2], boxes[:, 2:].clamp(min=_LEAST_SIDE) / 2
    return torch.cat([centre - half, centre + half], dim=1) * size.repeat(2)


def _target(label: Target, size: Tensor) -> Target:
    kept = {key: label[key] for key in ("difficult", "iscrowd") if key in label}
    boxes = corners(torch.as_tensor(label["boxes"], device=size.device).reshape(-1, 4), size)
    return {"boxes": boxes, "labels": label["class_labels"], **kept}


def _image_sizes(labels: Sequence[Target], device: torch.device, needed: bool) -> list[Tensor]:
    """(width, height) of each image in pixels, where the labels tell; else ones, as scaling an axis changes no overlap."""
    have_sizes = all("orig_size" in label for label in labels)
    if needed and not have_sizes:
        raise InputError(
            "Expected labels with 'orig_size' (height, width), as the protocol adds a pixel to each side, but some have "
            "none; take them from the image processor, or choose a protocol of continuous boxes."
        )
    if not have_sizes:
        return [torch.ones(2, device=device)] * len(labels)
    sizes = [torch.as_tensor(label["orig_size"], device=device, dtype=torch.float32) for label in labels]
    return [size.flip(0) for size in sizes]


def _check_labels(labels: Any, num_labels: int) -> None:
    """Raise InputError for labels that the model's own loss would fail on without a reason, or misread."""
    if isinstance(labels, Mapping) or not isinstance(labels, Sequence):
        raise InputError(f"Expected labels to be a list with one dict per image but got {type(labels).__name__}.")
    for i, label in enumerate(labels):
        keys = sorted(label) if isinstance(label, Mapping) else []
        if not {"boxes", "class_labels"} <= set(keys):
            raise InputError(f"image {i}: expected labels with 'boxes' and 'class_labels' but got {keys}.")
        check_int64("class_labels", label["class_labels"], i)
    least, most = _range([label["class_labels"] for label in labels])
    if least < 0 or most >= num_labels:
        raise InputError(
            f"Expected class_labels in [0, {num_labels}), the model's labels without background, but got {least:g} to "
            f"{most:g}; labels that count background as 0 need 1 subtracted."
        )
    _, largest = _range([label["boxes"] for label in labels])
    if largest > _LARGEST_NORMALISED:
        raise InputError(
            "Expected boxes as (centre x, centre y, width, height) in parts of the image but got a coordinate of "
            f"{largest:g}; the model's image processor converts them from pixels."
        )


def _range(values: Sequence[Any]) -> tuple[float, float]:
    """Least and largest of some tensors' numbers; zeros if there are none."""
    flat = torch.cat([torch.as_tensor(value).reshape(-1) for value in values]) if values else torch.zeros(0)
    least, most = flat.aminmax() if flat.numel() else (flat.sum(), flat.sum())
    return float(least), float(most)


def family_of(model: nn.Module) -> Family:
    for kind in type(model).__mro__:
        if kind.__name__ in FAMILIES:
            return FAMILIES[kind.__name__]
    name = type(model).__name__
    hint = "; call train_for_map on the model inside, then wrap it" if hasattr(model, "module") else ""
    raise ConfigError(
        f"Expected a model of one of {sorted(FAMILIES)}, or a subclass, but got {name}{hint}."
        f"{suggest(name, sorted(FAMILIES))} For other detectors, see MAPLoss."
    )
