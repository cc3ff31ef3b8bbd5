"""Regions that nobody judges, for criteria of DETR's kind: queries in them are no background.

Regions are apart from the objects of a label: "ignored_boxes" (R, 4), as boxes are, and "ignored_labels" (R,), without which they
are of every class. Crowds ("iscrowd") become such regions. All criteria of this kind call `get_loss(name, outputs, targets,
indices, ...)` for every decoder layer, where `indices` say which query was given which object.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from stepgrad.errors import InputError
from stepgrad.losses.ragged import ScoredPairs
from stepgrad.metric.batch import Target
from stepgrad.models.left_out import has_crowds, hidden_pairs, hide, split_crowds
from stepgrad.models.specialised import Specialised, despecialise, specialise

BOXES, LABELS = "ignored_boxes", "ignored_labels"
OF_CLASSES = ("labels", "vfl", "focal", "mal", "bce")
"""What criteria call their losses that know of background."""


def crowds_apart(labels: Sequence[Target], name: str = "class_labels") -> list[dict[str, Any]]:
    """The labels without crowds, which are regions beside them."""
    return [_apart(label, name) if has_crowds(label) else dict(label) for label in labels]


def _apart(label: Target, name: str) -> dict[str, Any]:
    objects, crowds = split_crowds(label)
    boxes, classes = crowds["boxes"], crowds[name]
    if BOXES in label:
        given, of_class = regions_of(label, int(classes.max()) + 1)
        if LABELS not in label:
            raise InputError(
                f"Expected {LABELS!r} beside {BOXES!r} where other objects are crowds, but there are none."
            )
        boxes, classes = torch.cat([given, boxes]), torch.cat([of_class, classes])
    return {**objects, BOXES: boxes, LABELS: classes}


def regions_of(label: Target, K: int) -> tuple[Tensor, Tensor]:
    """(R, 4) regions of an image and (R,) their classes, of K; a region of every class comes K times."""
    boxes = label.get(BOXES)
    if boxes is None:
        boxes = torch.as_tensor(label["boxes"]).new_zeros(0, 4)
        return boxes, torch.zeros(0, dtype=torch.long, device=boxes.device)
    if LABELS in label:
        if label[LABELS].shape != boxes.shape[:1]:
            raise InputError(
                f"Expected {LABELS!r} to be {[len(boxes)]}, one for each of {BOXES!r}, but got {list(label[LABELS].shape)}."
            )
        return boxes, label[LABELS]
    return boxes.repeat(K, 1), torch.arange(K, device=boxes.device).repeat_interleave(len(boxes))


def any_regions(labels: Sequence[Target]) -> bool:
    """Whether there is a region in some image."""
    return any(len(label.get(BOXES, ())) for label in labels)


class CrowdsApart:
    """A hook before a model's forward pass in training: denoising queries, too, are made of objects alone."""

    def __call__(self, model: nn.Module, inputs: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        labels = named.get("labels")
        if (
            not model.training
            or not isinstance(labels, Sequence)
            or not all(isinstance(label, Mapping) for label in labels)
        ):
            return None
        return inputs, {**named, "labels": crowds_apart(labels)}


def as_crowds(label: Target, K: int, name: str = "class_labels") -> Target:
    """The label with its regions as crowds among the objects, as mAP counts them."""
    boxes, classes = regions_of(label, K)
    if not len(boxes):
        return label
    count = len(label[name])
    flags = torch.arange(count + len(boxes), device=boxes.device) >= count
    rest = {key: value for key, value in label.items() if key not in (BOXES, LABELS)}
    if "difficult" in rest:
        rest["difficult"] = torch.cat([rest["difficult"].bool(), torch.zeros_like(classes, dtype=torch.bool)])
    there = torch.as_tensor(label["boxes"], device=boxes.device).reshape(-1, 4).to(boxes.dtype)
    return {**rest, "boxes": torch.cat([there, boxes]), name: torch.cat([label[name], classes]), "iscrowd": flags}


class CriterionWithRegions(Specialised):
    """A criterion for whose classification losses queries in regions are no background."""

    matcher: Any
    regions: Sequence[tuple[Tensor, Tensor]] = ()  # of each image, as `regions_of` gives them

    def get_loss(
        self, loss: str, outputs: Mapping[str, Any], targets: Any, indices: Any, *more: Any, **named: Any
    ) -> Any:
        """A loss of one decoder layer."""
        if loss in OF_CLASSES and self.regions:
            name = "logits" if "logits" in outputs else "pred_logits"
            boxes, aims = (
                outputs["pred_boxes"],
                [target.get("class_labels", target.get("labels")) for target in targets],
            )
            outputs = {**outputs, name: without_regions(outputs[name], boxes, self.regions, aims, indices)}
        return super().get_loss(loss, outputs, targets, indices, *more, **named)  # type: ignore[misc]


def without_regions(
    logits: Tensor,
    boxes: Tensor,
    regions: Sequence[tuple[Tensor, Tensor]],
    labels: Sequence[Tensor],
    indices: Sequence[tuple[Tensor, Tensor]],
) -> Tensor:
    """Logits (images, queries, columns) of which no loss of background sees those in regions of their class.

    A query that was given an object still learns its class.
    """
    hidden = torch.zeros_like(logits, dtype=torch.bool)
    for i, (places, classes) in enumerate(regions):
        if len(places):
            hidden[i] = hidden_pairs(_corners(boxes[i].detach()), _corners(places), classes, logits.shape[-1])
            queries, objects = (numbers.to(logits.device) for numbers in indices[i])
            hidden[i, queries, labels[i].to(logits.device)[objects]] = False
    return hide(logits, hidden)


def _corners(boxes: Tensor) -> Tensor:
    centre, half = boxes[:, :2], boxes[:, 2:] / 2
    return torch.cat([centre - half, centre + half], dim=1)


@contextmanager
def ignoring(labels: Sequence[Target], K: int) -> Iterator[None]:
    """Meanwhile criteria that are called ignore the regions of these labels."""
    regions = [regions_of(label, K) for label in labels]
    met: list[nn.Module] = []

    def watch(module: nn.Module, inputs: Any) -> None:
        if hasattr(module, "get_loss") and hasattr(module, "matcher") and not isinstance(module, CriterionWithRegions):
            specialise(module, CriterionWithRegions).__dict__["regions"] = regions
            met.append(module)

    hook = register_module_forward_pre_hook(watch)  # some criteria are made anew for every batch
    try:
        yield
    finally:
        hook.remove()
        for module in met:
            del module.__dict__["regions"]
            despecialise(module)


def pairs_of(scores: Sequence[Tensor], boxes: Sequence[Tensor]) -> ScoredPairs:
    """Every query in every class, as candidates: of each image (N, K) scores and (N, 4) boxes."""
    K = scores[0].shape[1]
    counts = torch.tensor([len(s) for s in scores], device=scores[0].device)
    images = torch.arange(len(scores), device=counts.device).repeat_interleave(counts * K)
    classes = torch.arange(K, device=counts.device).repeat(int(counts.sum()))
    flat = torch.cat([s.flatten() for s in scores])
    return ScoredPairs(flat, torch.cat(list(boxes)).repeat_interleave(K, dim=0), images, classes)
