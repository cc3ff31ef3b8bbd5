"""Interpolated precision of ranked lists after one document has moved, from chains of records.

With r_k the rank of the k-th of T relevant documents and p_k = max over l >= k of l / r_l, the sum to follow is p_1 + ... + p_T.
Read from the end of the list, p is the record so far of the precisions l / r_l. A document that moves leaves the relevant
documents outside the stretch it passes as they are; those inside become number k + a at rank r_k + c, with one (a, c) for all
of them. So for each of the five shifts every k points to the nearest earlier one of a larger precision, the next record of
a walk to the top, and holds the sum of that walk. A second pointer skips ahead by skew-binary numbers (Myers 1983), which
finds any place on a walk in logarithmic time with memory linear in T.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepgrad.kernels.exact_sum import add, add_multiple, add_pair
from stepgrad.kernels.jit import by_reference, inlined, keep_alive, kernel
from stepgrad.kernels.rank_steps import NONE

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

# Rows of the tables: what happens to the relevant documents that are passed, and (a, c).
_STAY, _OTHER_RISES, _RELEVANT_RISES, _OTHER_SINKS, _RELEVANT_SINKS = range(5)
_SHIFTS = ((0, 0), (0, 1), (1, 1), (0, -1), (-1, -1))


class Marks(NamedTuple):
    """Where the relevant documents of all lists stand."""

    start: Ints  # (Q + 1,) position at which each list begins, and the end
    at: Ints  # positions of the relevant documents
    above: Ints  # (n + 1,) relevant documents, of all lists, at earlier positions


class Records(NamedTuple):
    """Of one list. Relevant documents are numbered from 1; column 0 ends every walk."""

    precision: NDArray[np.float64]  # (5, T + 1) after the shift
    larger: NDArray[np.int32]  # (5, T + 1) nearest earlier one of a larger precision
    skip: NDArray[np.int32]  # (5, T + 1) one further along the walk
    depth: NDArray[np.int32]  # (5, T + 1) length of the walk
    high: NDArray[np.float64]  # (5, T + 1) sum of the records on the walk, each as often as it stands, as an exact pair
    low: NDArray[np.float64]
    best: NDArray[np.float64]  # (T + 2,) p_k of the list as it stands
    tail_high: NDArray[np.float64]  # (T + 2,) p_k + ... + p_T
    tail_low: NDArray[np.float64]


@kernel
def _room(marks: Marks) -> Records:
    """Records for the list with the most relevant documents; all lists use it in turn."""
    most = 0
    for q in range(len(marks.start) - 1):
        most = max(most, marks.above[marks.start[q + 1]] - marks.above[marks.start[q]])
    table = (len(_SHIFTS), most + 1)
    return Records(
        np.empty(table),
        np.empty(table, dtype=np.int32),
        np.empty(table, dtype=np.int32),
        np.empty(table, dtype=np.int32),
        np.empty(table),
        np.empty(table),
        np.empty(most + 2),
        np.empty(most + 2),
        np.empty(most + 2),
    )


@kernel
def _fill_tail(records: Records, ranks: Ints, start: int) -> None:
    """p_k and its sums to the end; `ranks` are the positions of the list's relevant documents, from `start` on."""
    T = len(ranks)
    largest = hi = lo = 0.0
    records.best[T + 1] = largest
    records.tail_high[T + 1] = hi
    records.tail_low[T + 1] = lo
    for k in range(T, 0, -1):
        largest = max(largest, k / (ranks[k - 1] - start + 1))
        hi, lo = add(hi, lo, largest)
        records.best[k] = largest
        records.tail_high[k] = hi
        records.tail_low[k] = lo


