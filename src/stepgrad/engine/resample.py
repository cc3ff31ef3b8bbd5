"""A class's metric on resampled images: every image counts as often as it was drawn, and nothing is matched again.

An image that was drawn w times adds w copies of its detections and objects. Copies of a detection have the same score and
role, so they stand together in the list: a true positive of weight w is passed as w true positives, and precision is best
behind the last of them. So each resample is one walk down the list with weighted counts, and `LANES` resamples walk together.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepgrad.engine.jit import kernel
from stepgrad.engine.lanes import LANES, larger, load, look_up, minus, no_counts, no_numbers, plus, ratio, store, times
from stepgrad.metric.list_metric import BEST_F1, COST_AT_CUT, F1_AT_CUT, LEVELS, RECALL_AT_PRECISION


class Contenders(NamedTuple):
    """The list of a class: its contenders, which are no false positives at some threshold, and the plain ones between them."""

    unit: NDArray[np.int32]  # (C,) unit (image, or group of images) of each contender, by decreasing score
    plain_unit: NDArray[np.int32]  # (F,) units of the others, by decreasing score ...
    plain_ptr: NDArray[np.int64]  # (C + 1,) ... those above contender c are the first plain_ptr[c]
    special: NDArray[np.int32]  # (S,) contenders that are no false positives, threshold after threshold, ...
    is_true: NDArray[np.bool_]  # (S,) ... true positives or ignored, ...
    special_ptr: NDArray[np.int64]  # (t + 1,) ... those of threshold t from ptr[t] to ptr[t + 1]


class Worth(NamedTuple):
    """How a list is valued, by the number of objects in a resample."""

    kind: int
    first: float  # the precision to reach, or the price of a false alarm
    second: float  # the price of a miss
    row: NDArray[np.int64]  # (R,) which row of the tables a resample goes by
    needed: NDArray[np.int64]  # (rows, L) true positives at which each recall level is reached, increasing
    weight: NDArray[np.float64]  # (rows, L) what the level counts; of a row without levels, see `slope`
    slope: NDArray[np.float64]  # (rows,) where every true positive counts the same: how much ...
    cap: NDArray[np.float64]  # (rows,) ... up to this sum
    norm: NDArray[np.float64]  # (rows,)
    allowed: NDArray[np.int64]  # false positives allowed at each point of the miss rate, increasing


@kernel
def resampled_values(
    lists: Contenders, blocks: NDArray[np.uint8], objects: NDArray[np.int64], worth: Worth
) -> NDArray[np.float64]:
    """(R, t) the metric of a class in each resample; weights in blocks (R / LANES, units, LANES), objects (R,) to find."""
    thresholds = len(lists.special_ptr) - 1
    values = np.zeros((len(blocks) * LANES, thresholds))
    upto = np.empty((len(lists.unit), LANES), dtype=np.int32)
    everything = np.empty((1, LANES), dtype=np.int32)
    of_block = np.empty((thresholds, LANES))
    for b in range(len(blocks)):
        drawn = blocks[b]
        first = b * LANES
        _count(lists, drawn, upto, everything)
        P = objects[first : first + LANES]
        if worth.kind == LEVELS:
            reached = _reached(P, worth, worth.row[first : first + LANES])
            for t in range(thresholds):
                _levels(lists, drawn, upto, reached, t, of_block)
                for lane in range(LANES):
                    of_block[t, lane] /= worth.norm[worth.row[first + lane]]
        else:
            for t in range(thresholds):
                for lane in range(LANES):
                    of_block[t, lane] = _lane(lists, drawn, upto, everything, P, worth, t, lane)
        values[first : first + LANES] = of_block.T
    return values


@kernel
def drawn_objects(blocks: NDArray[np.uint8], units: NDArray[np.int32]) -> NDArray[np.int64]:
    """(R,) how many objects each resample holds; `units` has the unit of each object."""
    counts = np.zeros((1, LANES), dtype=np.int32)
    found = np.empty(len(blocks) * LANES, dtype=np.int64)
    for b in range(len(blocks)):
        total = no_counts()
        for unit in units:
            total = plus(total, load(blocks[b], unit))
        store(total, counts, 0)
        found[b * LANES : (b + 1) * LANES] = counts[0]
    return found


@kernel
def _count(lists: Contenders, drawn: NDArray[np.uint8], upto: NDArray[np.int32], everything: NDArray[np.int32]) -> None:
    """Detections up to each contender, and of the whole list; plain false positives are the same at every threshold."""
    total = no_counts()
    C = len(lists.unit)
    at = 0
    for c in range(C + 1):
        while at < lists.plain_ptr[c]:
            total = plus(total, load(drawn, lists.plain_unit[at]))
            at += 1
        if c < C:
            total = plus(total, load(drawn, lists.unit[c]))
            store(total, upto, c)
    store(total, everything, 0)


@kernel
def _reached(P: NDArray[np.int64], worth: Worth, row: NDArray[np.int64]) -> NDArray[np.float64]:
    """(P + 1, LANES) what the recall levels count together that so many true positives reach: whole numbers."""
    reached = np.zeros((P.max() + 1, LANES))
    for lane in range(LANES):
        r = row[lane]
        # No levels: every true positive is a level of its own, and copies of one are levels side by side.
        if worth.slope[r] > 0.0:
            for T in range(P[lane] + 1):
                reached[T, lane] = min(T * worth.slope[r], worth.cap[r])
            continue
        total = 0.0
        level = 0
        for T in range(P[lane] + 1):
            while level < worth.needed.shape[1] and worth.needed[r, level] <= T:
                total += worth.weight[r, level]
                level += 1
            reached[T, lane] = total
    return reached


@kernel
def _levels(
    lists: Contenders,
    drawn: NDArray[np.uint8],
    upto: NDArray[np.int32],
    reached: NDArray[np.float64],
    t: int,
    values: NDArray[np.float64],
) -> None:
    """AP times its norm: the best precision at each recall level or beyond, from the end of the list to its top.

    A true positive that was not drawn has the precision of a false positive behind the last one, and reaches no level.
    """
    first, last = lists.special_ptr[t], lists.special_ptr[t + 1]
    T = no_counts()
    ignored = no_counts()
    for s in range(first, last):
        weight = load(drawn, lists.unit[lists.special[s]])
        if lists.is_true[s]:
            T = plus(T, weight)
        else:
            ignored = plus(ignored, weight)
    best = no_numbers()
    total = no_numbers()
    here = look_up(reached, T)
    for s in range(last - 1, first - 1, -1):
        c = lists.special[s]
        weight = load(drawn, lists.unit[c])
        if not lists.is_true[s]:
            ignored = minus(ignored, weight)
            continue
        best = larger(ratio(T, minus(load(upto, c), ignored)), best)
        T = minus(T, weight)
        above = look_up(reached, T)
        total = plus(total, times(best, minus(here, above)))
        here = above
    store(total, values, t)


@kernel
def _lane(
    lists: Contenders,
    drawn: NDArray[np.uint8],
    upto: NDArray[np.int32],
    everything: NDArray[np.int32],
    P: NDArray[np.int64],
    worth: Worth,
    t: int,
    lane: int,
) -> float:
    """The other metrics, resample by resample."""
    first, last = lists.special_ptr[t], lists.special_ptr[t + 1]
    true = np.empty(last - first, dtype=np.int64)  # of each true positive: true positives up to it, ...
    counted = np.empty(last - first, dtype=np.int64)  # ... and detections up to it
    T = 0
    ignored = 0
    count = 0
    for s in range(first, last):
        c = lists.special[s]
        weight = drawn[lists.unit[c], lane]
        if not lists.is_true[s]:
            ignored += weight
        elif weight > 0:
            T += weight
            true[count] = T
            counted[count] = upto[c, lane] - ignored
            count += 1
    return _value(true[:count], counted[:count], everything[0, lane] - ignored, P[lane], worth)


@kernel
def _value(true: NDArray[np.int64], counted: NDArray[np.int64], everything: int, P: int, worth: Worth) -> float:
    """The metric of one list, from the counts at its true positives."""
    last = len(true) - 1
    T = true[last] if last >= 0 else 0
    # Metrics with a fixed threshold see the whole list: it was cut before it came here.
    if worth.kind == COST_AT_CUT:
        return worth.first * (everything - T) + worth.second * (P - T)
    if worth.kind == F1_AT_CUT:
        return 2 * T / (everything + P) if everything + P > 0 else 0.0
    if P == 0:
        return 0.0
    if worth.kind == BEST_F1:
        best = 0.0
        # F1 falls with every false positive, so it is best right behind a true one.
        for k in range(last + 1):
            best = max(best, 2 * true[k] / (counted[k] + P))
        return best
    if worth.kind == RECALL_AT_PRECISION:
        # The deepest place with that precision has the highest recall.
        for k in range(last, -1, -1):
            if true[k] / counted[k] >= worth.first:
                return true[k] / P
        return 0.0
    # The miss rate: at each point the last true positive within the allowance of false positives.
    total = 0.0
    k = last
    for point in range(len(worth.allowed) - 1, -1, -1):
        while k >= 0 and counted[k] - true[k] > worth.allowed[point]:
            k -= 1
        found = true[k] if k >= 0 else 0
        total += np.log(max((P - found) / P, 1e-10))
    return float(np.exp(total / len(worth.allowed)))
