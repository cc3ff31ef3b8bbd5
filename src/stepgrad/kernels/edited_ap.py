"""AP of a ranked list as one weighted sum of interpolated precisions, and its value after a few edits of the list.

With r_k the rank of the k-th true positive, p_k = max over l >= k of l / r_l, and integer counts from the protocol,
AP = sum_k count_k p_k / norm. Moving one window, or replaying NMS around it, edits the list at a few places: between two
edits all true positives shift by the same number of places. `edited_sum` therefore walks segments, not windows, and a
segment longer than a few dozen true positives is summed from a table for its shift (`Lift`) in logarithmic time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepgrad.kernels.exact_sum import add, add_multiple
from stepgrad.kernels.jit import inlined, kernel
from stepgrad.kernels.matching import FALSE_POSITIVE, TRUE_POSITIVE

_DIRECT = 48  # segments up to this length are summed term by term
_MAX_TP_SHIFT, _MAX_SHIFT = 2, 24  # tables are kept for shifts up to these; rarer ones are summed term by term
_TABLES = 48


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


class Lift(NamedTuple):
    """Tables of shifted precisions: for shift number i, jump pointers to the previous larger precision and sums."""

    table_of: NDArray[np.int32]  # (t, 2 a + 1, 2 c + 1) table of a shift, -1 if not made yet
    used: NDArray[np.int64]  # (t,)
    precision: NDArray[np.float64]  # (t, tables, T + 1)
    jump: NDArray[np.int32]  # (t, tables, log T, T + 1)
    high: NDArray[np.float64]  # (t, tables, T + 1) sum of the chain from l to the top
    low: NDArray[np.float64]


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
    plain: NDArray[np.bool_], at: NDArray[np.int32], roles: NDArray[np.int8], cumulative: NDArray[np.int64]
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
    )
    for t in range(thresholds):
        _number(ranked, roles[t], t)
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
def ranked_sum(ranked: Ranked, t: int) -> float:
    """sum_k count_k p_k of a list as it stands, correctly rounded: AP is this over the protocol's norm."""
    hi = lo = largest = 0.0
    for k in range(ranked.T[t], 0, -1):
        largest = max(largest, k / ranked.rank[t, k])
        hi, lo = add_multiple(hi, lo, ranked.cumulative[k] - ranked.cumulative[k - 1], largest)
    return hi


@kernel
def new_lift(ranked: Ranked) -> Lift:
    """Room for the tables; none if the lists are short enough to be summed directly."""
    thresholds, T = len(ranked.T), 0
    for found in ranked.T:
        T = max(T, found)
    tables = _TABLES if T > _DIRECT else 0
    levels = 1
    while (1 << levels) <= T:
        levels += 1
    return Lift(
        np.full((thresholds, 2 * _MAX_TP_SHIFT + 1, 2 * _MAX_SHIFT + 1), -1, dtype=np.int32),
        np.zeros(thresholds, dtype=np.int64),
        np.empty((thresholds, tables, T + 1)),
        np.empty((thresholds, tables, levels, T + 1), dtype=np.int32),
        np.empty((thresholds, tables, T + 1)),
        np.empty((thresholds, tables, T + 1)),
    )


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


@kernel
def _table(ranked: Ranked, lift: Lift, t: int, a: int, c: int) -> int:
    """The table for precisions (l + a) / (r_l + c), made on first use; -1 if there is no room."""
    if abs(a) > _MAX_TP_SHIFT or abs(c) > _MAX_SHIFT:
        return -1
    # For one shift, read from the end of the list, the envelope is the record so far of the precisions. So each true
    # positive points to the nearest higher one of a larger precision, and holds the sum of the walk along those pointers
    # to the top; pointers twice, four times, ... as far make any walk logarithmic.
    table = lift.table_of[t, a + _MAX_TP_SHIFT, c + _MAX_SHIFT]
    if table >= 0 or lift.used[t] == lift.precision.shape[1]:
        return table
    table = lift.used[t]
    lift.used[t] += 1
    lift.table_of[t, a + _MAX_TP_SHIFT, c + _MAX_SHIFT] = table
    rank = ranked.rank[t]
    precision = lift.precision[t, table]
    jump = lift.jump[t, table]
    high = lift.high[t, table]
    low = lift.low[t, table]
    precision[0] = np.inf
    high[0] = 0.0
    low[0] = 0.0
    jump[:, 0] = 0
    P = len(ranked.cumulative) - 1
    for k in range(1, ranked.T[t] + 1):
        usable = k + a > 0 and k + a <= P and rank[k] + c > 0  # others are never inside a segment of this shift
        precision[k] = (k + a) / (rank[k] + c) if usable else 0.0
        larger = k - 1
        while precision[larger] <= precision[k]:
            larger = jump[0, larger]
        jump[0, k] = larger
        for level in range(1, len(jump)):
            jump[level, k] = jump[level - 1, jump[level - 1, k]]
        count = ranked.cumulative[min(max(k + a, 0), P)] - ranked.cumulative[min(max(larger + a, 0), P)]
        high[k], low[k] = add_multiple(high[larger], low[larger], count, precision[k])
    return table


