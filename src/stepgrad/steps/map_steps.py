"""Nearest steps and pseudogradients of mAP after NMS in every score of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stepgrad.errors import ConfigError, one_of
from stepgrad.kernels.balance import BALANCES, Sums, finish_class
from stepgrad.kernels.class_view import ClassView, count_kept
from stepgrad.kernels.estimators import add_estimates
from stepgrad.kernels.jit import explain_wait
from stepgrad.kernels.matching import Rules
from stepgrad.kernels.nms_steps import THROUGH_EXACT, THROUGH_NONE, steps_of_class
from stepgrad.kernels.paper import paper_of_class
from stepgrad.kernels.radius import radius_of_class
from stepgrad.metric.arrange import Arrangement, arrange
from stepgrad.metric.batch import Target, make_batch
from stepgrad.metric.mean_ap import (
    MAPResult,
    check_nms_threshold,
    class_ap,
    mean_of,
    resolve_protocol,
    result_of,
)
from stepgrad.metric.protocol import Protocol
from stepgrad.parallel import run_threads
from stepgrad.steps.method import Method, Steps

THROUGH_NMS = ["exact", "paper", "none"]
_THROUGH = {"exact": THROUGH_EXACT, "none": THROUGH_NONE}


@dataclass(frozen=True)
class MAPMethod(Method):
    """How a pseudogradient of mAP is taken, and how it goes through NMS."""

    through_nms: str = "exact"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("through_nms", self.through_nms, THROUGH_NMS)
        if self.estimator == "radius" and self.through_nms == "paper":
            raise ConfigError(
                "Expected through_nms 'exact' or 'none' for estimator 'radius' but got 'paper': the paper's "
                "approximation shares nearest steps, and the radius estimator uses none."
            )


@dataclass(frozen=True)
class ClassGradient:
    """AP of a class and its pseudogradient in the class's scores, by window; None where nothing can change it."""

    ap: float
    P: int
    kept: int
    gradient: NDArray[np.float64] | None


def _slopes(view: ClassView, rules: Rules, method: MAPMethod) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """By window, the sum over the thresholds of the pseudogradients of AP; and AP at each of them."""
    slot_of = view.slots.slot_of
    if method.estimator == "radius":
        slopes, sums = radius_of_class(view, rules, method.radius, _THROUGH[method.through_nms])
        return slopes[slot_of], sums / view.norm
    total = np.zeros(len(slot_of))
    if method.through_nms == "paper":
        steps, pushes = paper_of_class(view, rules, method.min_step)
    else:
        steps, pushes = steps_of_class(view, rules, _THROUGH[method.through_nms]), None
    for t in range(len(rules.thresholds)):
        if pushes is not None:
            total += (pushes[t] / view.norm)[slot_of]
        symmetric = method.estimator == "sde"
        add_estimates(total, slot_of, view.scores, steps, t, float(view.norm), symmetric, method.min_step)
    return total, steps.present / view.norm


def class_gradient(arrangement: Arrangement, c: int, method: MAPMethod | None) -> ClassGradient:
    """AP of class c and its pseudogradient: the mean of those at the protocol's thresholds."""
    if not arrangement.has_objects(c):  # whatever is found, it has AP 0 and no gradient
        return ClassGradient(0.0, 0, 0, None)
    view = arrangement.view(c)
    if view.P == 0 or method is None:
        return ClassGradient(class_ap(arrangement, view), view.P, count_kept(view), None)
    total, values = _slopes(view, arrangement.rules, method)
    if len(values) > 1:
        total /= len(values)
    return ClassGradient(mean_of(values.tolist()), view.P, count_kept(view), total)


def all_gradients(arrangement: Arrangement, method: MAPMethod | None) -> list[ClassGradient]:
    """`class_gradient` of every class, on threads; without a method only the values."""
    return run_threads(
        lambda c: class_gradient(arrangement, c, method), range(arrangement.batch.num_classes), arrangement.threads
    )


def join_classes(
    classes: Sequence[ClassGradient],
    scores: NDArray[np.floating],
    scale: float,
    clip: float | None,
    balance: str,
    threads: int,
) -> tuple[NDArray[np.float64], Sums]:
    """(K, N) gradients: scaled, clipped, then balanced."""
    full = np.zeros((len(classes), len(scores)))

    def finish(c: int) -> Sums:
        found = classes[c].gradient
        if found is None:
            return Sums(0, 0.0, 0.0)
        free = balance != "none", balance == "class+scale"
        return Sums(*finish_class(found, scores[:, c], scale, clip or np.inf, *free, full[c]))

    parts = run_threads(finish, range(len(classes)), threads)
    return full, Sums(*(sum(column) for column in zip(*parts, strict=True))) if parts else Sums(0, 0.0, 0.0)


def classes_result(classes: Sequence[ClassGradient], absent_classes: str) -> tuple[MAPResult, int]:
    """mAP and the number of classes it is a mean of."""
    present = np.array([g.P > 0 for g in classes], dtype=np.bool_)
    ap = np.array([g.ap for g in classes], dtype=np.float64)
    counted = len(classes) if absent_classes == "zero" else int(present.sum())
    return result_of(ap, present, absent_classes), counted


