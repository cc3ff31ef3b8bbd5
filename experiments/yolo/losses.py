"""What a class head on YOLOv8n's windows is trained by: the cross-entropies of detectors, and others' losses for AP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.ops import box_iou, sigmoid_focal_loss

from experiments.endless.soft_labels import varifocal_loss
from stepgrad.fine_tuning.outputs import Reading, StockLoss
from stepgrad.fine_tuning.windows import Labelled
from stepgrad.losses.baselines import make_baseline

CROSS_ENTROPIES = ("hard", "soft", "aligned", "varifocal", "focal", "weighted")
OTHERS = {
    "smooth_ap 0.3": ("smooth_ap", {"tau": 0.3}),
    "smooth_ap 1": ("smooth_ap", {"tau": 1.0}),
    "ap_loss": ("ap_loss", {}),
    "song": ("song", {}),
}
TOP, ALPHA, BETA = 10, 0.5, 6.0  # of YOLOv8's assigner


def stock_loss(name: str, num_classes: int, images: Sequence[Labelled]) -> StockLoss:
    """The loss of that name; `images` are the training images, for how often each class is there."""
    if name in ("hard", "soft"):
        return Reading(num_classes, soft_labels=name == "soft").stock_loss
    if name == "aligned":
        return Aligned({}).loss
    if name == "varifocal":
        return lambda outputs, batch: _judged_sum(varifocal_loss, outputs, batch)
    if name == "focal":
        return focal_loss
    if name == "weighted":
        return Weighted(class_weights(images, num_classes)).loss
    kind, options = OTHERS[name]
    baseline = make_baseline(kind, num_classes, **options)

    def loss(outputs: Tensor, batch: Sequence[Labelled]) -> Tensor:
        scores = outputs.double().split([len(image.boxes) for image in batch])
        return baseline(list(scores), [image.boxes for image in batch], [image.target for image in batch])

    return loss


def soft_label(batch: Sequence[Labelled]) -> tuple[Tensor, Tensor]:
    """(N, K) IoU of the windows on objects, 0 elsewhere; and which of these learn: none on a difficult object or a crowd."""
    overlap = torch.cat([image.overlap for image in batch])
    ignored = torch.cat([image.ignored for image in batch])
    hit = overlap >= 0.5
    return hit * overlap, ~(hit & ignored)


def _judged_sum(of_logits: object, outputs: Tensor, batch: Sequence[Labelled]) -> Tensor:
    label, judged = soft_label(batch)
    return of_logits(outputs[judged], label[judged]) / max(len(outputs), 1)  # type: ignore[operator, no-any-return]


def focal_loss(outputs: Tensor, batch: Sequence[Labelled]) -> Tensor:
    """Hard labels, alpha 1/4, gamma 2 (Lin et al. 2017), by the number of windows on objects."""
    label, judged = soft_label(batch)
    hits = (label[judged] > 0.0).to(outputs.dtype)
    total: Tensor = sigmoid_focal_loss(outputs[judged], hits, reduction="sum")
    return total / hits.sum().clamp_min(1.0)


def class_weights(images: Sequence[Labelled], num_classes: int, power: float = 0.5) -> Tensor:
    """Rare classes weigh more: objects to the minus `power`, mean 1."""
    counts = torch.zeros(num_classes)
    for image in images:
        judged = ~image.target["iscrowd"].bool() if "iscrowd" in image.target else slice(None)
        counts += torch.bincount(image.target["labels"][judged], minlength=num_classes)
    weights = counts.clamp_min(1.0) ** -power
    return weights / weights.mean()


@dataclass(frozen=True)
class Weighted:
    """Cross-entropy with soft labels where every class has its weight."""

    weights: Tensor  # (K,)

    def loss(self, outputs: Tensor, batch: Sequence[Labelled]) -> Tensor:
        label, judged = soft_label(batch)
        losses = F.binary_cross_entropy_with_logits(outputs, label, reduction="none")
        return (losses * judged * self.weights).sum() / max(len(outputs), 1)


@dataclass(frozen=True)
class Aligned:
    """Cross-entropy with YOLOv8's labels (task-aligned assignment, Feng et al. 2021).

    Of each object, the ten windows with the largest score^0.5 * IoU^6 learn that value, scaled so that the largest is the
    object's best IoU; all others learn 0. The scores are the head's own, so the labels change as it learns.
    """

    known: dict[int, Tensor]
    """(N, G) overlaps by the image's id: every image comes many times."""

    def loss(self, outputs: Tensor, batch: Sequence[Labelled]) -> Tensor:
        columns = outputs.split([len(image.boxes) for image in batch])
        label = torch.cat([self.labels(own.detach(), image) for own, image in zip(columns, batch, strict=True)])
        _, judged = soft_label(batch)
        losses = F.binary_cross_entropy_with_logits(outputs, label, reduction="none")
        return (losses * (judged | (label > 0.0))).sum() / label.sum().clamp_min(1.0)

    def labels(self, logits: Tensor, image: Labelled) -> Tensor:
        """(N, K)."""
        wanted = torch.zeros_like(logits)
        classes = image.target["labels"]
        if len(classes) == 0 or len(logits) == 0:
            return wanted
        overlap = self._overlap(image)
        value = logits.sigmoid()[:, classes] ** ALPHA * overlap**BETA
        best = value.topk(min(TOP, len(value)), dim=0)
        chosen = torch.zeros_like(value).scatter(0, best.indices, best.values)
        reach = overlap.amax(dim=0) / chosen.amax(dim=0).clamp_min(1e-12)
        return wanted.scatter_reduce(1, classes.expand(len(logits), -1), chosen * reach, "amax")

    def _overlap(self, image: Labelled) -> Tensor:
        if id(image) not in self.known:
            found = box_iou(image.boxes.float(), image.target["boxes"].float())
            for flag in ("difficult", "iscrowd"):
                if flag in image.target:
                    found = found * ~image.target[flag].bool()
            self.known[id(image)] = found
        return self.known[id(image)]
