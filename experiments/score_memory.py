"""Windows of recent batches as company for those of the present one.

The mAP of a few images is a noisy and biased estimate of a dataset's. A memory of what the model said of other images a
few steps ago makes the ranking long at no cost in memory or time of the model; those scores are a little out of date, and
constants: no gradient reaches them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from stepgrad.errors import whole_number
from stepgrad.losses.objective import BatchLoss
from stepgrad.metric.batch import Target
from stepgrad.steps.autograd import scale_gradient


class ScoredImage(NamedTuple):
    """What is remembered of an image."""

    scores: Tensor
    boxes: Tensor
    target: Target


class RememberingLoss(nn.Module):
    """A loss that ranks the scored windows of the latest images along with each batch it trains on.

    Args:
        loss_fn: `MAPLoss` or another loss of scores, boxes and targets.
        images: images to remember; the oldest are forgotten. 0: none, and the loss is unchanged.

    AP is a mean over the objects of all images ranked, so the share of each image shrinks as the memory fills. Therefore the
    gradient is multiplied by (images ranked / images in the batch), and training steps keep their size. A class's pushes up
    and down are balanced over all windows ranked, remembered ones included, so those in the batch alone need not sum to zero:
    shifting only its scores does change their place among the others.

    >>> box = torch.tensor([[0.0, 0.0, 10.0, 10.0]])
    >>> here, nothing = {"boxes": box, "labels": torch.tensor([0])}, {"boxes": box[:0], "labels": torch.zeros(0).long()}
    >>> from stepgrad import MAPLoss
    >>> loss_fn = RememberingLoss(MAPLoss(num_classes=1), images=100)
    >>> _ = loss_fn([torch.tensor([[0.9]])], [box], [nothing])      # a confident false alarm
    >>> score = torch.tensor([[0.2]], requires_grad=True)
    >>> loss_fn([score], [box], [here]).backward()
    >>> loss_fn.metrics["map"], len(loss_fn.memory), score.grad.item() < 0     # alone, it would have mAP 1 and no gradient
    (0.5, 2, True)
    """

    def __init__(self, loss_fn: BatchLoss, images: int) -> None:
        super().__init__()
        self.loss_fn = loss_fn
        self.memory: deque[ScoredImage] = deque(maxlen=whole_number("images", images, least=0))  # oldest first

    @property
    def metrics(self) -> dict[str, Any]:
        """Of the last call: the batch and its company together."""
        return self.loss_fn.metrics

    def forward(self, scores: Sequence[Tensor], boxes: Sequence[Tensor], targets: Sequence[Target]) -> Tensor:
        """The loss of the batch and the remembered images; the batch is remembered for the next call."""
        if self.memory.maxlen == 0 or not torch.is_grad_enabled():
            return self.loss_fn(scores, boxes, targets)
        old = list(self.memory)
        loss = self.loss_fn(
            [*scores, *(image.scores for image in old)],
            [*boxes, *(image.boxes for image in old)],
            [*targets, *(image.target for image in old)],
        )
        for own_scores, own_boxes, target in zip(scores, boxes, targets, strict=True):
            self.memory.append(ScoredImage(own_scores.detach().clone(), own_boxes.detach().clone(), target))
        if old and len(scores):
            loss = scale_gradient(loss, (len(scores) + len(old)) / len(scores))
        return loss
