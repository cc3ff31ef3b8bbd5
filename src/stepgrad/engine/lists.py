"""The counted detections of a class by decreasing score, and the metric of such a list after a few edits.

Every metric here follows from the ranks of the true positives. With r_k the rank of the k-th one, AP is one weighted sum of the
interpolated precisions p_k = max over l >= k of l / r_l: AP = sum_k count_k p_k / norm, with integer counts from the protocol
(Henderson & Ferrari 2016, Sec. 2.2; docs/method.md, Sec. 3). Moving one window edits the list at a few places, and between
two edits all true positives shift by the same number of places. So `value_of` walks from the end of the list to its top,
stretch by stretch, and takes what no edit has changed from sums that are known.

A fixed threshold of the score is a *cut*: a window of an image of its own that scores exactly the threshold, ranks behind all
windows of that score and is always a true positive. What stands above it passes the threshold, and a score that crosses the
threshold trades places with it: a swap like any other.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepgrad.engine.exact_sum import add, add_multiple
from stepgrad.engine.jit import inlined, kernel, lend, take_back
from stepgrad.engine.matching import (
    BYSTANDER,
    FALSE_POSITIVE,
    TRUE_POSITIVE,
    Judged,
    OneClass,
    Rules,
    judge,
    role_at,
)
from stepgrad.engine.neighbours import Neighbours
from stepgrad.engine.nms import NONE, AfterNMS, image_of, is_kept
from stepgrad.metric.list_metric import BEST_F1, COST_AT_CUT, F1_AT_CUT, LEVELS, RECALL_AT_PRECISION


class RankedLists(NamedTuple):
    """One list per match threshold t. True positives are numbered from 1.

    The lists differ only where contenders stand. Between two contenders, in a *zone*, all lists are the same: zone z lies above
    contender number z.
    """

    T: NDArray[np.int64]  # (t,) true positives
    rank: NDArray[np.int64]  # (t, C + 1) rank[t, k] of the k-th true positive
    tp_position: NDArray[np.int32]  # (t, C + 1) its position among all windows, NONE beyond the last
    at: NDArray[np.int32]  # (C,) positions of the contenders
    zone: NDArray[np.int32]  # (N + 1,) contenders at positions < p: the zone of position p
    plain_above: NDArray[np.int32]  # (N + 1,) false positives that are no contenders at positions < p
    tp_before: NDArray[np.int32]  # (t, C + 1) true positives among the first z contenders
    counted_before: NDArray[np.int32]  # (t, C + 1) detections among them
    same_as: NDArray[np.int32]  # (t,) the first threshold with the same list
    cut: int  # position of the metric's cut, NONE without one
    # (t, C + 2) of true positives k, k + 1, ...: the sum of their terms as an exact pair ...
    below_high: NDArray[np.float64]
    below_low: NDArray[np.float64]
    below_best: NDArray[np.float64]  # (t, C + 2) ... and the largest precision among them


class Edits(NamedTuple):
    """Changes of a list, sorted by key: 2 p + 1 changes the window at position p, 2 p inserts just above it."""

    key: NDArray[np.int64]
    tp: NDArray[np.int64]  # true positives gained (-1, 0, 1)
    fp: NDArray[np.int64]  # false positives gained
    size: NDArray[np.int64]  # (1,)


@inlined
def tp_above(lists: RankedLists, t: int, position: int) -> int:
    """True positives at earlier positions."""
    return lists.tp_before[t, lists.zone[position]]


@inlined
def counted_above(lists: RankedLists, t: int, position: int) -> int:
    """Detections at earlier positions."""
    return lists.plain_above[position] + lists.counted_before[t, lists.zone[position]]


@kernel
def make_lists(judged: Judged, ranking: AfterNMS, neighbours: Neighbours, rules: Rules) -> RankedLists:
    """The list of every threshold."""
    n, C, thresholds = len(ranking.order), len(judged.contenders), len(rules.thresholds)
    at = ranking.position[judged.contenders]
    zone = np.empty(n + 1, dtype=np.int32)
    plain_above = np.empty(n + 1, dtype=np.int32)
    z = 0
    above = 0
    for p in range(n):
        zone[p] = z
        plain_above[p] = above
        # A contender ends its zone, and has a role of its own at each threshold: it is counted by `counted_before`.
        if z < C and at[z] == p:
            z += 1
            continue
        window = ranking.order[p]
        if is_kept(ranking, window) and judged.number[window] != BYSTANDER:
            # Kept, reaching no object, and within the limit of its image: a false positive at every threshold.
            above += p <= judged.last_counted[image_of(neighbours, window)]
    zone[n] = z
    plain_above[n] = above
    sums = (thresholds, C + 2 if rules.kind == LEVELS else 0)
    owned = RankedLists(
        T=np.zeros(thresholds, dtype=np.int64),
        rank=np.zeros((thresholds, C + 1), dtype=np.int64),
        tp_position=np.full((thresholds, C + 1), NONE, dtype=np.int32),
        at=at,
        zone=zone,
        plain_above=plain_above,
        tp_before=np.zeros((thresholds, C + 1), dtype=np.int32),
        counted_before=np.zeros((thresholds, C + 1), dtype=np.int32),
        same_as=np.zeros(thresholds, dtype=np.int32),
        cut=ranking.position[rules.cut] if rules.cut != NONE else NONE,
        below_high=np.zeros(sums),
        below_low=np.zeros(sums),
        below_best=np.zeros(sums),
    )
    lists = lend(owned)
    for t in range(thresholds):
        _number_detections(lists, judged, t)
        if rules.kind == LEVELS:
            _sum_from_below(lists, rules, t)
        lists.same_as[t] = _first_like(lists, t)
    take_back(owned)
    return owned


@kernel
def _first_like(lists: RankedLists, t: int) -> int:
    """The first threshold whose list is the same as that of threshold t."""
    for other in range(t):
        # Lists are the same where the same contenders are true positives, and the same count.
        same = True
        for z in range(len(lists.at) + 1):
            same &= lists.tp_before[other, z] == lists.tp_before[t, z]
            same &= lists.counted_before[other, z] == lists.counted_before[t, z]
        if same:
            return other
    return t


@kernel
def _number_detections(lists: RankedLists, judged: Judged, t: int) -> None:
    """Give every true positive of list t its number and rank."""
    tps = 0
    counted = 0
    for z in range(len(lists.at)):
        role = judged.role[t, judged.number[judged.contenders[z]]]
        if role == TRUE_POSITIVE:
            tps += 1
            lists.rank[t, tps] = lists.plain_above[lists.at[z]] + counted + 1
            lists.tp_position[t, tps] = lists.at[z]
        counted += role == TRUE_POSITIVE or role == FALSE_POSITIVE
        lists.tp_before[t, z + 1] = tps
        lists.counted_before[t, z + 1] = counted
    lists.T[t] = tps


@kernel
def _sum_from_below(lists: RankedLists, rules: Rules, t: int) -> None:
    """AP's sum as it grows from the last true positive to the first."""
    hi = lo = best = 0.0
    for k in range(lists.T[t], 0, -1):
        best = max(best, k / lists.rank[t, k])
        hi, lo = add_multiple(hi, lo, rules.cumulative[k] - rules.cumulative[k - 1], best)
        # What the true positives from k on add up to: `_walk` takes it as it is where nothing above has changed.
        lists.below_high[t, k] = hi
        lists.below_low[t, k] = lo
        lists.below_best[t, k] = best


