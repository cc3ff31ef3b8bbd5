"""Many queries' documents as ranked lists, one list behind the other in flat arrays, so that no loop over queries is needed.

A *position* counts documents over all lists. Documents are ranked by decreasing score; of equal scores the document that
comes first in the input wins. Equal scores of one query form a *group*: a document that moves passes it as a whole.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
NONE = -1


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
    if queries > 1:
        return np.lexsort((-scores, query))
    order = np.argsort(-scores)  # several times faster than a stable sort; ties are put right behind it
    ordered = scores[order]
    equal = ordered[1:] == ordered[:-1]
    if equal.any():
        _lower_index_first(order, equal)
    return order


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
    if len(lists.size) > 1:
        low, high = lists.first, lists.first + lists.size[lists.query]
    else:
        low, high = _between_equals(lists.score, scores)
    ahead = _bisect(lists, scores, low, high)
    return ahead - (lists.score > scores)  # the document itself is not in its own way


def _between_equals(ordered: Floats, scores: Floats) -> tuple[Ints, Ints]:
    """How many of the scores are higher, and how many are at least as high."""
    low = np.searchsorted(-ordered, -scores, "left")
    high = np.minimum(low + 1, len(ordered))
    equal = (low < len(ordered)) & (ordered[np.minimum(low, len(ordered) - 1)] == scores)
    high[~equal] = low[~equal]
    high[equal] = np.searchsorted(-ordered, -scores[equal], "right")
    return low, high


def _bisect(lists: Lists, scores: Floats, low: Ints, high: Ints) -> Ints:
    """First place in low..high whose document does not come before (score, own index); all lists at once."""
    found = low.copy()
    open_ = np.flatnonzero(low < high)
    low, high = low[open_], high[open_]
    while len(open_):
        middle = (low + high) // 2
        other, own = lists.score[middle], scores[open_]
        before = (other > own) | ((other == own) & (lists.document[middle] < lists.document[open_]))
        low, high = np.where(before, middle + 1, low), np.where(before, high, middle)
        found[open_] = low
        left = low < high
        open_, low, high = open_[left], low[left], high[left]
    return found
