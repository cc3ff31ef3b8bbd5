"""Nearest steps of a ranked list's AP, for every detection at once (docs/method.md, Sec. 4; Henderson & Ferrari 2016, Sec. 4.4).

Only true positives' ranks matter, so all false positives between the same two true positives share one answer: their
*gap* u = number of true positives above. p_j = max over l >= j of l / r_l, attained first at m_j and last at M_j.

* A false positive rising from gap u lowers the true positives it passes. Some p_j with weight falls once all its maximisers
  have been passed, i.e. on passing m_j, for the largest such j with M_j <= u.
* A false positive sinking past true positive l raises it to l / (r_l - 1); that counts if it beats p_j of the nearest
  weighted level j <= l.
* A true positive rising to the rank q of a false positive with u true positives above becomes number u + 1 there; that
  counts if (u + 1) / q beats p_j of the nearest weighted level j <= u + 1.
* A true positive k sinking loses p_j once it falls behind all maximisers, m_j >= k: at the first false positive behind M_j.
  Where p_j = 1, those it passes keep that precision, and p_j is lost only if j = M_j.

AP is monotone along each of these moves, so the first swap that changes it is the nearest step, and a group of tied scores
is passed as a whole.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepgrad.kernels.edited_ap import Edits, Lift, Ranked, edited_sum, put_edit
from stepgrad.kernels.jit import kernel

NONE = -1


class Ties(NamedTuple):
    """Groups of equal scores along the order: the first and the last position of each position's group."""

    start: NDArray[np.int32]
    end: NDArray[np.int32]


class GapSteps(NamedTuple):
    """Position whose window is passed (NONE: no step) and the sum just beyond it, by gap or by true positive."""

    up: NDArray[np.int32]
    up_sum: NDArray[np.float64]
    down: NDArray[np.int32]
    down_sum: NDArray[np.float64]


class Envelope(NamedTuple):
    """p_j, its first and last maximiser, and the nearest weighted level at or before j (0: none), for j = 1..T."""

    value: NDArray[np.float64]
    first: NDArray[np.int32]
    last: NDArray[np.int32]
    level: NDArray[np.int32]


@kernel
def tie_groups(scores: NDArray[np.float64], order: NDArray[np.int32]) -> Ties:
    """First and last position of every group of equal scores."""
    n = len(order)
    start = np.empty(n, dtype=np.int32)
    end = np.empty(n, dtype=np.int32)
    for p in range(n):
        tied = p > 0 and scores[order[p]] == scores[order[p - 1]]
        start[p] = start[p - 1] if tied else p
    for p in range(n - 1, -1, -1):
        tied = p + 1 < n and start[p + 1] == start[p]
        end[p] = end[p + 1] if tied else p
    return Ties(start, end)


@kernel
def envelope_of(ranked: Ranked) -> Envelope:
    """The interpolated precisions of the list as it stands."""
    T = ranked.T
    value = np.zeros(T + 2)
    first = np.zeros(T + 2, dtype=np.int32)
    last = np.zeros(T + 2, dtype=np.int32)
    level = np.zeros(T + 2, dtype=np.int32)
    for k in range(T, 0, -1):
        precision = k / ranked.rank[k]
        value[k] = value[k + 1]
        first[k] = first[k + 1]
        last[k] = last[k + 1]
        if precision > value[k]:
            value[k] = precision
            first[k] = k
            last[k] = k
        elif precision == value[k]:
            first[k] = k
    for k in range(1, T + 1):
        weighted = ranked.cumulative[k] > ranked.cumulative[k - 1]
        level[k] = k if weighted else level[k - 1]
    return Envelope(value, first, last, level)


@kernel
def _moved(ranked: Ranked, lift: Lift, edits: Edits, source: int, target: int, tp: int) -> float:
    """The sum after one detection (a true positive or not) leaves key `source` and enters at key `target`."""
    edits.size[0] = 0
    put_edit(edits, source, -tp, tp - 1)
    put_edit(edits, target, tp, 1 - tp)
    hi, _ = edited_sum(ranked, lift, edits)
    return hi


@kernel
def _no_steps(n: int) -> GapSteps:
    return GapSteps(np.full(n, NONE, dtype=np.int32), np.zeros(n), np.full(n, NONE, dtype=np.int32), np.zeros(n))


@kernel
def false_positive_steps(ranked: Ranked, lift: Lift, edits: Edits, env: Envelope, ties: Ties) -> GapSteps:
    """Nearest steps of a false positive in gap u, for u = 0..T."""
    T, n = ranked.T, len(ties.start)
    steps = _no_steps(T + 1)
    passed, j = NONE, 1
    for u in range(T + 1):
        while j <= T and env.last[j] <= u:
            passed = env.first[j] if env.level[j] == j else passed
            j += 1
        if passed != NONE:
            steps.up[u] = ranked.tp_position[passed]
    passed = NONE
    for u in range(T, -1, -1):
        if passed != NONE:
            steps.down[u] = ranked.tp_position[passed]
        if u > 0 and ranked.rank[u] > u and env.level[u] > 0 and u / (ranked.rank[u] - 1) > env.value[env.level[u]]:
            passed = u
    for u in range(T + 1):
        from_key = 2 * ranked.tp_position[u + 1] if u < T else 2 * n
        if steps.up[u] != NONE:
            steps.up_sum[u] = _moved(ranked, lift, edits, from_key, 2 * ties.start[steps.up[u]], 0)
        if steps.down[u] != NONE:
            steps.down_sum[u] = _moved(ranked, lift, edits, from_key, 2 * ties.end[steps.down[u]] + 2, 0)
    return steps


@kernel
def true_positive_steps(ranked: Ranked, lift: Lift, edits: Edits, env: Envelope, ties: Ties) -> GapSteps:
    """Nearest steps of true positive k, for k = 1..T (entry 0 is unused)."""
    T = ranked.T
    steps = _no_steps(T + 1)
    passed = NONE
    u = 0
    above = NONE
    for q in range(1, len(ranked.counted_position)):
        if u < T and q == ranked.rank[u + 1]:
            u += 1
            steps.up[u] = passed
        elif u < T:
            above = env.level[u + 1]
            if above > 0 and (u + 1) / q > env.value[above]:
                passed = ranked.counted_position[q]
    j = 1
    for k in range(1, T + 1):
        # A precision of 1 stays with those that move up, number l - 1 at rank l - 1: of the levels that share it only the last
        # is lost.
        while j <= T and (env.first[j] < k or env.level[j] != j or (env.value[j] == 1.0 and env.last[j] > j)):
            j += 1
        if j <= T and ranked.rank[env.last[j]] + 1 < len(ranked.counted_position):
            steps.down[k] = ranked.counted_position[ranked.rank[env.last[j]] + 1]
    for k in range(1, T + 1):
        from_key = 2 * ranked.tp_position[k] + 1
        if steps.up[k] != NONE:
            steps.up_sum[k] = _moved(ranked, lift, edits, from_key, 2 * ties.start[steps.up[k]], 1)
        if steps.down[k] != NONE:
            steps.down_sum[k] = _moved(ranked, lift, edits, from_key, 2 * ties.end[steps.down[k]] + 2, 1)
    return steps
