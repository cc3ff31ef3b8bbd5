"""IoU-aware soft labels: a classifier that is asked how well a box fits, not only whether it does.

Varifocal loss (Zhang et al. 2021) and its kin teach the score of an object's class to be the box's IoU with the object.
Which windows or anchors are on objects, and all of the box regression, stay the stock model's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.detection import FCOS, RetinaNet
from torchvision.models.detection.ssd import SSD
from torchvision.ops import box_iou

from stepgrad.detector.sampling import Sample

ALPHA = 0.75
GAMMA = 2.0
"""Varifocal loss's own: how much the anchors that show nothing weigh, and how little those of them that are ranked low."""
Targets = Sequence[Mapping[str, Any]]


def soft_cross_entropy(activations: Sequence[Tensor], samples: Sequence[Sample], targets: Targets) -> Tensor:
    """Cross-entropy of Fast R-CNN where a window on an object is of its class by its IoU, and background by the rest."""
    joined = torch.cat(list(activations)).float()
    wanted = torch.cat([soft_targets(s, t["boxes"], joined.shape[1]) for s, t in zip(samples, targets, strict=True)])
    return F.cross_entropy(joined, wanted)


def soft_targets(sample: Sample, object_boxes: Tensor, columns: int) -> Tensor:
    """(N, columns) shares of each window's classes, background last; the rows sum to 1."""
    shares = torch.zeros(len(sample.windows), columns)
    shares[:, -1] = 1.0
    if len(object_boxes) == 0:
        return shares
    overlap = box_iou(sample.windows.double(), object_boxes.double()).max(dim=1).values.float()
    rows = (sample.labels < columns - 1).nonzero().flatten()  # windows on objects: IoU >= 0.5, as with hard labels
    shares[rows, sample.labels[rows]] = overlap[rows]
    shares[rows, -1] = 1.0 - overlap[rows]
    return shares


def varifocal_loss(logits: Tensor, wanted: Tensor) -> Tensor:
    """The sum over (N, K) logits of their distance to the wanted IoUs (Zhang et al. 2021, eq. 2).

    >>> varifocal_loss(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]]))   # log 2 and .75 / 4 of it
    tensor(0.8231)
    """
    weights = torch.where(wanted > 0.0, wanted, ALPHA * logits.detach().sigmoid() ** GAMMA)
    return F.binary_cross_entropy_with_logits(logits, wanted, weight=weights, reduction="sum")


def soften(model: Any) -> None:
    """Have one of torchvision's detectors learn from soft labels from now on.

    FCOS loses its centre-ness, which stood in for the IoU: its score is the class's alone.
    """
    if isinstance(model, SSD):
        model.compute_loss = partial(_ssd_losses, model, model.compute_loss)
    elif isinstance(model, RetinaNet):
        decode = model.head.regression_head.box_coder.decode_single
        model.head.compute_loss = partial(_dense_losses, model.head.compute_loss, decode)
    elif isinstance(model, FCOS):
        model.head.compute_loss = partial(_dense_losses, model.head.compute_loss, model.head.box_coder.decode)
        model.head.register_forward_hook(_sure_of_centres)
    else:
        raise TypeError(f"Expected an SSD, a RetinaNet or an FCOS but got {type(model).__name__}.")


def _sure_of_centres(_head: nn.Module, _inputs: Any, outputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {**outputs, "bbox_ctrness": torch.full_like(outputs["bbox_ctrness"], 100.0)}  # a probability of 1


def _fits(decode: Callable[[Tensor, Tensor], Tensor], found: Tensor, anchors: Tensor, objects: Tensor) -> Tensor:
    """(N,) IoU of N decoded boxes, each with its own object."""
    boxes = decode(found.detach(), anchors)
    corners = torch.maximum(boxes[:, :2], objects[:, :2]), torch.minimum(boxes[:, 2:], objects[:, 2:])
    shared = (corners[1] - corners[0]).clamp(min=0.0).prod(dim=1)
    areas = [(b[:, 2:] - b[:, :2]).clamp(min=0.0).prod(dim=1) for b in (boxes, objects)]
    return shared / (areas[0] + areas[1] - shared).clamp(min=1e-6)


def _dense_losses(
    stock: Callable[..., dict[str, Tensor]],
    decode: Callable[[Tensor, Tensor], Tensor],
    targets: Targets,
    head_outputs: dict[str, Tensor],
    anchors: Sequence[Tensor],
    matched_idxs: Sequence[Tensor],
) -> dict[str, Tensor]:
    """RetinaNet's and FCOS's losses, with varifocal loss in the place of focal loss."""
    losses = stock(targets, head_outputs, anchors, matched_idxs)
    losses.pop("bbox_ctrness", None)
    total, positives = head_outputs["cls_logits"].new_zeros(()), 0
    for i, matched in enumerate(matched_idxs):
        logits, boxes = head_outputs["cls_logits"][i], head_outputs["bbox_regression"][i]
        rows = (matched >= 0).nonzero().flatten()
        which = matched[rows]
        wanted = torch.zeros_like(logits)
        if len(rows):
            fits = _fits(decode, boxes[rows], anchors[i][rows], targets[i]["boxes"][which])
            wanted[rows, targets[i]["labels"][which]] = fits
        counted = matched != -2  # RetinaNet's anchors that are neither on an object nor off it
        total = total + varifocal_loss(logits[counted], wanted[counted])
        positives += len(rows)
    return {**losses, "classification": total / max(1, positives)}


def _ssd_losses(
    model: Any,
    stock: Callable[..., dict[str, Tensor]],
    targets: Targets,
    head_outputs: dict[str, Tensor],
    anchors: Sequence[Tensor],
    matched_idxs: Sequence[Tensor],
) -> dict[str, Tensor]:
    """SSD's losses, with shares of class and background (column 0) as labels; of background, the hardest, as ever."""
    losses = stock(targets, head_outputs, anchors, matched_idxs)
    total, positives = head_outputs["cls_logits"].new_zeros(()), 0
    for i, matched in enumerate(matched_idxs):
        logits, boxes = head_outputs["cls_logits"][i], head_outputs["bbox_regression"][i]
        rows, others = (matched >= 0).nonzero().flatten(), (matched < 0).nonzero().flatten()
        which = matched[rows]
        fits = _fits(model.box_coder.decode_single, boxes[rows], anchors[i][rows], targets[i]["boxes"][which])
        shares = torch.zeros(len(rows), logits.shape[1])
        shares[:, 0] = 1.0 - fits
        shares[torch.arange(len(rows)), targets[i]["labels"][which]] = fits
        background = F.cross_entropy(logits[others], torch.zeros_like(others), reduction="none")
        hardest = background.topk(min(len(others), int(model.neg_to_pos_ratio * len(rows)))).values
        total = total + F.cross_entropy(logits[rows], shares, reduction="sum") + hardest.sum()
        positives += len(rows)
    return {**losses, "classification": total / max(1, positives)}
