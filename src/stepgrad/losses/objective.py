"""What a loss for mAP computes: from ranked classes to a number, its gradient, and what to report.

`MAPLoss` measures a batch as it is, `ragged_map_loss` lists that differ from class to class, `DistributedMAPLoss` the
batches of several processes. They differ in where the classes come from; what is made of them is here.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stepgrad.errors import NonFiniteError, one_of, positive_number, real_number, whole_number
from stepgrad.kernels.balance import BALANCES, Sums
from stepgrad.kernels.jit import explain_wait
from stepgrad.metric.arrange import arrange
from stepgrad.metric.batch import Batch, Target
from stepgrad.metric.mean_ap import check_nms_threshold
from stepgrad.metric.protocol import Protocol
from stepgrad.plain_tensors import narrowed, times
from stepgrad.steps.autograd import attach
from stepgrad.steps.map_steps import ClassGradient, MAPMethod, all_gradients, classes_result, join_classes


class BatchLoss(typing.Protocol):
    """A loss of the windows of a batch that says what it measured."""

    @property
    def num_classes(self) -> int:
        """Columns of the scores."""

    @property
    def metrics(self) -> dict[str, Any]:
        """Of the last call."""

    def __call__(self, scores: Sequence[Tensor], boxes: Sequence[Tensor], targets: Sequence[Target]) -> Tensor:
        """Arguments as for `MAPLoss`."""


@dataclass(frozen=True)
class Measured:
    """The loss of a batch (without L4), its gradient in the scores, and what to report."""

    value: float
    gradient: Tensor
    metrics: dict[str, Any]


@dataclass(frozen=True)
class MAPObjective:
    """The settings of a loss for mAP; arguments as for `MAPLoss`."""

    num_classes: int
    protocol: Protocol
    nms_threshold: float | None
    method: MAPMethod
    log: bool
    eps: float
    l4: float | None
    clip: float | None
    balance: str
    score_floor: float | None = None

    def __post_init__(self) -> None:
        one_of("balance", self.balance, BALANCES)
        off = ", or None to switch it off,"
        checked = {
            "num_classes": whole_number("num_classes", self.num_classes, least=1),
            "nms_threshold": check_nms_threshold(self.nms_threshold),
            "eps": positive_number("eps", self.eps),
            "l4": None if self.l4 is None else positive_number("l4", self.l4, off),
            "score_floor": None
            if self.score_floor is None
            else real_number("score_floor", self.score_floor, "None or a number"),
            "clip": None if self.clip is None else positive_number("clip", self.clip, off),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def measure(self, batch: Batch, needed: bool) -> Measured:
        """The loss of a batch; without a gradient (zeros) unless `needed`."""
        with explain_wait(self.kernels_for(batch.scores) if needed else None):
            classes = self.rank(batch, needed)
            value, slope, metrics = self.of_classes(classes)
            gradient, sums = self.join(classes, batch.scores, slope, torch.get_num_threads())
        return Measured(value, torch.from_numpy(gradient.T), metrics | report_sums(sums, gradient.size))

    def kernels_for(self, scores: NDArray[np.floating]) -> str:
        """The name under which kernels/uses.json has what a gradient needs."""
        paper = self.method.through_nms == "paper"
        kind = "radius" if self.method.estimator == "radius" else "paper" if paper else "nearest"
        return f"{kind} {scores.dtype}"

    def rank(self, batch: Batch, needed: bool) -> list[ClassGradient]:
        """AP and, if `needed`, its pseudogradient, of every class of a batch."""
        arrangement = arrange(batch, self.protocol, self.nms_threshold, self.score_floor)
        return all_gradients(arrangement, self.method if needed else None)

    def of_classes(self, classes: Sequence[ClassGradient]) -> tuple[float, float, dict[str, Any]]:
        """The loss without L4, its derivative in each class's AP, and what the classes amount to."""
        result, counted = classes_result(classes, self.protocol.absent_classes)
        outer = -1.0 / (result.map + self.eps) if self.log else -1.0
        value = -math.log(result.map + self.eps) if self.log else 1.0 - result.map
        metrics = {
            "map": result.map,
            "ap": result.ap,
            "kept": sum(ranked.kept for ranked in classes),
            "objects": sum(ranked.P for ranked in classes),
        }
        return value, outer / max(counted, 1), metrics

    def join(
        self, classes: Sequence[ClassGradient], scores: NDArray[np.floating], slope: float, threads: int
    ) -> tuple[NDArray[np.float64], Sums]:
        """(K, N) gradients of the loss: scaled by its slope in AP, clipped, then balanced."""
        return join_classes(classes, scores, slope, self.clip, self.balance, threads)

    def as_loss(self, measured: Measured, scores: Tensor, values: NDArray[np.floating]) -> Tensor:
        """The measured value as a tensor that passes its gradient on to the scores, plus L4 of them."""
        precision = loss_precision(scores.dtype)
        loss = torch.tensor(measured.value, dtype=precision, device=scores.device)
        if torch.is_grad_enabled() and scores.requires_grad:
            loss = attach(scores, loss, product, narrowed(measured.gradient, scores.dtype).to(scores.device))
        if self.l4 is not None:
            self.check_l4(values, scores.dtype)
            counted = scores if self.score_floor is None else scores[scores >= self.score_floor]
            loss = loss + self.l4 * counted.to(precision).pow(4).sum()
        return loss

    def check_l4(self, scores: NDArray[np.floating], dtype: torch.dtype) -> None:
        """Raise before the regulariser overflows and a NaN reaches the weights."""
        if scores.size == 0 or self.l4 is None:
            return
        top = float(np.abs(scores).max())
        largest_loss, largest_gradient = torch.finfo(loss_precision(dtype)).max, torch.finfo(dtype).max
        cube = top * top * top  # infinite where `top**3` would be an OverflowError
        if self.l4 * scores.size * cube * top > largest_loss or 4.0 * self.l4 * cube > largest_gradient:
            raise NonFiniteError(
                f"Expected scores small enough for the L4 term but the largest of {scores.size} is {top:g}, so that "
                f"l4 * s^4 with l4={self.l4:g} overflows; switch it off with l4=None, or look for a diverged model."
            )


def product(outer: Tensor, gradient: Tensor) -> Tensor:
    """The chain rule where the gradient is known: d/dscores = d/dloss * dloss/dscores."""
    return times(gradient, outer)


def report_sums(sums: Sums, scores: int) -> dict[str, Any]:
    """The part of `metrics` about the gradient."""
    return {
        "nonzero": sums.nonzero / max(scores, 1),
        "positive_sum": sums.positive,
        "negative_sum": sums.negative,
    }


def loss_precision(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the loss for scores of a dtype."""
    return torch.float64 if dtype == torch.float64 else torch.float32
