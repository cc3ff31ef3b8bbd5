"""Nearest steps and pseudogradients of mAP after NMS, or of another metric, in every score of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stepgrad.errors import ConfigError, one_of
from stepgrad.kernels.balance import BALANCES, Sums, finish_class
from stepgrad.kernels.class_view import ClassView, count_kept
from stepgrad.kernels.estimators import add_estimates
from stepgrad.kernels.jit import explain_wait
from stepgrad.kernels.nms_steps import THROUGH_EXACT, THROUGH_NONE, steps_of_class
from stepgrad.kernels.paper import paper_of_class
from stepgrad.kernels.radius import radius_of_class
from stepgrad.metric.arrange import Arrangement, arrange
from stepgrad.metric.batch import Batch, Target, make_batch
from stepgrad.metric.cut import with_cut
from stepgrad.metric.list_metric import ListMetric
from stepgrad.metric.mean_ap import check_nms_threshold, class_ap, mean_of, resolve_protocol
from stepgrad.metric.metrics import AVERAGE_PRECISION
from stepgrad.metric.named_metrics import get_metric
from stepgrad.metric.over_classes import OverClasses
from stepgrad.metric.protocol import Protocol
from stepgrad.parallel import run_threads
from stepgrad.steps.method import Method, Steps
from stepgrad.steps.own_steps import own_slopes, own_steps

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
    """The metric of a class and its pseudogradient in the class's scores, by window; None where nothing can change it."""

    value: float
    P: int
    kept: int
    gradient: NDArray[np.float64] | None


def _slopes(
    arrangement: Arrangement, view: ClassView, method: MAPMethod
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """By window, the sum over the thresholds of the pseudogradients of the metric; and the metric at each of them."""
    slot_of, rules = view.slots.slot_of, arrangement.rules
    if not arrangement.metric.is_compiled:
        return own_slopes(arrangement, view, method, fixed_kept=method.through_nms == "none")
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
    """The metric of class c and its pseudogradient: the mean of those at the protocol's thresholds."""
    needs_objects = arrangement.metric.needs_objects
    if needs_objects and not arrangement.has_objects(c):  # whatever is found, it has AP 0 and no gradient
        return ClassGradient(0.0, 0, 0, None)
    view = arrangement.view(c)
    kept = count_kept(view) - arrangement.cuts
    if method is None or (needs_objects and view.P == 0):
        return ClassGradient(class_ap(arrangement, view), view.P, kept, None)
    total, values = _slopes(arrangement, view, method)
    if len(values) > 1:
        total /= len(values)
    return ClassGradient(mean_of(values.tolist()), view.P, kept, total[: len(total) - arrangement.cuts])


def all_gradients(arrangement: Arrangement, method: MAPMethod | None) -> list[ClassGradient]:
    """`class_gradient` of every class, on threads; without a method only the values."""
    return run_threads(
        lambda c: class_gradient(arrangement, c, method), range(arrangement.batch.num_classes), arrangement.threads
    )


def join_classes(
    classes: Sequence[ClassGradient],
    scores: NDArray[np.floating],
    scales: Sequence[float],
    clip: float | None,
    balance: str,
    threads: int,
) -> tuple[NDArray[np.float64], Sums]:
    """(K, N) gradients: each class's scaled by its number, clipped, then balanced."""
    full = np.zeros((len(classes), len(scores)))

    def finish(c: int) -> Sums:
        found = classes[c].gradient
        if found is None:
            return Sums(0, 0.0, 0.0)
        free = balance != "none", balance == "class+scale"
        return Sums(*finish_class(found, scores[:, c], scales[c], clip or np.inf, *free, full[c]))

    parts = run_threads(finish, range(len(classes)), threads)
    return full, Sums(*(sum(column) for column in zip(*parts, strict=True))) if parts else Sums(0, 0.0, 0.0)


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
    metric: str | ListMetric | Callable[..., Any] = AVERAGE_PRECISION,
) -> list[Tensor]:
    """The raw pseudogradient dmAP / dscores by MEE: no log, clip, L4 or balance, unlike `MAPLoss`, whose default is radius 3.

    One (N, K) float64 tensor per image. The arguments are those of `mean_average_precision` and `MAPLoss`. The gradient of
    `MAPLoss` is `map_pseudogradient(..., estimator="radius", radius=3.0, balance="class")`, times -1 / (mAP + eps). With a
    `metric`, as for `DetectionLoss`, it is the pseudogradient of its mean over the classes.

    >>> window = torch.tensor([[0.0, 0.0, 10.0, 10.0], [20.0, 0.0, 30.0, 10.0]])
    >>> target = {"boxes": window[1:], "labels": torch.tensor([0])}
    >>> map_pseudogradient([torch.tensor([[1.0], [0.0]])], [window], [target])[0].flatten().tolist()
    [-0.25, 0.25]
    """
    nms_threshold = check_nms_threshold(nms_threshold)
    one_of("balance", balance, BALANCES)
    method = MAPMethod(estimator, radius, min_step, through_nms)
    resolved = resolve_protocol(protocol, match_threshold, absent_classes)
    of_list = get_metric(metric)
    batch = make_batch(scores, boxes, targets, areas=of_list.area is not None)
    with explain_wait():
        classes = all_gradients(_arranged(batch, resolved, nms_threshold, of_list), method)
    over_classes = OverClasses(absent_classes=resolved.absent_classes)
    slopes = over_classes.join(of_list, [c.value for c in classes], [c.P for c in classes]).slopes(1.0)
    full, _ = join_classes(classes, batch.scores, slopes, None, balance, 1)
    return _per_image(full.T, scores)