@kernel
def new_edits(capacity: int) -> Edits:
    """An empty list of edits."""
    return Edits(
        np.empty(capacity, dtype=np.int64),
        np.empty(capacity, dtype=np.int64),
        np.empty(capacity, dtype=np.int64),
        np.zeros(1, dtype=np.int64),
    )


@kernel
def put_edit(edits: Edits, key: int, tp: int, fp: int) -> None:
    """Add an edit, keeping the list sorted by key; edits of one key are added, and what adds up to nothing goes."""
    if tp == 0 and fp == 0:
        return
    size = edits.size[0]
    at = size
    # Insertion keeps the few edits sorted; a heap or a sort would cost more.
    while at > 0 and edits.key[at - 1] >= key:  # lists are short
        at -= 1
    if at < size and edits.key[at] == key:
        edits.tp[at] += tp
        edits.fp[at] += fp
        if edits.tp[at] == 0 and edits.fp[at] == 0:
            for e in range(at, size - 1):
                _copy_edit(edits, e + 1, e)
            edits.size[0] -= 1
        return
    for e in range(size, at, -1):
        _copy_edit(edits, e - 1, e)
    edits.key[at] = key
    edits.tp[at] = tp
    edits.fp[at] = fp
    edits.size[0] += 1


@inlined
def _copy_edit(edits: Edits, source: int, target: int) -> None:
    edits.key[target] = edits.key[source]
    edits.tp[target] = edits.tp[source]
    edits.fp[target] = edits.fp[source]


