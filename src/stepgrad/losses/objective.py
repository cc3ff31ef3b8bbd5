"""What a loss for mAP, or for another metric, computes: from ranked classes to a number, its gradient, and what to report.

`MAPLoss` and `DetectionLoss` measure a batch as it is, `ragged_map_loss` lists that differ from class to class,
`DistributedMAPLoss` the batches of several processes. They differ in where the classes come from; what is made of them is here.
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

from stepgrad.engine.balance import BALANCES, Sums
from stepgrad.engine.classes import RankedClass, all_classes, join_slopes, prepare
from stepgrad.engine.jit import explain_wait
from stepgrad.errors import ConfigError, NonFiniteError, one_of, positive_number, real_number, whole_number
from stepgrad.metric.batch import Batch, Target
from stepgrad.metric.list_metric import ListMetric
from stepgrad.metric.metrics import AVERAGE_PRECISION
from stepgrad.metric.options import check_nms_threshold
from stepgrad.metric.over_classes import OverClasses, check_class_weights
from stepgrad.metric.protocol import Protocol
from stepgrad.overlaps.base import Overlap
from stepgrad.overlaps.batch import BOXES
from stepgrad.plain_tensors import narrowed, times
from stepgrad.steps.autograd import attach
from stepgrad.steps.estimators import Method

THROUGH_NMS = ["exact", "paper", "none"]


@dataclass(frozen=True)
class DetectionMethod(Method):
    """The estimator of a pseudogradient, and how it goes through NMS."""

    through_nms: str = "exact"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("through_nms", self.through_nms, THROUGH_NMS)
        if self.estimator == "radius" and self.through_nms == "paper":
            raise ConfigError(
                "Expected through_nms 'exact' or 'none' for estimator 'radius' but got 'paper': the paper's "
                "approximation shares nearest steps, and the radius estimator uses none."
            )


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
class Objective:
    """The settings of a loss for mAP or another metric; arguments as for `MAPLoss` and `DetectionLoss`."""

    num_classes: int
    protocol: Protocol
    nms_threshold: float | None
    method: DetectionMethod
    log: bool
    eps: float
    l4: float | None
    clip: float | None
    balance: str
    score_floor: float | None = None
    metric: ListMetric = AVERAGE_PRECISION
    classes: str = "mean"
    class_weights: tuple[float, ...] | None = None
    overlap: Overlap = BOXES
    names: tuple[str, str] = ("map", "ap")  # of the value and of the classes' values in `metrics`

    def __post_init__(self) -> None:
        one_of("balance", self.balance, BALANCES)
        self._check_metric()
        off = ", or None to switch it off,"
        checked = {
            "num_classes": whole_number("num_classes", self.num_classes, least=1),
            "nms_threshold": check_nms_threshold(self.nms_threshold, self.overlap.nearness),
            "eps": positive_number("eps", self.eps),
            "l4": None if self.l4 is None else positive_number("l4", self.l4, off),
            "score_floor": None
            if self.score_floor is None
            else real_number("score_floor", self.score_floor, "None or a number"),
            "clip": None if self.clip is None else positive_number("clip", self.clip, off),
            "class_weights": check_class_weights(self.class_weights, self.num_classes),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        OverClasses(self.classes, self.class_weights)  # raises where the two do not go together

    def _check_metric(self) -> None:
        """Raise where the options make no sense for the metric."""
        name = self.metric.name
        if self.balance != "none" and not self.metric.shift_invariant:
            raise ConfigError(
                f"Expected balance 'none' for {name} but got {self.balance!r}: balance removes what would shift all scores "
                "of a class, and against a fixed threshold a shift matters."
            )
        if self.method.through_nms == "paper" and self.metric != AVERAGE_PRECISION:
            raise ConfigError(
                f"Expected through_nms 'exact' or 'none' for {name} but got 'paper', which is only for AP."
            )
        self.metric.check_protocol(self.protocol)

    @property
    def logged_name(self) -> str:
        """What logs call the value: "map", or the name of another metric."""
        return "map" if self.names[0] == "map" else self.metric.name

    @property
    def over_classes(self) -> OverClasses:
        """How the classes become one value."""
        return OverClasses(self.classes, self.class_weights, self.protocol.absent_classes)

    def measure(self, batch: Batch, needed: bool, threads: int | None = None) -> Measured:
        """The loss of a batch; without a gradient (zeros) unless `needed`. `threads` None: as many as torch uses."""
        threads = threads or torch.get_num_threads()
        with explain_wait():
            classes = self.rank(batch, needed, threads)
            value, slopes, metrics = self.of_classes(classes)
            gradient, sums = self.join(classes, batch.scores, slopes, threads)
        return Measured(value, torch.from_numpy(gradient.T), metrics | report_sums(sums, gradient.size))

    def rank(self, batch: Batch, needed: bool, threads: int | None = None) -> list[RankedClass]:
        """The metric and, if `needed`, its pseudogradient, of every class of a batch."""
        threads = threads or torch.get_num_threads()
        prepared = prepare(batch, self.protocol, self.nms_threshold, threads, self.metric, self.score_floor)
        return all_classes(prepared, self.method if needed else None)

    def of_classes(self, classes: Sequence[RankedClass]) -> tuple[float, list[float], dict[str, Any]]:
        """The loss without L4, its derivative in each class's value, and what the classes amount to."""
        result = self.over_classes.join(self.metric, [c.value for c in classes], [c.P for c in classes])
        value, outer = self._outer(result.value)
        metrics = {
            **({} if self.logged_name == "map" else {"metric": self.logged_name}),
            self.names[0]: result.value,
            self.names[1]: result.by_class,
            "kept": sum(ranked.kept for ranked in classes),
            "objects": sum(ranked.P for ranked in classes),
        }
        return value, result.slopes(outer), metrics

    def _outer(self, value: float) -> tuple[float, float]:
        """The loss of a value of the metric, and its derivative: what is good is raised, what is bad is lowered."""
        sign = -1.0 if self.metric.higher_is_better else 1.0
        if not self.log:
            return (1.0 - value if self.metric.higher_is_better else value), sign
        if value + self.eps <= 0.0:
            raise NonFiniteError(
                f"Expected {self.metric.name} above -eps = {-self.eps:g} for its logarithm but it is {value:g}; pass log=False."
            )
        return sign * math.log(value + self.eps), sign / (value + self.eps)

    def join(
        self, classes: Sequence[RankedClass], scores: NDArray[np.floating], slopes: Sequence[float], threads: int
    ) -> tuple[NDArray[np.float64], Sums]:
        """(K, N) gradients of the loss: scaled by its slopes in the classes' values, clipped, then balanced."""
        return join_slopes(classes, scores, slopes, self.clip, self.balance, threads)

    def as_loss(self, measured: Measured, scores: Tensor, values: NDArray[np.floating]) -> Tensor:
        """The measured value as a tensor that passes its gradient on to the scores, plus L4 of them."""
        precision = loss_precision(scores.dtype)
        loss = torch.full((), measured.value, dtype=precision, device=scores.device)
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
