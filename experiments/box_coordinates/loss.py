"""A mAP loss that boxes follow too: `MAPLoss`, and a zero that passes the pseudogradient of the same loss on to the boxes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from experiments.box_coordinates.steps import BoxMethod, Counted, all_box_gradients
from stepgrad.engine.jit import explain_wait
from stepgrad.errors import ConfigError
from stepgrad.losses.detection import MAPLoss
from stepgrad.losses.objective import product
from stepgrad.metric.batch import Batch, Target, make_batch
from stepgrad.plain_tensors import narrowed
from stepgrad.steps.autograd import attach


class BoxMAPLoss(nn.Module):
    """`map_loss` in value and in the gradient of the scores; boxes that require a gradient get theirs too.

    Args:
        map_loss: what the scores follow. Its clip, balance, l4 and through_nms do not concern the boxes.
        method: how the boxes' gradient is taken; None: MEE and the other defaults.

    After each call, `metrics` holds those of `map_loss` and box_nonzero (share of box coordinates with a gradient).

    >>> window = torch.tensor([[0.0, 0.0, 4.0, 10.0]], requires_grad=True)   # IoU 0.4 with the object: a false positive
    >>> target = {"boxes": torch.tensor([[0.0, 0.0, 10.0, 10.0]]), "labels": torch.tensor([0])}
    >>> loss_fn = BoxMAPLoss(MAPLoss(num_classes=1, log=False))
    >>> loss_fn([torch.tensor([[1.0]])], [window], [target]).backward()
    >>> window.grad[0, 2].item(), loss_fn.metrics["box_nonzero"]             # x2 = 5 would do: loss from 1 to 0
    (-0.5, 0.25)
    """

    def __init__(self, map_loss: MAPLoss, method: BoxMethod | None = None) -> None:
        super().__init__()
        if not isinstance(map_loss, MAPLoss):
            raise ConfigError(
                f"Expected a MAPLoss but got {type(map_loss).__name__}: a box's steps are searched for among the windows of "
                "a single process. Train boxes in one, or the scores alone in several."
            )
        if not isinstance(method, BoxMethod | None):
            raise ConfigError(f"Expected method to be a BoxMethod or None but got {method!r}.")
        self.map_loss = map_loss
        self.method = method or BoxMethod()
        self.metrics: dict[str, Any] = {}

    def forward(self, scores: Sequence[Tensor], boxes: Sequence[Tensor], targets: Sequence[Target]) -> Tensor:
        """The loss of a batch; arguments as for `MAPLoss`."""
        loss = self.map_loss(scores, boxes, targets)
        self.metrics = {**self.map_loss.metrics, "box_nonzero": 0.0}
        if torch.is_grad_enabled() and any(b.requires_grad for b in boxes):
            batch = make_batch(scores, boxes, targets, self.map_loss.num_classes)
            loss = loss + self._box_term(boxes, batch).to(loss)
        return loss

    def _box_term(self, boxes: Sequence[Tensor], batch: Batch) -> Tensor:
        """0, with the gradient d(loss)/dboxes."""
        joined = torch.cat([_like_the_batch(b, batch) for b in boxes])
        objective = self.map_loss.objective
        with explain_wait():
            found, present = all_box_gradients(
                Counted(batch, objective.protocol, objective.nms_threshold),
                self.method,
            )
        self.metrics["box_nonzero"] = int(np.count_nonzero(found)) / max(found.size, 1)
        gradient = narrowed(torch.from_numpy(self._slope(present) * found), joined.dtype).to(joined.device)
        return attach(joined, torch.zeros(()), product, gradient)

    def _slope(self, present: int) -> float:
        """d(loss) / d(AP of a class), where `present` classes have objects."""
        objective = self.map_loss.objective
        outer = -1.0 / (self.map_loss.metrics["map"] + objective.eps) if objective.log else -1.0
        counted = present if objective.protocol.absent_classes == "skip" else objective.num_classes
        return outer / max(counted, 1)


def _like_the_batch(boxes: Tensor, batch: Batch) -> Tensor:
    """(N, K, 4) if any image of the batch has boxes by class."""
    if batch.boxes_by_class and boxes.ndim == 2:
        return boxes[:, None].expand(-1, batch.num_classes, 4)
    return boxes