@kernel
def value_of(lists: RankedLists, rules: Rules, t: int, edits: Edits) -> tuple[float, float]:
    """The metric of list t after the edits: AP's sum as an exact pair, or another metric and 0."""
    if rules.kind == F1_AT_CUT or rules.kind == COST_AT_CUT:
        return _value_at_cut(lists, rules, t, edits), 0.0
    # How far the true positives below all edits are shifted: `a` places among true positives, `c` among detections.
    a = 0
    c = 0
    for e in range(edits.size[0]):
        a += edits.tp[e]
        c += edits.tp[e] + edits.fp[e]
    # (hi, lo) is the sum so far, `best` the best so far: the largest precision, F1 or recall; `point`: see `_walk`.
    hi = lo = best = 0.0
    point = len(rules.allowed)
    last = lists.T[t]
    # From the end of the list to its top, as the envelope of precisions grows from there: the stretch below an edit, then
    # the edit itself.
    for e in range(edits.size[0] - 1, -1, -1):
        above = tp_above(lists, t, edits.key[e] >> 1)
        first = above + 1 + (edits.tp[e] < 0)  # a true positive that leaves is not part of the stretch below it
        hi, lo, best, point = _walk(lists, rules, t, first, last, a, c, hi, lo, best, point)
        a -= edits.tp[e]
        c -= edits.tp[e] + edits.fp[e]
        if edits.tp[e] > 0:  # a new true positive has its own precision at its own place
            # Its number among the true positives, and its rank among the detections, after all edits above it.
            k = above + a + 1
            rank = counted_above(lists, t, edits.key[e] >> 1) + c + 1
            if rules.kind == LEVELS:
                best = max(best, k / rank)
                hi, lo = add_multiple(hi, lo, rules.cumulative[k] - rules.cumulative[k - 1], best)
            else:
                hi, lo, best, point = _take_in(rules, k, rank, hi, lo, best, point)
        last = min(last, above)
    hi, lo, best, point = _walk(lists, rules, t, 1, last, 0, 0, hi, lo, best, point)
    if rules.kind == LEVELS:
        return hi, lo
    if rules.kind == BEST_F1 or rules.kind == RECALL_AT_PRECISION:
        return best, 0.0
    for _ in range(point):  # with fewer false positives than these points allow, nothing is found
        hi, lo = add(hi, lo, rules.logs[rules.objects])
    return float(np.exp(hi / len(rules.allowed))), 0.0


@kernel
def _walk(
    lists: RankedLists,
    rules: Rules,
    t: int,
    first: int,
    last: int,
    a: int,
    c: int,
    hi: float,
    lo: float,
    best: float,
    point: int,
) -> tuple[float, float, float, int]:
    """Take in true positives last, last - 1, ..., first, each `a` places on among true positives and `c` among all."""
    rank = lists.rank[t]
    if rules.kind != LEVELS:
        for k in range(last, first - 1, -1):
            hi, lo, best, point = _take_in(rules, k + a, rank[k] + c, hi, lo, best, point)
        return hi, lo, best, point
    levels = rules.cumulative
    # Terms of equal precision are added as one product: a pair of floats is exact for it.
    run = last  # true positives k + 1, ..., run share the precision `best`
    k = last
    while k >= first:
        if a == 0 and c == 0 and best == lists.below_best[t, k + 1]:
            # From here on the precisions are as they stand: the rest of the stretch is a difference of known sums.
            hi, lo = add_multiple(hi, lo, levels[run] - levels[k], best)
            hi, lo = add(hi, lo, lists.below_high[t, first])
            hi, lo = add(hi, lo, lists.below_low[t, first])
            hi, lo = add(hi, lo, -lists.below_high[t, k + 1])
            hi, lo = add(hi, lo, -lists.below_low[t, k + 1])
            return hi, lo, lists.below_best[t, first], point
        precision = (k + a) / (rank[k] + c)
        if precision > best:
            hi, lo = add_multiple(hi, lo, levels[run + a] - levels[k + a], best)
            run = k
            best = precision
        k -= 1
    if first <= last:
        hi, lo = add_multiple(hi, lo, levels[run + a] - levels[first - 1 + a], best)
    return hi, lo, best, point