def _per_image(full: NDArray[np.float64], like: Sequence[Tensor]) -> list[Tensor]:
    if not len(like):
        return []
    return list(torch.from_numpy(full).to(like[0].device).split([len(s) for s in like]))


def _arranged(batch: Batch, protocol: Protocol, nms_threshold: float | None, metric: ListMetric) -> Arrangement:
    metric.check_protocol(protocol)
    return arrange(with_cut(batch, protocol, metric.threshold), protocol, nms_threshold, metric=metric)


def map_steps(
    scores: Sequence[Tensor],
    boxes: Sequence[Tensor],
    targets: Sequence[Target],
    *,
    protocol: str | Protocol = "voc12",
    nms_threshold: float | None = 0.3,
    match_threshold: float | None = None,
    through_nms: str = "exact",
    metric: str | ListMetric | Callable[..., Any] = AVERAGE_PRECISION,
) -> Steps:
    """The nearest steps of each class's AP in each of its scores, at one match threshold; or of another `metric`.

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
    of_list = get_metric(metric)
    with explain_wait():
        arrangement = _arranged(
            make_batch(scores, boxes, targets, areas=of_list.area is not None), resolved, nms_threshold, of_list
        )
        classes = run_threads(
            lambda c: _class_steps(arrangement, c, through_nms),
            range(arrangement.batch.num_classes),
            arrangement.threads,
        )
    stacked = (
        [np.stack([steps[i] for _, steps in classes], axis=1) for i in range(4)] if classes else [np.zeros((0, 0))] * 4
    )
    return Steps(
        torch.tensor([value for value, _ in classes], dtype=torch.float64), *(_per_image(a, scores) for a in stacked)
    )


def _class_steps(arrangement: Arrangement, c: int, through_nms: str) -> tuple[float, list[NDArray[np.float64]]]:
    """The value of a class and, by window, its nearest steps: up_at, up_value, down_at and down_value."""
    view, metric = arrangement.view(c), arrangement.metric
    windows = len(view.slots.slot_of) - arrangement.cuts
    if view.P == 0 and metric.needs_objects:
        blank = np.full(windows, 0.0)
        return 0.0, [blank + np.inf, blank, blank - np.inf, blank]
    if not metric.is_compiled:
        return own_steps(arrangement, view, fixed_kept=through_nms == "none")
    rules, at = arrangement.rules, view.slots.slot_of[:windows]
    steps = (
        paper_of_class(view, rules, 0.0)[0]
        if through_nms == "paper"
        else steps_of_class(view, rules, _THROUGH[through_nms])
    )
    return float(steps.present[0] / view.norm), [
        steps.up_at[0, at],
        steps.up_sum[0, at] / view.norm,
        steps.down_at[0, at],
        steps.down_sum[0, at] / view.norm,
    ]
