"""mAP after NMS as a loss (Henderson & Ferrari 2016, Sec. 4.5 and 5): a drop-in module with pseudogradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from stepgrad.errors import NonFiniteError, one_of, positive_number, whole_number
from stepgrad.kernels.balance import BALANCES, Sums
from stepgrad.kernels.jit import explain_wait
from stepgrad.losses.likely_mistakes import Watch
from stepgrad.metric.arrange import arrange
from stepgrad.metric.batch import Batch, Target, make_batch
from stepgrad.metric.mean_ap import check_nms_threshold, resolve_protocol
from stepgrad.metric.protocol import Protocol
from stepgrad.steps.map_steps import THROUGH_NMS, ClassGradient, Method, all_gradients, classes_result, join_classes


class WithGradient(torch.autograd.Function):
    """A number with a gradient worked out elsewhere."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return value

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * outer.to(gradient.dtype), None, None


@dataclass(frozen=True)
class Objective:
    """Loss of a batch (without L4), its gradient by window and class, and what to report."""

    value: float
    gradient: Tensor  # (N, K)
    metrics: dict[str, Any]


class MAPLoss(nn.Module):
    """-log(mAP after NMS + eps) + l4 * sum of scores^4, with exact pseudogradients.

    Args:
        num_classes: columns of the scores (without background).
        protocol: "voc07", "voc12", "coco" or any `Protocol`: train with the one you report.
        nms_threshold: IoU above which the higher of two windows suppresses the lower; None: no NMS.
        match_threshold: IoU at which a window finds an object; None: the protocol's (0.5; .50:.05:.95 for "coco").
        estimator: "radius", "mee" or "sde"; None: "radius", or "mee" where `through_nms` is "paper", which needs nearest
            steps.
        radius: for the radius estimator, in units of score: 3 suits log-probabilities, the scores to give, and logits. With
            probabilities every window is within 3 of every other.
        through_nms: "exact" | "paper" | "none" (suppressed windows get no gradient).
        log: follow -log(mAP + eps) rather than 1 - mAP.
        eps: what keeps the logarithm finite.
        l4: weight of the score regulariser sum s^4; None: off.
        clip: bound on each element of the gradient before balance and L4; None: off.
        min_step: lower bound on the distance to a step where there is one on one side only.
        balance: "class" makes the pushes up and down of each class sum to zero, as shifting all its scores changes nothing;
            "class+scale" also removes what would only stretch the scores; "none" leaves the gradient as it is.
        absent_classes: classes without objects in the batch count as AP 0 ("zero") or are left out ("skip").

    After each call, `metrics` holds map, ap (K,), kept (windows after NMS, all classes), positives (objects to find),
    nonzero (share of scores with a gradient), positive_sum and negative_sum (of the gradient without L4).

    A window without area overlaps nothing. Input that is most likely not what was meant (boxes in two frames, probabilities
    under a radius made for logarithms) is warned of once, by a `stepgrad.errors.LikelyMistakeWarning`. Gradients by
    `backward` or `torch.autograd.grad`; `torch.func` and `vmap` cannot look into the loss.

    >>> boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0], [1.0, 0.0, 11.0, 10.0], [20.0, 0.0, 30.0, 10.0]])
    >>> scores = torch.tensor([[0.2], [0.1], [0.9]], requires_grad=True)
    >>> loss_fn = MAPLoss(num_classes=1)
    >>> loss = loss_fn([scores], [boxes], [{"boxes": boxes[:1], "labels": torch.tensor([0])}])
    >>> loss.backward()
    >>> loss_fn.metrics["map"], scores.grad.flatten().sign().tolist()   # the object's two windows up, the false alarm down
    (0.5, [-1.0, -1.0, 1.0])
    """

    def __init__(
        self,
        num_classes: int,
        protocol: str | Protocol = "voc12",
        nms_threshold: float | None = 0.3,
        match_threshold: float | Sequence[float] | None = None,
        estimator: str | None = None,
        radius: float = 3.0,
        through_nms: str = "exact",
        log: bool = True,
        eps: float = 0.01,
        l4: float | None = None,
        clip: float | None = None,
        min_step: float = 0.1,
        balance: str = "class",
        absent_classes: str = "zero",
    ) -> None:
        super().__init__()
        _keep_out_of_compiled_graphs(type(self))
        one_of("balance", balance, BALANCES)
        self.num_classes = whole_number("num_classes", num_classes, least=1)
        self.protocol = resolve_protocol(protocol, match_threshold, absent_classes)
        self.nms_threshold = check_nms_threshold(nms_threshold)
        one_of("through_nms", through_nms, THROUGH_NMS)
        usual = "mee" if through_nms == "paper" else "radius"
        self.method = Method(usual if estimator is None else estimator, radius, through_nms, min_step)
        self.eps = positive_number("eps", eps)
        self.l4 = None if l4 is None else positive_number("l4", l4, ", or None to switch it off,")
        self.clip = None if clip is None else positive_number("clip", clip, ", or None to switch it off,")
        self.log, self.balance = log, balance
        self.metrics: dict[str, Any] = {}
        self._watch = Watch()

    @classmethod
    def paper(cls, num_classes: int, protocol: str | Protocol = "voc12", **changes: Any) -> MAPLoss:
        """The paper's loss: MEE, its NMS approximation, log, L4 and clipping, no balance, NMS at 0.3.

        The paper does not print its constants eps, lambda, the clipping bound and the least step; those here are ours.
        """
        settings: dict[str, Any] = {
            "estimator": "mee",
            "through_nms": "paper",
            "log": True,
            "eps": 0.01,
            "l4": 1e-6,
            "clip": 0.1,
            "min_step": 0.1,
            "balance": "none",
            "absent_classes": "zero",
        }
        return cls(num_classes, protocol, **{**settings, **changes})

    def forward(
        self, scores: Sequence[Tensor], boxes: Sequence[Tensor], targets: Sequence[Target] | None = None
    ) -> Tensor:
        """The loss of a batch: lists per image of (N, K) scores, (N, 4) or (N, K, 4) boxes, and target dicts.

        Without targets, as when detections and targets are passed as to torchmetrics, the error says what is wanted.
        """
        batch, flat = self._read(scores, boxes, targets)
        objective = self._objective(batch, torch.is_grad_enabled() and flat.requires_grad)
        return self._loss_of(objective, flat, batch.scores)

    def _read(
        self, scores: Sequence[Tensor], boxes: Sequence[Tensor], targets: Sequence[Target] | None
    ) -> tuple[Batch, Tensor]:
        """The batch, checked, and its scores as one tensor with their graph."""
        batch = make_batch(scores, boxes, targets, self.num_classes)
        flat = torch.cat(list(scores)) if len(scores) else torch.zeros(0, self.num_classes, requires_grad=True)
        if torch.is_grad_enabled() and flat.requires_grad:
            self._watch.look_at(batch, self.protocol, self.method)
        return batch, flat

    def _loss_of(self, objective: Objective, flat: Tensor, values: NDArray[np.floating]) -> Tensor:
        """The objective as a tensor that passes its gradient on to the scores, plus L4."""
        self.metrics = objective.metrics
        precision = loss_precision(flat.dtype)
        loss = torch.tensor(objective.value, dtype=precision, device=flat.device)
        if torch.is_grad_enabled() and flat.requires_grad:
            loss = WithGradient.apply(flat, loss, in_dtype(objective.gradient, flat.dtype).to(flat.device))
        if self.l4 is not None:
            check_l4(self.l4, values, flat.dtype)
            loss = loss + self.l4 * flat.to(precision).pow(4).sum()
        return loss

    def _objective(self, batch: Batch, needed: bool) -> Objective:
        with explain_wait():
            arrangement = arrange(batch, self.protocol, self.nms_threshold)
            classes = all_gradients(arrangement, self.method if needed else None)
            value, scale, metrics = self._value(classes)
            gradient, sums = self._finish(classes, batch.scores, scale, arrangement.threads)
        return Objective(value, torch.from_numpy(gradient.T), metrics | report_sums(sums, gradient.size))

    def _value(self, classes: Sequence[ClassGradient]) -> tuple[float, float, dict[str, Any]]:
        """The loss without L4, its derivative in each class's AP, and what the classes amount to."""
        result, counted = classes_result(classes, self.protocol.absent_classes)
        outer = -1.0 / (result.map + self.eps) if self.log else -1.0
        value = -math.log(result.map + self.eps) if self.log else 1.0 - result.map
        metrics = {
            "map": result.map,
            "ap": result.ap,
            "kept": sum(found.kept for found in classes),
            "positives": sum(found.P for found in classes),
        }
        return value, outer / max(counted, 1), metrics

    def _finish(
        self, classes: Sequence[ClassGradient], scores: NDArray[np.floating], scale: float, threads: int
    ) -> tuple[NDArray[np.float64], Sums]:
        return join_classes(classes, scores, scale, self.clip, self.balance, threads)

    def extra_repr(self) -> str:
        return (
            f"{self.num_classes}, protocol={self.protocol.name!r}, nms_threshold={self.nms_threshold}, "
            f"estimator={self.method.estimator!r}, through_nms={self.method.through_nms!r}, balance={self.balance!r}"
        )


