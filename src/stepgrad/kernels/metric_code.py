"""Metrics of a ranked list other than AP, after a few edits of it (see edited_ap.py).

All of them follow from the ranks of the true positives, like AP, so everything that looks for steps of AP looks for theirs.
A fixed threshold of the score is a *cut*: a window of its own image that scores exactly the threshold, ranks behind all
windows of that score and is always a true positive. What stands above it passes the threshold, and a score that crosses the
threshold trades places with it: a swap like any other.

Each metric gets no worse when a true positive rises or a false positive sinks, which is what the search by bisection needs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepgrad.kernels.exact_sum import add
from stepgrad.kernels.jit import inlined, kernel

LEVELS, BEST_F1, RECALL_AT_PRECISION, MISS_RATE, F1_AT_CUT, COST_AT_CUT = range(6)
NO_CUT = -1


class MetricCode(NamedTuple):
    """A metric as numbers."""

    kind: int
    objects: int  # to be found, the cut's own not counted
    first: float  # the precision to reach; the price of a false alarm
    second: float  # the price of a miss
    cut: int  # slot of the cut, or NO_CUT
    allowed: NDArray[np.int64]  # false positives allowed at each point of the miss rate, increasing
    logs: NDArray[np.float64]  # (objects + 1,) log of the miss rate, by the number of objects missed


@kernel
def copied(metric: MetricCode) -> MetricCode:
    """The same metric with arrays of its own, whoever owned those before."""
    return MetricCode(
        kind=metric.kind,
        objects=metric.objects,
        first=metric.first,
        second=metric.second,
        cut=metric.cut,
        allowed=metric.allowed.copy(),
        logs=metric.logs.copy(),
    )


class Fold(NamedTuple):
    """What the true positives seen so far, from the last to the first, amount to."""

    best: float  # the best F1; or the most true positives at the precision
    point: int  # points of the miss rate still to be served
    hi: float  # sum of their logs
    lo: float


@inlined
def new_fold(metric: MetricCode) -> Fold:
    """Before any true positive."""
    return Fold(0.0, len(metric.allowed), 0.0, 0.0)


@inlined
def fold_in(metric: MetricCode, fold: Fold, k: int, rank: int) -> Fold:
    """Take in true positive number k, at a rank."""
    if metric.kind == BEST_F1:
        return Fold(max(fold.best, 2 * k / (rank + metric.objects)), fold.point, fold.hi, fold.lo)
    if metric.kind == RECALL_AT_PRECISION:
        reached = k / rank >= metric.first and k > fold.best
        return Fold(float(k) if reached else fold.best, fold.point, fold.hi, fold.lo)
    point, hi, lo = fold.point, fold.hi, fold.lo
    while point > 0 and rank - k <= metric.allowed[point - 1]:
        point -= 1
        hi, lo = add(hi, lo, metric.logs[metric.objects - k])
    return Fold(fold.best, point, hi, lo)


@inlined
def folded(metric: MetricCode, fold: Fold) -> float:
    """The value, after all true positives."""
    if metric.kind != MISS_RATE:
        return fold.best
    hi, lo = fold.hi, fold.lo
    for _ in range(fold.point):  # with fewer false positives than these allow, nothing is found
        hi, lo = add(hi, lo, metric.logs[metric.objects])
    return float(np.exp(hi / len(metric.allowed)))


@kernel
def value_at_cut(metric: MetricCode, true: int, counted: int) -> float:
    """F1 or cost of the detections that pass the threshold: `counted`, of which so many are true."""
    if metric.kind == COST_AT_CUT:
        return metric.first * (counted - true) + metric.second * (metric.objects - true)
    both = counted + metric.objects
    return 2 * true / both if both > 0 else 0.0