@kernel
def _segment_by_table(
    ranked: Ranked, lift: Lift, t: int, table: int, first: int, last: int, a: int, hi: float, lo: float, largest: float
) -> tuple[float, float, float]:
    precision, jump = lift.precision[t, table], lift.jump[t, table]
    top = last  # the lowest true positive of the segment whose precision beats everything below it
    if precision[last] <= largest:
        for level in range(len(jump) - 1, -1, -1):
            nearer = jump[level, top]
            if nearer >= first and precision[nearer] <= largest:
                top = nearer
        top = jump[0, top]
    levels = ranked.cumulative
    if top < first:
        hi, lo = add_multiple(hi, lo, levels[last + a] - levels[first - 1 + a], largest)
        return hi, lo, largest
    hi, lo = add_multiple(hi, lo, levels[last + a] - levels[top + a], largest)
    end = top  # the highest link of the chain inside the segment
    for level in range(len(jump) - 1, -1, -1):
        if jump[level, end] >= first:
            end = jump[level, end]
    # The walk from `top` to `end` is the difference of two walks to the top; the last link reaches to the segment's start.
    hi, lo = add(hi, lo, lift.high[t, table, top])
    hi, lo = add(hi, lo, lift.low[t, table, top])
    hi, lo = add(hi, lo, -lift.high[t, table, end])
    hi, lo = add(hi, lo, -lift.low[t, table, end])
    hi, lo = add_multiple(hi, lo, levels[end + a] - levels[first - 1 + a], precision[end])
    return hi, lo, precision[end]


@kernel
def _segment(
    ranked: Ranked, lift: Lift, t: int, first: int, last: int, a: int, c: int, hi: float, lo: float, largest: float
) -> tuple[float, float, float]:
    """Add true positives last, last - 1, ..., first, each `a` places on among true positives and `c` among all."""
    if first > last:
        return hi, lo, largest
    if last - first >= _DIRECT:
        table = _table(ranked, lift, t, a, c)
        if table >= 0:
            return _segment_by_table(ranked, lift, t, table, first, last, a, hi, lo, largest)
    levels = ranked.cumulative
    run = last  # true positives k+1..run share the envelope value `largest`
    for k in range(last, first - 1, -1):
        precision = (k + a) / (ranked.rank[t, k] + c)
        if precision > largest:
            hi, lo = add_multiple(hi, lo, levels[run + a] - levels[k + a], largest)
            run, largest = k, precision
    hi, lo = add_multiple(hi, lo, levels[run + a] - levels[first - 1 + a], largest)
    return hi, lo, largest


@kernel
def edited_sum(ranked: Ranked, lift: Lift, t: int, edits: Edits) -> tuple[float, float]:
    """sum_k count_k p_k of list t after the edits, as an exact pair."""
    # How far the true positives below all edits are shifted: `a` places among true positives, `c` among detections.
    a = c = 0
    for e in range(edits.size[0]):
        a += edits.tp[e]
        c += edits.tp[e] + edits.fp[e]
    hi = lo = largest = 0.0
    last = ranked.T[t]
    # From the end of the list to its top, as the envelope grows from there: the stretch below an edit, then the edit.
    for e in range(edits.size[0] - 1, -1, -1):
        above = tp_above(ranked, t, edits.key[e] >> 1)
        first = above + 1 + (edits.tp[e] < 0)  # a true positive that leaves is not part of the stretch below it
        hi, lo, largest = _segment(ranked, lift, t, first, last, a, c, hi, lo, largest)
        a -= edits.tp[e]
        c -= edits.tp[e] + edits.fp[e]
        if edits.tp[e] > 0:  # a new true positive has its own precision at its own place
            k = above + a + 1
            largest = max(largest, k / (counted_above(ranked, t, edits.key[e] >> 1) + c + 1))
            hi, lo = add_multiple(hi, lo, ranked.cumulative[k] - ranked.cumulative[k - 1], largest)
        last = min(last, above)
    hi, lo, largest = _segment(ranked, lift, t, 1, last, 0, 0, hi, lo, largest)
    return hi, lo
