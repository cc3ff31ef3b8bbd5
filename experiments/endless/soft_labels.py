"""IoU-aware soft labels: a classifier that is asked how well a box fits, not only whether it does.

Varifocal loss (Zhang et al. 2021) and its kin teach the score of an object's class to be the box's IoU with the object.
Which windows or anchors are on objects, and all of the box regression, stay the stock model's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.models.detection import FCOS, RetinaNet
from torchvision.models.detection.fcos import FCOSHead
from torchvision.models.detection.retinanet import RetinaNetHead
from torchvision.models.detection.ssd import SSD
from torchvision.ops import box_iou

from stepgrad.detector.sampling import Sample

ALPHA = 0.75
GAMMA = 2.0
"""Varifocal loss's own: how much the anchors that show nothing weigh, and how little those of them that are ranked low."""
Targets = Sequence[Mapping[str, Any]]
Outputs = dict[str, Tensor]
Decode = Callable[[Tensor, Tensor], Tensor]


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

    As with `train_for_map`, the model stays the object it is and only a class changes, so that the two go together.
    """
    for stock, soft in ((SSD, SoftSSD), (RetinaNet, SoftRetinaNetHead), (FCOS, SoftFCOSHead)):
        if isinstance(model, stock):
            module = model if stock is SSD else model.head
            module.__class__ = soft
            return
    raise TypeError(f"Expected an SSD, a RetinaNet or an FCOS but got {type(model).__name__}.")


class SoftRetinaNetHead(RetinaNetHead):
    """RetinaNet's head with varifocal loss in the place of focal loss."""

    def compute_loss(self, targets: Targets, head_outputs: Outputs, anchors: Any, matched_idxs: Any) -> Outputs:
        losses = super().compute_loss(targets, head_outputs, anchors, matched_idxs)
        decode = self.regression_head.box_coder.decode_single
        return {**losses, "classification": _dense_loss(decode, targets, head_outputs, anchors, matched_idxs)}


class SoftFCOSHead(FCOSHead):
    """FCOS's head with varifocal loss and without centre-ness, which stood in for the IoU: the score is the class's alone."""

    def forward(self, x: list[Tensor]) -> Outputs:
        outputs = super().forward(x)
        return {**outputs, "bbox_ctrness": torch.full_like(outputs["bbox_ctrness"], 100.0)}  # a probability of 1

    def compute_loss(self, targets: Targets, head_outputs: Outputs, anchors: Any, matched_idxs: Any) -> Outputs:
        losses = super().compute_loss(targets, head_outputs, anchors, matched_idxs)
        loss = _dense_loss(self.box_coder.decode, targets, head_outputs, anchors, matched_idxs)
        return {"classification": loss, "bbox_regression": losses["bbox_regression"]}


class SoftSSD(SSD):
    """SSD with shares of class and background (column 0) as labels; of background, the hardest anchors, as ever."""

    def compute_loss(self, targets: Targets, head_outputs: Outputs, anchors: Any, matched_idxs: Any) -> Outputs:
        losses = super().compute_loss(targets, head_outputs, anchors, matched_idxs)
        total, positives = head_outputs["cls_logits"].new_zeros(()), 0
        for i, matched in enumerate(matched_idxs):
            logits, boxes = head_outputs["cls_logits"][i], head_outputs["bbox_regression"][i]
            rows, others = (matched >= 0).nonzero().flatten(), (matched < 0).nonzero().flatten()
            which = matched[rows]
            fits = _fits(self.box_coder.decode_single, boxes[rows], anchors[i][rows], targets[i]["boxes"][which])
            shares = torch.zeros_like(logits[rows])
            shares[:, 0] = 1.0 - fits
            shares[torch.arange(len(rows)), targets[i]["labels"][which]] = fits
            background = F.cross_entropy(logits[others], torch.zeros_like(others), reduction="none")
            hardest = background.topk(min(len(others), int(self.neg_to_pos_ratio * len(rows)))).values
            total = total + F.cross_entropy(logits[rows], shares, reduction="sum") + hardest.sum()
            positives += len(rows)
        return {**losses, "classification": total / max(1, positives)}


def _dense_loss(decode: Decode, targets: Targets, head_outputs: Outputs, anchors: Any, matched_idxs: Any) -> Tensor:
    """The varifocal loss of RetinaNet's or FCOS's anchors, per anchor on an object."""
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
    return total / max(1, positives)


def _fits(decode: Decode, found: Tensor, anchors: Tensor, objects: Tensor) -> Tensor:
    """(N,) IoU of N decoded boxes, each with its own object."""
    boxes = decode(found.detach(), anchors)
    corners = torch.maximum(boxes[:, :2], objects[:, :2]), torch.minimum(boxes[:, 2:], objects[:, 2:])
    shared = (corners[1] - corners[0]).clamp(min=0.0).prod(dim=1)
    areas = [(b[:, 2:] - b[:, :2]).clamp(min=0.0).prod(dim=1) for b in (boxes, objects)]
    return shared / (areas[0] + areas[1] - shared).clamp(min=1e-6)
