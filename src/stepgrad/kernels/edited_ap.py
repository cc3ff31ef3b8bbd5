"""AP of a ranked list as one weighted sum of interpolated precisions, and its value after a few edits of the list.

Other metrics of a list (metric_code.py) take the sum's place where one is asked for.

With r_k the rank of the k-th true positive, p_k = max over l >= k of l / r_l, and integer counts from the protocol,
AP = sum_k count_k p_k / norm. Moving one window, or replaying NMS around it, edits the list at a few places: between two
edits all true positives shift by the same number of places. `edited_sum` therefore walks segments, not windows, and a
segment longer than a few dozen true positives is summed from a table for its shift (`Lift`) in logarithmic time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepgrad.kernels.edited_metric import edited_metric
from stepgrad.kernels.exact_sum import add, add_multiple
from stepgrad.kernels.jit import kernel
from stepgrad.kernels.metric_code import LEVELS
from stepgrad.kernels.ranked_list import Edits, Ranked, counted_above, new_edits, tp_above

_DIRECT = 48  # segments up to this length are summed term by term
_MAX_TP_SHIFT, _MAX_SHIFT = 2, 24  # tables are kept for shifts up to these; rarer ones are summed term by term
_TABLES = 48


class Lift(NamedTuple):
    """Tables of shifted precisions: for shift number i, jump pointers to the previous larger precision and sums."""

    table_of: NDArray[np.int32]  # (t, 2 a + 1, 2 c + 1) table of a shift, -1 if not made yet
    used: NDArray[np.int64]  # (t,)
    precision: NDArray[np.float64]  # (t, tables, T + 1)
    jump: NDArray[np.int32]  # (t, tables, log T, T + 1)
    high: NDArray[np.float64]  # (t, tables, T + 1) sum of the chain from l to the top
    low: NDArray[np.float64]


@kernel
def ranked_sum(ranked: Ranked, t: int) -> float:
    """sum_k count_k p_k of a list as it stands, correctly rounded: AP is this over the protocol's norm.

    Or the value of another metric, in its place.
    """
    if ranked.metric.kind != LEVELS:
        return edited_metric(ranked, t, new_edits(1))
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
    """sum_k count_k p_k of list t after the edits, as an exact pair; or the value of another metric, and 0."""
    if ranked.metric.kind != LEVELS:
        return edited_metric(ranked, t, edits), 0.0
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
