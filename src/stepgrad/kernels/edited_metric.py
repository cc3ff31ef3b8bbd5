"""Metrics of a ranked list other than AP (metric_code.py) after a few edits of it.

Between two edits all true positives shift by the same number of places, as in edited_ap.py. Few of a stretch can matter, and
blocks of the others are passed over by a bound that holds for a whole block: with k and r a true positive's number and rank
and s a slope, k - s r is at most the block's top. For recall at a precision, s is that precision; for F1, half the best F1 as
the list stands, near which the best after the edits must be.
"""

from __future__ import annotations

from stepgrad.kernels.exact_sum import add
from stepgrad.kernels.jit import kernel
from stepgrad.kernels.metric_code import (
    BEST_F1,
    F1_AT_CUT,
    MISS_RATE,
    RECALL_AT_PRECISION,
    Fold,
    fold_in,
    folded,
    new_fold,
    value_at_cut,
)
from stepgrad.kernels.ranked_list import BLOCK, Edits, Ranked, counted_above, tp_above

_SLACK = 1e-6  # far more than the rounding of a bound, far less than a place in the list


@kernel
def _can_matter(ranked: Ranked, t: int, block: int, a: int, c: int, best: float) -> bool:
    """Whether a true positive of the block, shifted by a and c, may be better than the best so far."""
    slope, top = ranked.slope[t], ranked.tops[t, block]
    if (
        ranked.metric.kind == RECALL_AT_PRECISION
    ):  # (k + a) / (r + c) >= slope; one found below is better than any above
        return best == 0.0 and top + a - slope * c > -_SLACK
    # 2 (k + a) / (r + c + P) > best: above the line of slope best / 2, which is steeper or flatter than `slope`.
    steeper = 0.5 * best - slope
    first, last = max(block * BLOCK, 1), min(block * BLOCK + BLOCK - 1, ranked.T[t])
    objects = ranked.metric.objects
    reach = ranked.rank[t, first if steeper >= 0.0 else last] + c + objects
    return top + a - slope * (c + objects) - steeper * reach > -_SLACK


@kernel
def _serve_points(ranked: Ranked, t: int, first: int, last: int, a: int, c: int, fold: Fold) -> Fold:
    """Points of the miss rate, from the last on, whose last true positive is in the stretch.

    False positives above true positives do not decrease along the list, so a bisection finds it.
    """
    metric, rank = ranked.metric, ranked.rank[t]
    point, hi, lo = fold.point, fold.hi, fold.lo
    while point > 0:
        most = metric.allowed[point - 1] - c + a
        low, high = first - 1, last  # true positives up to `low` are within the allowance, those after `high` are not
        while low < high:
            middle = (low + high + 1) // 2
            if rank[middle] - middle <= most:
                low = middle
            else:
                high = middle - 1
        if low < first:
            break
        point -= 1
        hi, lo = add(hi, lo, metric.logs[metric.objects - low - a])
    return Fold(fold.best, point, hi, lo)


@kernel
def _fold_stretch(ranked: Ranked, t: int, first: int, last: int, a: int, c: int, fold: Fold) -> Fold:
    """Take in true positives last, last - 1, ..., first, each `a` places on among true positives and `c` among all."""
    if first > last:
        return fold
    if ranked.metric.kind == MISS_RATE:
        return _serve_points(ranked, t, first, last, a, c, fold)
    k = last
    while k >= first:
        start = max(first, k // BLOCK * BLOCK)
        if _can_matter(ranked, t, k // BLOCK, a, c, fold.best):
            for i in range(k, start - 1, -1):
                fold = fold_in(ranked.metric, fold, i + a, ranked.rank[t, i] + c)
        k = start - 1
    return fold


@kernel
def _start(ranked: Ranked, t: int, edits: Edits) -> Fold:
    """A fold that knows what has become of the true positive at which F1 was best: with that, few blocks can matter."""
    fold = new_fold(ranked.metric)
    k = ranked.leader[t]
    if ranked.metric.kind != BEST_F1 or k == 0:
        return fold
    key = 2 * ranked.tp_position[t, k] + 1
    a = c = 0
    for e in range(edits.size[0]):
        if edits.key[e] == key:  # it is no true positive any more
            return fold
        if edits.key[e] < key:
            a += edits.tp[e]
            c += edits.tp[e] + edits.fp[e]
    return fold_in(ranked.metric, fold, k + a, ranked.rank[t, k] + c)


@kernel
def edited_metric(ranked: Ranked, t: int, edits: Edits) -> float:
    """The value of list t after the edits."""
    if ranked.metric.kind >= F1_AT_CUT:
        return _edited_at_cut(ranked, t, edits)
    a = c = 0
    for e in range(edits.size[0]):
        a += edits.tp[e]
        c += edits.tp[e] + edits.fp[e]
    fold = _start(ranked, t, edits)
    last = ranked.T[t]
    for e in range(edits.size[0] - 1, -1, -1):  # as in `edited_sum`
        above = tp_above(ranked, t, edits.key[e] >> 1)
        fold = _fold_stretch(ranked, t, above + 1 + (edits.tp[e] < 0), last, a, c, fold)
        a -= edits.tp[e]
        c -= edits.tp[e] + edits.fp[e]
        if edits.tp[e] > 0:
            rank = counted_above(ranked, t, edits.key[e] >> 1) + c + 1
            fold = fold_in(ranked.metric, fold, above + a + 1, rank)
        last = min(last, above)
    return folded(ranked.metric, _fold_stretch(ranked, t, 1, last, 0, 0, fold))


@kernel
def _edited_at_cut(ranked: Ranked, t: int, edits: Edits) -> float:
    """What stands above the cut, after the edits; key 2 cut inserts just above it."""
    true, counted = tp_above(ranked, t, ranked.cut), counted_above(ranked, t, ranked.cut)
    for e in range(edits.size[0]):
        if edits.key[e] <= 2 * ranked.cut:
            true += edits.tp[e]
            counted += edits.tp[e] + edits.fp[e]
    return value_at_cut(ranked.metric, true, counted)
