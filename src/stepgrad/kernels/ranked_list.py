"""The counted detections of a class by decreasing score, and edits of such a list."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepgrad.kernels.jit import inlined, kernel
from stepgrad.kernels.matching import FALSE_POSITIVE, TRUE_POSITIVE
from stepgrad.kernels.metric_code import BEST_F1, RECALL_AT_PRECISION, MetricCode

BLOCK = 32  # true positives that share a bound


class Ranked(NamedTuple):
    """The counted detections of one class by decreasing score, one list per match threshold t.

    The lists differ only where *contenders* stand, kept windows that reach an object at some threshold: few. Between two of
    them, in a *zone*, all lists are the same. True positives are numbered from 1.
    """

    T: NDArray[np.int64]  # (t,) true positives
    rank: NDArray[np.int64]  # (t, C + 1) rank[t, k] of the k-th true positive
    tp_position: NDArray[np.int32]  # (t, C + 1) its position among all windows, -1 beyond the last
    at: NDArray[np.int32]  # (C,) positions of the contenders
    zone: NDArray[np.int32]  # (N + 1,) contenders at positions < p
    plain_above: NDArray[np.int32]  # (N + 1,) false positives that are no contenders at positions < p
    tp_before: NDArray[np.int32]  # (t, C + 1) true positives among the first z contenders
    counted_before: NDArray[np.int32]  # (t, C + 1) detections among them
    cumulative: NDArray[np.int64]  # (P + 1,) counts of levels 1..k
    same_as: NDArray[np.int32]  # (t,) the first threshold with the same list
    metric: MetricCode
    cut: int  # position of the metric's cut, if it has one
    slope: NDArray[
        np.float64
    ]  # (t,) of the line that bounds what a true positive can do for the metric (edited_metric.py)
    tops: NDArray[
        np.float64
    ]  # (t, blocks) the largest k - slope * rank[k] among BLOCK true positives; none if not needed
    leader: NDArray[np.int64]  # (t,) the true positive at which F1 is best


class Edits(NamedTuple):
    """Changes of a ranked list. key = 2 p + 1 changes the window at position p, 2 p inserts just above it."""

    key: NDArray[np.int64]
    tp: NDArray[np.int64]  # true positives gained (-1, 0, 1)
    fp: NDArray[np.int64]  # false positives gained
    size: NDArray[np.int64]  # (1,)


@inlined
def tp_above(ranked: Ranked, t: int, position: int) -> int:
    """True positives at earlier positions."""
    return ranked.tp_before[t, ranked.zone[position]]


@inlined
def counted_above(ranked: Ranked, t: int, position: int) -> int:
    """Detections at earlier positions."""
    return ranked.plain_above[position] + ranked.counted_before[t, ranked.zone[position]]


@kernel
def rank_detections(
    plain: NDArray[np.bool_],
    at: NDArray[np.int32],
    roles: NDArray[np.int8],
    cumulative: NDArray[np.int64],
    metric: MetricCode,
    cut: int,
) -> Ranked:
    """Number the detections: `plain` marks the positions of false positives that are no contenders, `roles` (t, C) are the
    contenders', who stand at positions `at`."""
    n, C, thresholds = len(plain), len(at), len(roles)
    zone = np.empty(n + 1, dtype=np.int32)
    plain_above = np.empty(n + 1, dtype=np.int32)
    z = above = 0
    for p in range(n + 1):
        zone[p], plain_above[p] = z, above
        z += z < C and at[z] == p
        above += p < n and plain[p]
    ranked = Ranked(
        T=np.zeros(thresholds, dtype=np.int64),
        rank=np.zeros((thresholds, C + 1), dtype=np.int64),
        tp_position=np.full((thresholds, C + 1), -1, dtype=np.int32),
        at=at,
        zone=zone,
        plain_above=plain_above,
        tp_before=np.zeros((thresholds, C + 1), dtype=np.int32),
        counted_before=np.zeros((thresholds, C + 1), dtype=np.int32),
        cumulative=cumulative,
        same_as=np.arange(thresholds).astype(np.int32),
        metric=metric,
        cut=cut,
        slope=np.zeros(thresholds),
        tops=np.full((thresholds, C // BLOCK + 1 if metric.kind in (BEST_F1, RECALL_AT_PRECISION) else 0), -np.inf),
        leader=np.zeros(thresholds, dtype=np.int64),
    )
    for t in range(thresholds):
        _number(ranked, roles[t], t)
        _bound(ranked, t)
        for other in range(t):
            if np.array_equal(roles[other], roles[t]):
                ranked.same_as[t] = other
                break
    return ranked


@kernel
def _number(ranked: Ranked, roles: NDArray[np.int8], t: int) -> None:
    """Fill list t."""
    tps = counted = 0
    for z in range(len(roles)):
        if roles[z] == TRUE_POSITIVE:
            tps += 1
            ranked.rank[t, tps] = ranked.plain_above[ranked.at[z]] + counted + 1
            ranked.tp_position[t, tps] = ranked.at[z]
        counted += roles[z] == TRUE_POSITIVE or roles[z] == FALSE_POSITIVE
        ranked.tp_before[t, z + 1] = tps
        ranked.counted_before[t, z + 1] = counted
    ranked.T[t] = tps


@kernel
def _bound(ranked: Ranked, t: int) -> None:
    """Fill the bounds of list t, where the metric uses them."""
    metric = ranked.metric
    if metric.kind == RECALL_AT_PRECISION:
        ranked.slope[t] = metric.first
    elif metric.kind == BEST_F1:
        best = 0.0
        for k in range(1, ranked.T[t] + 1):
            if k / (ranked.rank[t, k] + metric.objects) > best:
                best = k / (ranked.rank[t, k] + metric.objects)
                ranked.leader[t] = k
        ranked.slope[t] = best
    else:
        return
    for k in range(1, ranked.T[t] + 1):
        ranked.tops[t, k // BLOCK] = max(ranked.tops[t, k // BLOCK], k - ranked.slope[t] * ranked.rank[t, k])


@kernel
def new_edits(capacity: int) -> Edits:
    """An empty list of edits."""
    return Edits(
        np.empty(capacity, dtype=np.int64),
        np.empty(capacity, dtype=np.int64),
        np.empty(capacity, dtype=np.int64),
        np.zeros(1, dtype=np.int64),
    )


@inlined
def put_edit(edits: Edits, key: int, tp: int, fp: int) -> None:
    """Add an edit, keeping the list sorted by key (lists are short)."""
    if tp == 0 and fp == 0:
        return
    at = edits.size[0]
    while at > 0 and edits.key[at - 1] > key:
        edits.key[at] = edits.key[at - 1]
        edits.tp[at] = edits.tp[at - 1]
        edits.fp[at] = edits.fp[at - 1]
        at -= 1
    edits.key[at] = key
    edits.tp[at] = tp
    edits.fp[at] = fp
    edits.size[0] += 1


@inlined
def take_edit(edits: Edits, key: int) -> None:
    """Remove the edit with that key, if there is one."""
    kept = 0
    for e in range(edits.size[0]):
        if edits.key[e] != key:
            edits.key[kept] = edits.key[e]
            edits.tp[kept] = edits.tp[e]
            edits.fp[kept] = edits.fp[e]
            kept += 1
    edits.size[0] = kept
