"""How the outputs of a head are read: as scores to rank by, and by the usual classification loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from stepgrad.errors import InputError
from stepgrad.fine_tuning.windows import Labelled

StockLoss = Callable[[Tensor, Sequence[Labelled]], Tensor]
"""Of the outputs for all windows of some images, in order."""
_LEFT_OUT = -100


@dataclass(frozen=True)
class Reading:
    """Outputs (N, K): a logit per class, each for itself. Outputs (N, K + 1): logits of a softmax with background."""

    num_classes: int
    background: str | None = None
    """Which column is background: "first", "last" or, with K columns, None."""
    hit: float = 0.5
    """IoU from which a window shows an object."""
    soft_labels: bool = False
    """Without background: the label of a hit is its IoU in place of 1, so that scores learn how well boxes fit."""

    def scores(self, outputs: Tensor) -> Tensor:
        """(N, K) to rank windows by."""
        self._check(outputs)
        if self.background is None:
            return outputs
        columns = outputs.log_softmax(dim=1)
        return columns[:, 1:] if self.background == "first" else columns[:, :-1]

    def stock_loss(self, outputs: Tensor, images: Sequence[Labelled]) -> Tensor:
        """Cross-entropy; what shows a difficult object or a crowd takes no part."""
        self._check(outputs)
        overlap = torch.cat([image.overlap for image in images]).to(outputs.device)
        ignored = torch.cat([image.ignored for image in images]).to(outputs.device)
        hit = overlap >= self.hit
        if self.background is None:
            counted = (~(hit & ignored)).to(outputs.dtype)
            label = hit * (overlap if self.soft_labels else 1.0)
            losses = F.binary_cross_entropy_with_logits(outputs, label.to(outputs.dtype), counted, reduction="none")
            return losses.sum() / max(len(outputs), 1)
        best, which = overlap.max(dim=1)
        column = torch.where(best >= self.hit, which, self.num_classes)
        if self.background == "first":
            column = (column + 1) % (self.num_classes + 1)
        column = column.masked_fill((hit & ignored).any(dim=1), _LEFT_OUT)
        return F.cross_entropy(outputs, column, reduction="sum", ignore_index=_LEFT_OUT) / max(len(outputs), 1)

    def _check(self, outputs: Tensor) -> None:
        columns = self.num_classes + (self.background is not None)
        if outputs.ndim != 2 or outputs.shape[1] != columns:
            way_out = ' (background="first" or "last" says that one of them is background)'
            raise InputError(
                f"Expected the head's outputs to have {columns} columns but got {list(outputs.shape)}"
                f"{way_out if self.background is None else ''}."
            )
