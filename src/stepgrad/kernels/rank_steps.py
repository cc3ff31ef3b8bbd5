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

from stepgrad.kernels.edited_ap import Lift, edited_sum
from stepgrad.kernels.jit import kernel
from stepgrad.kernels.ranked_list import Edits, Ranked, counted_above, put_edit

NONE = -1


class Ties(NamedTuple):
    """Groups of equal scores along the order: the first and the last position of each position's group."""

    start: NDArray[np.int32]
    end: NDArray[np.int32]


class GapSteps(NamedTuple):
    """Position whose window is passed (NONE: no step) and the sum just beyond it, by list and by gap or true positive."""

    up: NDArray[np.int32]
    up_sum: NDArray[np.float64]
    down: NDArray[np.int32]
    down_sum: NDArray[np.float64]


class Envelope(NamedTuple):
    """p_j of one list, its first and last maximiser, and the nearest weighted level at or before j (0: none), j = 1..T."""

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
def no_ties() -> Ties:
    """For a search that does not ask for them."""
    return Ties(np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int32))


@kernel
def envelope_of(ranked: Ranked, t: int) -> Envelope:
    """The interpolated precisions of list t as it stands."""
    T, rank = ranked.T[t], ranked.rank[t]
    value = np.zeros(T + 2)
    first = np.zeros(T + 2, dtype=np.int32)
    last = np.zeros(T + 2, dtype=np.int32)
    level = np.zeros(T + 2, dtype=np.int32)
    for k in range(T, 0, -1):
        precision = k / rank[k]
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
def _moved(ranked: Ranked, lift: Lift, t: int, edits: Edits, source: int, target: int, tp: int) -> float:
    """The sum after one detection (a true positive or not) leaves key `source` and enters at key `target`."""
    edits.size[0] = 0
    put_edit(edits, source, -tp, tp - 1)
    put_edit(edits, target, tp, 1 - tp)
    hi, _ = edited_sum(ranked, lift, t, edits)
    return hi


@kernel
def new_gap_steps(ranked: Ranked) -> GapSteps:
    """No steps at all."""
    shape = ranked.rank.shape
    return GapSteps(
        np.full(shape, NONE, dtype=np.int32), np.zeros(shape), np.full(shape, NONE, dtype=np.int32), np.zeros(shape)
    )


@kernel
def false_positive_steps(ranked: Ranked, lift: Lift, t: int, edits: Edits, ties: Ties, steps: GapSteps) -> None:
    """Nearest steps of a false positive in gap u of list t, for u = 0..T."""
    env = envelope_of(ranked, t)
    T, n, rank, tp_position = ranked.T[t], len(ties.start), ranked.rank[t], ranked.tp_position[t]
    passed, j = NONE, 1
    for u in range(T + 1):
        while j <= T and env.last[j] <= u:
            passed = env.first[j] if env.level[j] == j else passed
            j += 1
        if passed != NONE:
            steps.up[t, u] = tp_position[passed]
    passed = NONE
    for u in range(T, -1, -1):
        if passed != NONE:
            steps.down[t, u] = tp_position[passed]
        if u > 0 and rank[u] > u and env.level[u] > 0 and u / (rank[u] - 1) > env.value[env.level[u]]:
            passed = u
    for u in range(T + 1):
        source = 2 * tp_position[u + 1] if u < T else 2 * n
        up, down = steps.up[t, u], steps.down[t, u]
        if up != NONE:
            steps.up_sum[t, u] = _moved(ranked, lift, t, edits, source, 2 * ties.start[up], 0)
        if down != NONE:
            steps.down_sum[t, u] = _moved(ranked, lift, t, edits, source, 2 * ties.end[down] + 2, 0)


