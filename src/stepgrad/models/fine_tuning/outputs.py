"""How the outputs of a head are read: as scores to rank by, and by the usual classification loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from stepgrad.errors import ConfigError, InputError, one_of
from stepgrad.models.fine_tuning.windows import Labelled

UsualLoss = Callable[[Tensor, Sequence[Labelled]], Tensor]
"""A loss of the outputs for all windows of some images, in order."""
_LEFT_OUT = -100
_WINDOWS_PER_OBJECT = 10


@dataclass(frozen=True)
class Reading:
    """Outputs (N, K): a logit per class, each for itself. Outputs (N, K + 1): logits of a softmax with background."""

    num_classes: int
    background: str | None = None
    """Which column is background: "first", "last" or, with K columns, None."""
    hit: float = 0.5
    """IoU from which a window shows an object."""
    labels: str = "hard"
    """Of a hit: "hard" is 1. Without background also "soft", its IoU, so that scores learn how well boxes fit; or "aligned",
    see `aligned_labels`."""

    def __post_init__(self) -> None:
        if self.background is not None:
            one_of("background", self.background, ["first", "last"])
        one_of("labels", self.labels, ["hard", "soft", "aligned"])
        if self.labels != "hard" and self.background is not None:
            raise ConfigError(
                f'labels="{self.labels}" is for outputs that each stand for one class, not for a softmax with background.'
            )

    def scores(self, outputs: Tensor) -> Tensor:
        """(N, K) to rank windows by."""
        self._check(outputs)
        if self.background is None:
            return outputs
        columns = outputs.log_softmax(dim=1)
        return columns[:, 1:] if self.background == "first" else columns[:, :-1]

    def probability(self, score: float) -> float:
        """What a score to rank by stands for."""
        number = torch.tensor(score, dtype=torch.float64)
        return float(number.sigmoid() if self.background is None else number.exp())

    def stock_loss(self, outputs: Tensor, images: Sequence[Labelled]) -> Tensor:
        """Cross-entropy; what shows a difficult object or a crowd takes no part."""
        self._check(outputs)
        overlap = torch.cat([image.overlap for image in images]).to(outputs.device)
        ignored = torch.cat([image.ignored for image in images]).to(outputs.device)
        hit = overlap >= self.hit
        if self.background is not None:
            return self._softmax_loss(outputs, overlap, hit & ignored)
        counted, scale = ~(hit & ignored), float(max(len(outputs), 1))
        if self.labels == "aligned":
            columns = outputs.detach().split([len(image.boxes) for image in images])
            label = torch.cat([aligned_labels(own, image) for own, image in zip(columns, images, strict=True)])
            counted, scale = counted | (label > 0.0), max(float(label.sum()), 1.0)
        else:
            label = hit * (overlap if self.labels == "soft" else 1.0)
        weights = counted.to(outputs.dtype)
        losses = F.binary_cross_entropy_with_logits(outputs, label.to(outputs.dtype), weights, reduction="none")
        return losses.sum() / scale

    def _softmax_loss(self, outputs: Tensor, overlap: Tensor, ignored: Tensor) -> Tensor:
        best, which = overlap.max(dim=1)
        column = torch.where(best >= self.hit, which, self.num_classes)
        if self.background == "first":
            column = (column + 1) % (self.num_classes + 1)
        column = column.masked_fill(ignored.any(dim=1), _LEFT_OUT)
        return F.cross_entropy(outputs, column, reduction="sum", ignore_index=_LEFT_OUT) / max(len(outputs), 1)

    def _check(self, outputs: Tensor) -> None:
        columns = self.num_classes + (self.background is not None)
        if outputs.ndim != 2 or outputs.shape[1] != columns:
            way_out = ' (background="first" or "last" says that one of them is background)'
            raise InputError(
                f"Expected the head's outputs to have {columns} columns but got {list(outputs.shape)}"
                f"{way_out if self.background is None else ''}."
            )


def aligned_labels(logits: Tensor, image: Labelled) -> Tensor:
    """(N, K) labels of task-aligned learning (Feng et al. 2021), with YOLOv8's numbers.

    Of each object, the ten windows with the largest score^0.5 * IoU^6 learn that value, scaled so that the largest is the
    object's best IoU; all others learn 0. The scores are the head's own, so the labels change as it learns, and of windows
    that fit an object alike the one that leads already learns to lead: a second detection of it is not rewarded.
    """
    label = torch.zeros_like(logits)
    classes = image.target["labels"].to(logits.device)
    if logits.numel() == 0 or len(classes) == 0:
        return label
    overlap = image.by_object.to(logits.device, logits.dtype)
    value = logits.sigmoid()[:, classes] ** 0.5 * overlap**6
    best = value.topk(min(_WINDOWS_PER_OBJECT, len(value)), dim=0)
    chosen = torch.zeros_like(value).scatter(0, best.indices, best.values)
    scale = overlap.amax(dim=0) / chosen.amax(dim=0).clamp_min(torch.finfo(value.dtype).tiny)
    return label.scatter_reduce(1, classes.expand(len(logits), -1), chosen * scale, "amax")