def report_sums(sums: Sums, scores: int) -> dict[str, Any]:
    """The part of `metrics` about the gradient."""
    return {
        "nonzero": sums.nonzero / max(scores, 1),
        "positive_sum": sums.positive,
        "negative_sum": sums.negative,
    }


def _keep_out_of_compiled_graphs(kind: type[MAPLoss]) -> None:
    """Make compiled models call the loss as it is. Done at first use: the decorator imports the compiler, seconds of work."""
    if not getattr(kind.forward, "_outside_graphs", False):
        outside: Any = torch.compiler.disable(kind.forward)
        outside._outside_graphs = True
        kind.forward = outside  # type: ignore[method-assign]


def loss_precision(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the loss for scores of a dtype."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def check_l4(l4: float, scores: NDArray[np.floating], dtype: torch.dtype) -> None:
    """Raise before the regulariser overflows and a NaN reaches the weights."""
    if scores.size == 0:
        return
    top = float(np.abs(scores).max())
    largest_loss, largest_gradient = torch.finfo(loss_precision(dtype)).max, torch.finfo(dtype).max
    cube = top * top * top  # infinite where `top**3` would be an OverflowError
    if l4 * scores.size * cube * top > largest_loss or 4.0 * l4 * cube > largest_gradient:
        raise NonFiniteError(
            f"Expected scores small enough for the L4 term but the largest of {scores.size} is {top:g}, so that "
            f"l4 * s^4 with l4={l4:g} overflows; switch it off with l4=None, or look for a diverged model."
        )


def in_dtype(gradient: Tensor, dtype: torch.dtype) -> Tensor:
    """The gradient in the scores' dtype; what a narrow dtype cannot hold becomes its largest number."""
    if dtype != gradient.dtype:
        bound = torch.finfo(dtype).max
        gradient = gradient.clamp(-bound, bound)
    return gradient.to(dtype).contiguous()