@kernel
def searched_steps(ranked: Ranked, lift: Lift, t: int, edits: Edits, ties: Ties, steps: GapSteps) -> None:
    """`false_positive_steps` for metrics without a closed form: by bisection, as they are monotone along each move."""
    edits.size[0] = 0
    present, _ = edited_sum(ranked, lift, t, edits)
    T, n = ranked.T[t], len(ties.start)
    for u in range(T + 1):
        source = 2 * ranked.tp_position[t, u + 1] if u < T else 2 * n
        steps.up[t, u], steps.up_sum[t, u] = _first_passed(ranked, lift, t, edits, ties, source, u + 1, 1, present)
        steps.down[t, u], steps.down_sum[t, u] = _first_passed(ranked, lift, t, edits, ties, source, u, T, present)


@kernel
def _first_passed(
    ranked: Ranked, lift: Lift, t: int, edits: Edits, ties: Ties, source: int, same: int, changed: int, present: float
) -> tuple[int, float]:
    """Position of the first true positive, after number `same` and up to `changed`, whose passing changes the value, and
    the value beyond; NONE if there is none."""
    if same == changed:
        return NONE, 0.0
    rising = changed < same
    value = _past(ranked, lift, t, edits, ties, source, changed, rising)
    if value == present:
        return NONE, 0.0
    while abs(same - changed) > 1:
        middle = (same + changed) // 2
        halfway = _past(ranked, lift, t, edits, ties, source, middle, rising)
        if halfway == present:
            same = middle
        else:
            changed, value = middle, halfway
    return ranked.tp_position[t, changed], value


@kernel
def _past(ranked: Ranked, lift: Lift, t: int, edits: Edits, ties: Ties, source: int, k: int, rising: bool) -> float:
    """The value with a false positive just beyond true positive k and its ties."""
    passed = ranked.tp_position[t, k]
    target = 2 * ties.start[passed] if rising else 2 * ties.end[passed] + 2
    return _moved(ranked, lift, t, edits, source, target, 0)


@kernel
def _position_of_rank(ranked: Ranked, t: int, rank: int) -> int:
    """Where the detection of that rank stands."""
    low, high = 0, len(ranked.zone) - 2
    while low < high:
        middle = (low + high) // 2
        if counted_above(ranked, t, middle + 1) >= rank:
            high = middle
        else:
            low = middle + 1
    return low


@kernel
def _last_rank_that_beats(k: int, value: float, low: int, high: int) -> int:
    """The largest rank q, low < q < high, with k / q > value; `low` if there is none."""
    while high - low > 1:
        middle = (low + high) // 2
        if k / middle > value:
            low = middle
        else:
            high = middle
    return low


@kernel
def true_positive_steps(ranked: Ranked, lift: Lift, t: int, edits: Edits, ties: Ties, steps: GapSteps) -> None:
    """Nearest steps of true positive k of list t, for k = 1..T (entry 0 is unused)."""
    env = envelope_of(ranked, t)
    T, rank = ranked.T[t], ranked.rank[t]
    passed = NONE
    for u in range(T):
        above = env.level[u + 1]
        if above > 0:
            q = _last_rank_that_beats(u + 1, env.value[above], rank[u], rank[u + 1])
            passed = _position_of_rank(ranked, t, q) if q > rank[u] else passed
        steps.up[t, u + 1] = passed
    j = 1
    for k in range(1, T + 1):
        # A precision of 1 stays with those that move up, number l - 1 at rank l - 1: of the levels that share it only the last
        # is lost.
        while j <= T and (env.first[j] < k or env.level[j] != j or (env.value[j] == 1.0 and env.last[j] > j)):
            j += 1
        if j <= T and rank[env.last[j]] < counted_above(ranked, t, len(ties.start)):
            steps.down[t, k] = _position_of_rank(ranked, t, rank[env.last[j]] + 1)
    for k in range(1, T + 1):
        source = 2 * ranked.tp_position[t, k] + 1
        up, down = steps.up[t, k], steps.down[t, k]
        if up != NONE:
            steps.up_sum[t, k] = _moved(ranked, lift, t, edits, source, 2 * ties.start[up], 1)
        if down != NONE:
            steps.down_sum[t, k] = _moved(ranked, lift, t, edits, source, 2 * ties.end[down] + 2, 1)
