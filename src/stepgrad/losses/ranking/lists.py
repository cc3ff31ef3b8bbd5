"""Many queries' documents as ranked lists, one list behind the other in flat arrays, so that no loop over queries is needed.

A *position* counts documents over all lists. Documents are ranked by decreasing score; of equal scores the document that
comes first in the input wins. Equal scores of one query form a *group*: a document that moves passes it as a whole.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

NONE = -1  # no document
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Lists(NamedTuple):
    """All arrays by position, but for those by query (Q,)."""

    document: Ints  # which document of the input
    score: Floats
    relevance: Floats
    query: Ints
    first: Ints  # position at which the query's list begins
    rank: Ints  # within the query, from 0
    group_first: Ints  # first and last position of the group of equal scores
    group_last: Ints
    tied: bool  # whether any group has two documents
    size: Ints  # (Q,) documents of each query

    def sums(self, values: Floats) -> Floats:
        """Sums by query, (Q,)."""
        sums: Floats = np.bincount(self.query, weights=values, minlength=len(self.size)).astype(np.float64, copy=False)
        return sums

    def before(self, values: Floats) -> Floats:
        """(n + 1,) sums over all earlier positions: differences within a list are sums over its stretches."""
        return np.concatenate([[0.0], np.cumsum(values)])

    def last(self) -> Ints:
        """The last position of each position's list."""
        return self.first + self.size[self.query] - 1


def rank_lists(scores: NDArray[np.floating], relevance: Floats, query: Ints, queries: int) -> Lists:
    """Sort the documents (n,) of `queries` queries, numbered from 0; the documents of a query need not be neighbours."""
    order = _ranking(scores, query, queries)
    size = np.bincount(query, minlength=queries)
    start = np.cumsum(size) - size
    by_position = query[order] if queries > 1 else query
    score = scores[order].astype(np.float64)
    position = np.arange(len(order))
    first = start[by_position] if queries > 1 else np.zeros_like(position)
    group_first, group_last, tied = _groups(score, by_position, position)
    rank = position - first
    return Lists(order, score, relevance[order], by_position, first, rank, group_first, group_last, tied, size)


def _ranking(scores: NDArray[np.floating], query: Ints, queries: int) -> Ints:
    """By query, then by decreasing score, then by index."""
    order = np.argsort(-scores)  # several times faster than a stable sort; ties are put right behind it
    ordered = scores[order]
    equal = ordered[1:] == ordered[:-1]
    if equal.any():
        _lower_index_first(order, equal)
    if queries == 1:
        return order
    number = query[order].astype(np.uint16 if queries <= 2**16 else np.int64)  # NumPy sorts 16 bits in linear time
    return order[np.argsort(number, kind="stable")]


def _lower_index_first(order: Ints, equal: NDArray[np.bool_]) -> None:
    """Sort the documents of each group of equal scores by index, in place; `equal` compares neighbours."""
    tied = np.zeros(len(order), dtype=bool)
    tied[1:] = equal
    tied[:-1] |= equal
    group = np.concatenate([[0], np.cumsum(~equal)])
    order[tied] = order[tied][np.lexsort((order[tied], group[tied]))]


def _groups(score: Floats, query: Ints, position: Ints) -> tuple[Ints, Ints, bool]:
    same = (score[1:] == score[:-1]) & (query[1:] == query[:-1])
    if not same.any():
        return position, position, False
    starts = np.concatenate([[True], ~same])
    first = np.maximum.accumulate(np.where(starts, position, 0))
    ends = np.concatenate([~same, [True]])
    last = np.minimum.accumulate(np.where(ends, position, len(position))[::-1])[::-1]
    return first, last, True


def target_positions(lists: Lists, scores: Floats) -> Ints:
    """The position each document would take if it alone had that score (by position)."""
    ahead = _bisect(lists, scores, *_among_equals(lists, scores))
    return ahead - (lists.score > scores)  # the document itself is not in its own way


def _among_equals(lists: Lists, scores: Floats) -> tuple[Ints, Ints]:
    """The places behind all higher and before all lower scores of the document's own list."""
    low = np.searchsorted(_sort_key(lists, lists.score), _sort_key(lists, scores), "left")
    there = np.minimum(low, len(scores) - 1)
    equal = (low == there) & (lists.score[there] == scores) & (lists.query[there] == lists.query)
    return low, np.where(equal, lists.group_last[there] + 1, low)


def _sort_key(lists: Lists, scores: Floats) -> NDArray[np.inexact]:
    """Rises along the lists. Complex numbers are sorted by their real parts, then by their imaginary parts."""
    if len(lists.size) == 1:
        return -scores
    key = np.empty(len(scores), dtype=np.complex128)
    key.real, key.imag = lists.query, -scores
    return key


def _bisect(lists: Lists, scores: Floats, low: Ints, high: Ints) -> Ints:
    """First place in low..high whose document does not come before (score, own index); all lists at once."""
    target = low.copy()
    open_ = np.flatnonzero(low < high)
    low, high = low[open_], high[open_]
    while len(open_):
        middle = (low + high) // 2
        other, own = lists.score[middle], scores[open_]
        before = (other > own) | ((other == own) & (lists.document[middle] < lists.document[open_]))
        low, high = np.where(before, middle + 1, low), np.where(before, high, middle)
        target[open_] = low
        left = low < high
        open_ = open_[left]
        low = low[left]
        high = high[left]
    return target