@kernel
def _fill_walks(records: Records, row: int, ranks: Ints, start: int) -> None:
    precision = records.precision[row]
    larger = records.larger[row]
    skip = records.skip[row]
    depth = records.depth[row]
    high, low = records.high[row], records.low[row]
    a, c = _SHIFTS[row]
    precision[0] = np.inf
    larger[0] = 0
    skip[0] = 0
    depth[0] = 0
    high[0] = 0.0
    low[0] = 0.0
    for k in range(1, len(ranks) + 1):
        rank = ranks[k - 1] - start + 1 + c
        precision[k] = (k + a) / rank if rank > 0 else 0.0  # the first of a list is never passed from above
        above = k - 1
        while precision[above] <= precision[k]:
            above = larger[above]
        larger[k], depth[k] = above, depth[above] + 1
        far = skip[above]
        even = depth[above] - depth[far] == depth[far] - depth[skip[far]]
        skip[k] = skip[far] if even else above
        high[k], low[k] = add_multiple(high[above], low[above], k - above, precision[k])


@inlined
def _next_record(records: Records, row: int, k: int, largest: float) -> int:
    """The nearest of k, k - 1, ... whose precision is larger."""
    while records.precision[row, k] <= largest:
        far = records.skip[row, k]
        k = far if records.precision[row, far] <= largest else records.larger[row, k]
    return k


@inlined
def _last_record(records: Records, row: int, k: int, first: int) -> int:
    """The end of the walk from k that stays at or behind `first`."""
    while records.larger[row, k] >= first:
        far = records.skip[row, k]
        k = far if far >= first else records.larger[row, k]
    return k


@inlined
def _add_stretch(
    records: Records, row: int, first: int, last: int, hi: float, lo: float, largest: float
) -> tuple[float, float, float]:
    """Add the shifted documents last, last - 1, ..., first to a sum whose record so far is `largest`."""
    if first > last:
        return hi, lo, largest
    top = _next_record(records, row, last, largest)
    if top < first:
        hi, lo = add_multiple(hi, lo, last - first + 1, largest)
        return hi, lo, largest
    hi, lo = add_multiple(hi, lo, last - top, largest)
    end = _last_record(records, row, top, first)
    hi, lo = add_pair(hi, lo, records.high[row, top], records.low[row, top])
    hi, lo = add_pair(hi, lo, -records.high[row, end], -records.low[row, end])
    hi, lo = add_multiple(hi, lo, end - first + 1, records.precision[row, end])
    return hi, lo, records.precision[row, end]


@inlined
def _add_head(records: Records, last: int, hi: float, lo: float, largest: float) -> tuple[float, float]:
    """Add the documents last, last - 1, ..., 1 as they stand."""
    top = _next_record(records, _STAY, last, largest)
    hi, lo = add_multiple(hi, lo, last - top, largest)
    return add_pair(hi, lo, records.high[_STAY, top], records.low[_STAY, top])


@kernel
def _risen(records: Records, above: int, target: int, relevant: int, rank: int) -> tuple[float, float]:
    """The sum after a document with `above` relevant ones above it rises to where it has `target`, at `rank`."""
    tail = above + 1 + relevant
    hi = records.tail_high[tail]
    lo = records.tail_low[tail]
    largest = records.best[tail]
    row = _RELEVANT_RISES if relevant else _OTHER_RISES
    hi, lo, largest = _add_stretch(records, row, target + 1, above, hi, lo, largest)
    if relevant:
        largest = max(largest, (target + 1) / rank)
        hi, lo = add(hi, lo, largest)
    return _add_head(records, target, hi, lo, largest)


@kernel
def _sunk(records: Records, above: int, target: int, relevant: int, rank: int) -> tuple[float, float]:
    """The sum after a document sinks to where `target` relevant ones, itself included, are not below it, at `rank`."""
    hi = records.tail_high[target + 1]
    lo = records.tail_low[target + 1]
    largest = records.best[target + 1]
    if relevant:
        largest = max(largest, target / rank)
        hi, lo = add(hi, lo, largest)
    row = _RELEVANT_SINKS if relevant else _OTHER_SINKS
    hi, lo, largest = _add_stretch(records, row, above + 1 + relevant, target, hi, lo, largest)
    return _add_head(records, above, hi, lo, largest)


