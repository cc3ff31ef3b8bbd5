"""A class's metric on resampled images: every image counts as often as it was drawn, and nothing is matched again.

An image that was drawn w times adds w copies of its detections and objects. Copies of a detection have the same score and
role, so they stand together in the list: a true positive of weight w is passed as w true positives, and precision is best
behind the last of them. So each resample is one walk down the list with weighted counts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepgrad.engine.jit import kernel
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
    lists: Contenders, weights: NDArray[np.uint8], objects: NDArray[np.int64], worth: Worth
) -> NDArray[np.float64]:
    """(R, t) the metric of a class in each resample; weights (R, units), objects (R,) to find."""
    resamples, thresholds, C = len(weights), len(lists.special_ptr) - 1, len(lists.unit)
    values = np.zeros((resamples, thresholds))
    true = np.empty(C, dtype=np.int64)  # of each true positive: true positives up to it, ...
    counted = np.empty(C, dtype=np.int64)  # ... and detections up to it
    weight = np.empty(C, dtype=np.int64)
    upto = np.empty(C, dtype=np.int64)  # detections up to each contender
    for r in range(resamples):
        drawn = weights[r]
        total = 0
        at = 0
        # Plain false positives are the same at every threshold: counted once for all of them.
        for c in range(C + 1):
            while at < lists.plain_ptr[c]:
                total += drawn[lists.plain_unit[at]]
                at += 1
            if c < C:
                weight[c] = drawn[lists.unit[c]]
                total += weight[c]
                upto[c] = total
        for t in range(thresholds):
            T = 0  # true positives so far
            ignored = 0
            count = 0
            for s in range(lists.special_ptr[t], lists.special_ptr[t + 1]):
                c = lists.special[s]
                if not lists.is_true[s]:
                    ignored += weight[c]
                elif weight[c] > 0:
                    T += weight[c]
                    true[count] = T
                    counted[count] = upto[c] - ignored
                    count += 1
            values[r, t] = _value(true[:count], counted[:count], total - ignored, objects[r], worth, worth.row[r])
    return values


@kernel
def _value(
    true: NDArray[np.int64], counted: NDArray[np.int64], everything: int, P: int, worth: Worth, row: int
) -> float:
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
    if worth.kind == LEVELS:
        return _interpolated(true, counted, worth, row)
    # The miss rate: at each point the last true positive within the allowance of false positives.
    total = 0.0
    k = last
    for point in range(len(worth.allowed) - 1, -1, -1):
        while k >= 0 and counted[k] - true[k] > worth.allowed[point]:
            k -= 1
        found = true[k] if k >= 0 else 0
        total += np.log(max((P - found) / P, 1e-10))
    return float(np.exp(total / len(worth.allowed)))


@kernel
def _interpolated(true: NDArray[np.int64], counted: NDArray[np.int64], worth: Worth, row: int) -> float:
    """AP: the best precision at each recall level or beyond, from the end of the list to its top."""
    total = 0.0
    best = 0.0
    slope = worth.slope[row]
    level = worth.needed.shape[1] - 1
    for k in range(len(true) - 1, -1, -1):
        best = max(best, true[k] / counted[k])
        before = true[k - 1] if k > 0 else 0
        # No levels: every true positive is a level of its own, and copies of one are levels side by side.
        if slope > 0.0:
            total += best * (min(true[k] * slope, worth.cap[row]) - min(before * slope, worth.cap[row]))
            continue
        # Levels beyond the recall that was reached count nothing.
        while level >= 0 and worth.needed[row, level] > true[k]:
            level -= 1
        while level >= 0 and worth.needed[row, level] > before:
            total += best * worth.weight[row, level]
            level -= 1
    return total / worth.norm[row]
