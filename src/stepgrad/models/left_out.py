"""Windows in regions that nobody judges: no background for a model's own classification loss, and not ranked for mAP.

A region is a crowd of the target. Protocols of COCO's kind know what that is. Others, such as VOC's, would take it for an
object: for these, windows that lie in one by half or more and find no object are taken out of the lists first, as VisDrone's own
evaluation does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from stepgrad.losses.ragged import ScoredPairs
from stepgrad.metric.batch import Target
from stepgrad.metric.protocol import Protocol

LEAST_SHARE = 0.5  # of a window in one region from which on the stock loss does not see it: the least IoU of COCO
PER_OBJECT = ("boxes", "labels", "class_labels", "masks", "keypoints", "area", "difficult", "iscrowd")
"""Entries of a target with a row for each object."""


def covered_shares(boxes: Tensor, regions: Tensor) -> Tensor:
    """(N, R) the share of each box that each region covers; 0 for a box without area.

    Args:
        boxes: (N, 4), or (N, R, 4) where each region has boxes of its own.
        regions: (R, 4).

    >>> covered_shares(torch.tensor([[0.0, 0.0, 4.0, 1.0]]), torch.tensor([[3.0, 0.0, 9.0, 9.0]]))
    tensor([[0.2500]])
    """
    each = boxes if boxes.ndim == 3 else boxes[:, None]
    low = torch.maximum(each[..., :2], regions[:, :2])
    high = torch.minimum(each[..., 2:], regions[:, 2:])
    area = (each[..., 2:] - each[..., :2]).prod(dim=-1)
    shares: Tensor = (high - low).clamp(min=0).prod(dim=-1) / area
    return torch.where(area > 0, shares, 0.0)


@torch.no_grad()
def hidden_pairs(boxes: Tensor, regions: Tensor, columns: Tensor, K: int) -> Tensor:
    """(N, K) whether half of a window or more lies in one region of the class.

    Args:
        boxes: (N, 4) of windows, or (N, K, 4) where a window has a box for each class.
        regions: (R, 4).
        columns: (R,) classes of the regions; a region of several classes comes once for each.
        K: number of classes.

    >>> box = torch.tensor([[0.0, 0.0, 9.0, 9.0]])
    >>> hidden_pairs(box, box, torch.tensor([1]), 3)
    tensor([[False,  True, False]])
    """
    regions, columns = regions.to(boxes), columns.to(boxes.device)
    if boxes.ndim == 3:
        shares = covered_shares(boxes[:, columns], regions)
    else:  # a region of every class is looked at once
        places, number = regions.unique(dim=0, return_inverse=True)
        shares = covered_shares(boxes, places)[:, number]
    of_class = torch.nn.functional.one_hot(columns, K).to(torch.float32)  # (R, K)
    return (shares >= LEAST_SHARE).to(torch.float32) @ of_class > 0


def hide(logits: Tensor, hidden: Tensor) -> Tensor:
    """Logits with those of hidden pairs so low that a loss which wants them low is next to nothing and has no gradient.

    Their probabilities are not 0: some losses take the logarithm of it, times a weight of 0.

    >>> logits = torch.zeros(2, requires_grad=True)
    >>> loss = torch.nn.functional.softplus(hide(logits, torch.tensor([True, False]))).sum()
    >>> round(loss.item(), 4), torch.autograd.grad(loss, logits)[0].tolist()
    (0.6931, [0.0, 0.5])
    """
    return logits.masked_fill(hidden, -16.0 if logits.dtype == torch.float16 else -80.0)


def split_crowds(target: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A target without its crowds, and its crowds.

    >>> target = {"boxes": torch.zeros(2, 4), "labels": torch.tensor([3, 4]), "iscrowd": torch.tensor([1, 0])}
    >>> [part["labels"].tolist() for part in split_crowds(target)]
    [[4], [3]]
    """
    crowd = target["iscrowd"].bool()
    objects, regions = (
        {key: _rows(target[key], part) for key in PER_OBJECT if key in target} for part in (~crowd, crowd)
    )
    return {**target, **objects}, {**target, **regions}


def has_crowds(target: Mapping[str, Any]) -> bool:
    """Whether a target has crowds, which are regions that nobody judges."""
    return "iscrowd" in target and bool(torch.as_tensor(target["iscrowd"]).any())


def knows_regions(protocol: Protocol) -> bool:
    """Whether a protocol itself takes a crowd for a region."""
    return protocol.duplicates == "best_free" and protocol.crowds == "region"


def judged(found: Mapping[str, Any], target: Target, protocol: Protocol) -> tuple[dict[str, Any], Target]:
    """Detections of an image and its target, as the protocol counts them without regions."""
    if knows_regions(protocol) or not has_crowds(target):
        return dict(found), target
    kept = _counts(found["boxes"], found["labels"], None, target, protocol)
    listed = {key: value for key, value in found.items() if key in (*PER_OBJECT, "scores")}
    return {**found, **{key: _rows(value, kept) for key, value in listed.items()}}, split_crowds(target)[0]


def judged_pairs(
    pairs: ScoredPairs, targets: Sequence[Target], protocol: Protocol
) -> tuple[ScoredPairs, Sequence[Target]]:
    """The same for candidates of a loss, whose targets count classes as columns."""
    if knows_regions(protocol) or not any(map(has_crowds, targets)):
        return pairs, targets
    kept = torch.ones_like(pairs.images, dtype=torch.bool)
    tables = None if pairs.overlaps is None else list(pairs.overlaps)
    for i, target in enumerate(targets):
        rows = torch.where(pairs.images == i)[0]
        if has_crowds(target):
            table = None if tables is None else tables[i]
            kept[rows] = _counts(pairs.boxes[rows], pairs.classes[rows], table, target, protocol)
        if tables is not None:
            objects = ~target["iscrowd"].bool() if "iscrowd" in target else slice(None)
            tables[i] = tables[i][kept[rows]][:, objects]
    columns = (pairs.scores[kept], pairs.boxes[kept], pairs.images[kept], pairs.classes[kept])
    objects_only = [split_crowds(target)[0] if "iscrowd" in target else target for target in targets]
    return replace(ScoredPairs(*columns), overlaps=tables), objects_only


@torch.no_grad()
def _counts(boxes: Tensor, labels: Tensor, table: Tensor | None, target: Target, protocol: Protocol) -> Tensor:
    """(M,) whether a window lies in no region of its class, or finds an object.

    Args:
        boxes: (M, 4).
        labels: (M,) classes of the windows.
        table: (M, G) overlaps with the objects; None: those of boxes.
        target: with crowds among the objects.
        protocol: whose least threshold says what finds an object.
    """
    there, of_objects = target["boxes"].to(boxes), target["labels"].to(labels.device)
    crowd = target["iscrowd"].bool().to(labels.device)
    same = labels[:, None] == of_objects
    shares = covered_shares(boxes, there)
    inside = ((shares >= LEAST_SHARE) & same & crowd).any(dim=1)
    if table is None:
        areas, areas_there = ((b[:, 2:] - b[:, :2]).prod(dim=1) for b in (boxes, there))
        shared = shares * areas[:, None]
        table = shared / (areas[:, None] + areas_there - shared)
    finds = ((table.to(boxes.device) >= min(protocol.match_thresholds)) & same & ~crowd).any(dim=1)
    return ~inside | finds


def _rows(value: Any, kept: Tensor) -> Any:
    """The rows kept of a tensor, or of a list such as run-length masks."""
    if isinstance(value, Tensor):
        return value[kept.to(value.device)]
    return [entry for entry, keep in zip(value, kept.tolist(), strict=True) if keep]
