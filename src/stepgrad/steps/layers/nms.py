"""Which windows NMS keeps, as a step function of each score.

With all other scores fixed, NMS has two outcomes (engine/nms.py): the window is kept, or it is not. They meet at the score of the
window at which one turns into the other, so the keep mask has at most one step in each score, on one side.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stepgrad.engine.neighbours import Neighbours, neighbours_of
from stepgrad.engine.nms import NONE, AfterNMS, rises_of_mask, suppress
from stepgrad.engine.order import descending_order
from stepgrad.errors import ConfigError, InputError
from stepgrad.metric.batch import make_batch
from stepgrad.metric.options import check_nms_threshold
from stepgrad.plain_tensors import narrowed, refuse_unreadable
from stepgrad.steps.autograd import attach, once
from stepgrad.steps.estimators import Method
from stepgrad.steps.layers.base import StepLayer, check_numbers

_TINY = float(np.finfo(np.float64).tiny)


def _ranked(column: NDArray[np.floating], neighbours: Neighbours) -> AfterNMS:
    """One class after NMS."""
    scores = np.ascontiguousarray(column, dtype=np.float64)
    return suppress(scores, descending_order(scores), neighbours)


def _slopes(
    ranking: AfterNMS, neighbours: Neighbours, outer: NDArray[np.float64], method: Method
) -> NDArray[np.float64]:
    """The vector-Jacobian product of the keep mask, by window. With a step on one side only, MEE and SDE agree."""
    number_of, index_of = neighbours.number_of, neighbours.index_of
    outer_of = np.zeros(len(index_of))
    outer_of[number_of] = outer
    rise, meets = (by_number[number_of] for by_number in rises_of_mask(ranking, neighbours, outer_of))
    scores, kept = ranking.scores[number_of], ranking.suppressor[number_of] == NONE
    steps = meets != NONE
    at = np.where(steps, ranking.scores[meets], scores)
    if method.estimator == "radius":
        moved = np.where(kept, scores - method.radius, scores + method.radius)
        ahead = (moved > at) | ((moved == at) & (np.arange(len(scores)) < index_of[meets]))
        return np.where(steps & (ahead != kept), rise, 0.0) / (2.0 * method.radius)
    distance = np.maximum(np.abs(scores - at), method.min_step)
    return np.where(steps & (distance > 0.0), 0.5 * rise / np.maximum(distance, _TINY), 0.0)


class NMSLayer(StepLayer):
    """Which windows greedy NMS keeps, 1 or 0, as a function of their scores: (N,) or, for K classes, (N, K).

    It is exact through every cascade: a score that moves past another may change what happens to windows it does not overlap.
    As in `nms`, a window is suppressed by a kept, higher one with IoU > threshold; equal scores rank by index. Boxes get no
    gradient. It is computed on the CPU.

    >>> boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0], [4.0, 0.0, 14.0, 10.0], [8.0, 0.0, 18.0, 10.0]])   # a chain
    >>> scores = torch.tensor([3.0, 2.0, 1.0], requires_grad=True)
    >>> keep = NMSLayer(threshold=0.3)(scores, boxes)
    >>> keep[2].backward()                         # the first holds the second down for the third
    >>> keep.tolist(), scores.grad.tolist()
    ([1.0, 0.0, 1.0], [0.5, -0.5, 0.0])
    """

    def __init__(
        self, threshold: float = 0.3, estimator: str = "mee", radius: float = 1.0, min_step: float = 0.0
    ) -> None:
        super().__init__(estimator, radius, min_step)
        plain_threshold = check_nms_threshold(threshold)
        if plain_threshold is None:
            raise ConfigError("Expected a threshold in [0, 1] but got None; without NMS every window is kept.")
        self.threshold = plain_threshold

    def forward(self, scores: Tensor, boxes: Tensor) -> Tensor:  # type: ignore[override]  # windows come with boxes
        """The keep mask, in the shape and dtype of the scores."""
        check_numbers(scores, 1)
        if not isinstance(boxes, Tensor):
            raise InputError(f"Expected boxes to be a tensor but got {type(boxes).__name__}.")
        refuse_unreadable(boxes)
        if scores.ndim > 2 or boxes.shape != (len(scores), 4):
            raise InputError(
                f"Expected scores (N,) or (N, K) and boxes (N, 4) but got {tuple(scores.shape)} and {tuple(boxes.shape)}."
            )
        if scores.numel() == 0:
            return attach(scores, torch.zeros_like(scores).detach(), torch.clone)
        nothing = {"boxes": boxes[:0], "labels": torch.zeros(0, dtype=torch.long)}
        columns = scores.detach().reshape(len(scores), -1)
        batch = make_batch([columns], [boxes.detach()], [nothing])
        neighbours = neighbours_of(batch.boxes, batch.offsets, self.threshold, 1)
        by_class = [_ranked(column, neighbours) for column in batch.scores.T]
        kept = np.stack([ranking.suppressor[neighbours.number_of] == NONE for ranking in by_class], axis=1)

        def pull_back(outer: Tensor) -> Tensor:
            refuse_unreadable(outer)
            pushes = outer.detach().cpu().double().reshape(len(scores), -1).numpy()
            slopes = [
                _slopes(ranking, neighbours, g, self.method) for ranking, g in zip(by_class, pushes.T, strict=True)
            ]
            gradient = torch.from_numpy(np.stack(slopes, axis=1))
            return narrowed(gradient, scores.dtype).to(scores.device).reshape(scores.shape)

        mask = torch.from_numpy(kept).to(scores.device, scores.dtype).reshape(scores.shape)
        return attach(scores, mask, once(pull_back))

    def extra_repr(self) -> str:
        return f"threshold={self.threshold:g}, {super().extra_repr()}"