def map_pseudogradient(
    scores: Sequence[Tensor],
    boxes: Sequence[Tensor],
    targets: Sequence[Target],
    *,
    protocol: str | Protocol = "voc12",
    nms_threshold: float | None = 0.3,
    match_threshold: float | Sequence[float] | None = None,
    estimator: str = "mee",
    radius: float = 1.0,
    through_nms: str = "exact",
    min_step: float = 0.0,
    balance: str = "none",
    absent_classes: str | None = None,
) -> list[Tensor]:
    """The raw pseudogradient dmAP / dscores by MEE: no log, clip, L4 or balance, unlike `MAPLoss`, whose default is radius 3.

    One (N, K) float64 tensor per image. Arguments as for `mean_average_precision` and `MAPLoss`; what that one follows is
    `map_pseudogradient(..., estimator="radius", radius=3.0, balance="class")`, times -1 / (mAP + eps).

    >>> window = torch.tensor([[0.0, 0.0, 10.0, 10.0], [20.0, 0.0, 30.0, 10.0]])
    >>> target = {"boxes": window[1:], "labels": torch.tensor([0])}
    >>> map_pseudogradient([torch.tensor([[1.0], [0.0]])], [window], [target])[0].flatten().tolist()
    [-0.25, 0.25]
    """
    nms_threshold = check_nms_threshold(nms_threshold)
    one_of("balance", balance, BALANCES)
    method = MAPMethod(estimator, radius, min_step, through_nms)
    resolved = resolve_protocol(protocol, match_threshold, absent_classes)
    with explain_wait():
        arrangement = arrange(make_batch(scores, boxes, targets), resolved, nms_threshold)
        classes = all_gradients(arrangement, method)
    _, counted = classes_result(classes, resolved.absent_classes)
    full, _ = join_classes(classes, arrangement.batch.scores, 1.0 / max(counted, 1), None, balance, 1)
    return _per_image(full.T, scores)


def _per_image(full: NDArray[np.float64], like: Sequence[Tensor]) -> list[Tensor]:
    if not len(like):
        return []
    return list(torch.from_numpy(full).to(like[0].device).split([len(s) for s in like]))


def map_steps(
    scores: Sequence[Tensor],
    boxes: Sequence[Tensor],
    targets: Sequence[Target],
    *,
    protocol: str | Protocol = "voc12",
    nms_threshold: float | None = 0.3,
    match_threshold: float | None = None,
    through_nms: str = "exact",
) -> Steps:
    """The nearest steps of each class's AP in each of its scores, at one match threshold.

    >>> window = torch.tensor([[0.0, 0.0, 10.0, 10.0], [20.0, 0.0, 30.0, 10.0]])
    >>> target = {"boxes": window[1:], "labels": torch.tensor([0])}
    >>> steps = map_steps([torch.tensor([[0.75], [0.5]])], [window], [target])
    >>> steps.value.tolist(), steps.up_at[0].tolist(), steps.up_value[0].tolist(), steps.down_at[0].tolist()
    ([0.5], [[inf], [0.75]], [[0.5], [1.0]], [[0.5], [-inf]])
    """
    nms_threshold = check_nms_threshold(nms_threshold)
    one_of("through_nms", through_nms, THROUGH_NMS)
    resolved = resolve_protocol(protocol, match_threshold, None)
    if len(resolved.match_thresholds) != 1:
        raise ConfigError(
            f"Expected one match threshold but protocol {resolved.name!r} averages over {len(resolved.match_thresholds)}; "
            "pass match_threshold=, one at a time."
        )
    with explain_wait():
        arrangement = arrange(make_batch(scores, boxes, targets), resolved, nms_threshold)
        rules = arrangement.rules

        def of_class(c: int) -> tuple[float, list[NDArray[np.float64]]]:
            view = arrangement.view(c)
            if view.P == 0:
                blank = np.full(len(view.order), 0.0)
                return 0.0, [blank + np.inf, blank, blank - np.inf, blank]
            steps = (
                paper_of_class(view, rules, 0.0)[0]
                if through_nms == "paper"
                else steps_of_class(view, rules, _THROUGH[through_nms])
            )
            at = view.slots.slot_of
            ap = float(steps.present[0] / view.norm)
            return ap, [
                steps.up_at[0, at],
                steps.up_sum[0, at] / view.norm,
                steps.down_at[0, at],
                steps.down_sum[0, at] / view.norm,
            ]

        classes = run_threads(of_class, range(arrangement.batch.num_classes), arrangement.threads)
    stacked = (
        [np.stack([steps[i] for _, steps in classes], axis=1) for i in range(4)] if classes else [np.zeros((0, 0))] * 4
    )
    return Steps(
        torch.tensor([ap for ap, _ in classes], dtype=torch.float64), *(_per_image(a, scores) for a in stacked)
    )
