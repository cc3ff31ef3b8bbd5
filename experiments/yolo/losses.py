"""What a class head on YOLOv8n's windows is trained by: the cross-entropies of detectors, and others' losses for AP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.ops import sigmoid_focal_loss

from experiments.baselines import make_baseline
from experiments.endless.soft_labels import varifocal_loss
from stepgrad.models.fine_tuning.outputs import Reading, UsualLoss
from stepgrad.models.fine_tuning.training import loss_of_outputs
from stepgrad.models.fine_tuning.windows import Labelled

CROSS_ENTROPIES = ("hard", "soft", "aligned", "varifocal", "focal", "weighted")
OTHERS = {
    "smooth_ap 0.3": ("smooth_ap", {"tau": 0.3}),
    "smooth_ap 1": ("smooth_ap", {"tau": 1.0}),
    "ap_loss": ("ap_loss", {}),
    "song": ("song", {}),
}


def stock_loss(name: str, num_classes: int, images: Sequence[Labelled]) -> UsualLoss:
    """The loss of that name; `images` are the training images, for how often each class is there."""
    if name in ("hard", "soft", "aligned"):
        return Reading(num_classes, labels=name).stock_loss
    if name == "varifocal":
        return lambda outputs, batch: _judged_sum(varifocal_loss, outputs, batch)
    if name == "focal":
        return focal_loss
    if name == "weighted":
        return Weighted(class_weights(images, num_classes)).loss
    kind, options = OTHERS[name]
    return loss_of_outputs(make_baseline(kind, num_classes, **options), Reading(num_classes))


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