@kernel
def _changes_of_list(
    records: Records, above: Ints, relevant_before: int, start: int, end: int, target: Ints, change: Floats
) -> None:
    """`found` relevant documents come before the list."""
    present_high, present_low = records.tail_high[1], records.tail_low[1]
    seen_from = NONE  # other documents that pass the same relevant ones share an answer
    seen_to = NONE
    seen = 0.0
    for p in range(start, end):
        t = target[p]
        relevant = above[p + 1] - above[p]
        u = above[p] - relevant_before
        v = above[t + (t > p)] - relevant_before
        if t == p or (not relevant and u == v):
            continue
        if not relevant and u == seen_from and v == seen_to:
            change[p] = seen
            continue
        if t < p:
            hi, lo = _risen(records, u, v, relevant, t - start + 1)
        else:
            hi, lo = _sunk(records, u, v, relevant, t - start + 1)
        change[p] = (hi - present_high) + (lo - present_low)
        if not relevant:
            seen_from = u
            seen_to = v
            seen = change[p]


@kernel
def _ways(target: Ints) -> tuple[bool, bool]:
    """Whether any document rises, and whether any sinks: mostly all go one way, and half of the tables are enough."""
    rises = sinks = False
    for p in range(len(target)):
        rises |= target[p] < p
        sinks |= target[p] > p
    return rises, sinks


@kernel
def changes(marks: Marks, target: Ints) -> Floats:
    """By position, how the sum of its list changes if that document alone moves to the target position."""
    change = np.zeros(len(target))
    room = _room(marks)
    records = by_reference(room)
    rises, sinks = _ways(target)
    for q in range(len(marks.start) - 1):
        start, end = marks.start[q], marks.start[q + 1]
        relevant_before = marks.above[start]
        ranks = marks.at[relevant_before : marks.above[end]]
        if len(ranks):
            _fill_tail(records, ranks, start)
            _fill_walks(records, _STAY, ranks, start)
            for row in range(_OTHER_RISES if rises else _OTHER_SINKS, len(_SHIFTS) if sinks else _OTHER_SINKS):
                _fill_walks(records, row, ranks, start)
            _changes_of_list(records, marks.above, relevant_before, start, end, target, change)
    keep_alive(room)
    return change


@kernel
def sums(marks: Marks) -> Floats:
    """p_1 + ... + p_T of every list."""
    by_list = np.zeros(len(marks.start) - 1)
    records = _room(marks)
    for q in range(len(by_list)):
        start, end = marks.start[q], marks.start[q + 1]
        _fill_tail(records, marks.at[marks.above[start] : marks.above[end]], start)
        by_list[q] = records.tail_high[1]
    return by_list


@kernel
def _passed_above(best: Floats, start: int, end: int, above: Ints, T: int, up: Ints) -> None:
    """Others step at the nearest strict record above, relevant ones where their precision would be a record."""
    u = 0
    record = NONE
    gain = NONE
    for p in range(start, end):
        rank = p - start + 1
        if above[p + 1] > above[p]:
            u += 1
            up[p] = gain
            if u / rank > best[u + 1]:
                record = p
        else:
            up[p] = record
            if u < T and (u + 1) / rank > best[u + 1]:
                gain = p


@kernel
def _passed_below(best: Floats, start: int, end: int, above: Ints, T: int, down: Ints) -> None:
    """Others step where they lift a relevant one to a record, relevant ones just behind the nearest strict record."""
    k = T
    lifted = NONE
    behind = NONE
    for p in range(end - 1, start - 1, -1):
        rank = p - start + 1
        if above[p + 1] > above[p]:
            if k / rank > best[k + 1]:
                behind = p + 1 if p + 1 < end else NONE
            down[p] = behind
            if rank > k and k / (rank - 1) > best[k]:
                lifted = p
            k -= 1
        else:
            down[p] = lifted


@kernel
def nearest_passed(marks: Marks) -> tuple[Ints, Ints]:
    """By position, the position above and the one below whose passing is the nearest step; NONE if there is none."""
    n = len(marks.above) - 1
    up, down = np.full(n, NONE), np.full(n, NONE)
    records = _room(marks)
    for q in range(len(marks.start) - 1):
        start, end = marks.start[q], marks.start[q + 1]
        ranks = marks.at[marks.above[start] : marks.above[end]]
        if len(ranks):
            _fill_tail(records, ranks, start)
            _passed_above(records.best, start, end, marks.above, len(ranks), up)
            _passed_below(records.best, start, end, marks.above, len(ranks), down)
    return up, down