@inlined
def _take_in(
    rules: Rules, k: int, rank: int, hi: float, lo: float, best: float, point: int
) -> tuple[float, float, float, int]:
    """Take in true positive number k at a rank, for metrics other than AP."""
    if rules.kind == BEST_F1:
        return hi, lo, max(best, 2 * k / (rank + rules.objects)), point
    if rules.kind == RECALL_AT_PRECISION:
        return hi, lo, float(k) if k / rank >= rules.first and k > best else best, point
    # The miss rate: `point` points are not served yet. The last true positive within a point's allowance serves it.
    # rank - k false positives stand above this true positive.
    while point > 0 and rank - k <= rules.allowed[point - 1]:
        point -= 1
        hi, lo = add(hi, lo, rules.logs[rules.objects - k])
    return hi, lo, best, point


@kernel
def _value_at_cut(lists: RankedLists, rules: Rules, t: int, edits: Edits) -> float:
    """F1 or the cost of the detections that stand above the cut after the edits; key 2 cut inserts just above it."""
    # The cut itself is a true positive of an image of its own: neither it nor what stands below counts.
    true = tp_above(lists, t, lists.cut)
    counted = counted_above(lists, t, lists.cut)
    for e in range(edits.size[0]):
        # Key 2 cut is the gap just above the cut: what is put there still passes the threshold.
        if edits.key[e] <= 2 * lists.cut:
            true += edits.tp[e]
            counted += edits.tp[e] + edits.fp[e]
    if rules.kind == COST_AT_CUT:
        return rules.first * (counted - true) + rules.second * (rules.objects - true)
    both = counted + rules.objects
    return 2 * true / both if both > 0 else 0.0


@kernel
def values_of_class(owned: OneClass) -> NDArray[np.float64]:
    """The metric at every threshold; AP times the protocol's norm."""
    one = lend(owned)
    judged = judge(one.ranking, one.neighbours, one.objects, one.rules)
    lists = make_lists(lend(judged), one.ranking, one.neighbours, one.rules)
    listed = lend(lists)
    edits = new_edits(1)
    none = lend(edits)
    values = np.empty(len(one.rules.thresholds))
    for t in range(len(values)):
        values[t], _ = value_of(listed, one.rules, t, none)
    take_back(owned)
    take_back(judged)
    take_back(lists)
    take_back(edits)
    return values


@kernel
def judge_detections(
    owned: OneClass, levels: NDArray[np.int64]
) -> tuple[NDArray[np.int8], NDArray[np.int32], NDArray[np.float64], NDArray[np.float64]]:
    """At each threshold the role of every window, by position; the object that a true positive or an ignored detection took; the
    sum of AP; and that sum with other recall levels (P + 1,) in place of the protocol's, cumulative as in `Rules`."""
    one = lend(owned)
    judged = judge(one.ranking, one.neighbours, one.objects, one.rules)
    known = lend(judged)
    lists = make_lists(known, one.ranking, one.neighbours, one.rules)
    listed = lend(lists)
    thresholds, windows = len(one.rules.thresholds), len(one.ranking.order)
    roles = np.empty((thresholds, windows), dtype=np.int8)
    took = np.full((thresholds, windows), NONE, dtype=np.int32)
    sums = np.zeros(thresholds)
    other_sums = np.zeros(thresholds)
    for p in range(windows):
        window = one.ranking.order[p]
        r = known.number[window]
        if r >= 0:
            for t in range(thresholds):
                roles[t, p] = known.role[t, r]
                took[t, p] = known.took[t, r]
        else:  # the same at all thresholds
            role = role_at(known, one.ranking, one.neighbours, 0, window)
            for t in range(thresholds):
                roles[t, p] = role
    for t in range(thresholds):
        sums[t] = _sum_of(listed, one.rules.cumulative, t)
        other_sums[t] = _sum_of(listed, levels, t)
    take_back(owned)
    take_back(judged)
    take_back(lists)
    return roles, took, sums, other_sums


@kernel
def _sum_of(lists: RankedLists, cumulative: NDArray[np.int64], t: int) -> float:
    """AP's sum of a list as it stands, with any recall levels."""
    hi = lo = best = 0.0
    for k in range(lists.T[t], 0, -1):
        best = max(best, k / lists.rank[t, k])
        hi, lo = add_multiple(hi, lo, cumulative[k] - cumulative[k - 1], best)
    return hi


def ranked_hits(one: OneClass) -> list[NDArray[np.bool_]]:
    """At each threshold, whether each counted detection is a true positive, by decreasing score, down to the cut if any."""
    roles, _, _, _ = judge_detections(one, one.rules.cumulative)
    if one.rules.cut != NONE:
        roles = roles[:, : one.ranking.position[one.rules.cut]]
    return [row[row <= TRUE_POSITIVE] == TRUE_POSITIVE for row in roles]
