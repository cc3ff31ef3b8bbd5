"""Interpolated average precision (area under the monotone curve, VOC 2010 and later), by the kernels of detection.

A ranked list of documents is a list of detections of one class: relevant ones are true positives. Queries are taken one
after the other here; everything else in this package treats them at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from stepgrad.gradient.rank_steps import (
    Ties,
    _moved,
    envelope_of,
    false_positive_steps,
    true_positive_steps,
)
from stepgrad.metric.average_precision import Edits, Lift, Ranked, edited_sum, new_edits, new_lift, rank_list
from stepgrad.metric.matching import FALSE_POSITIVE, TRUE_POSITIVE
from stepgrad.ranking.linear import Moves
from stepgrad.ranking.lists import NONE, Floats, Ints, Lists


class _Query(NamedTuple):
    """One list, with what the kernels need."""

    at: slice  # its positions
    ranked: Ranked
    lift: Lift
    edits: Edits
    hit: np.ndarray

    def sum(self) -> float:
        self.edits.size[0] = 0
        return float(edited_sum(self.ranked, self.lift, self.edits)[0])


@dataclass(frozen=True)
class InterpolatedPrecision:
    """Mean over the relevant documents of the best precision at their rank or any later one."""

    lists: Lists

    @cached_property
    def _queries(self) -> list[_Query]:
        return list(self._build())

    def _build(self) -> Iterator[_Query]:
        hit = self.lists.relevance > 0.0
        ends = np.cumsum(self.lists.size)
        for size, end in zip(self.lists.size, ends, strict=True):
            own = hit[end - size : end]
            roles = np.where(own, TRUE_POSITIVE, FALSE_POSITIVE).astype(np.int8)
            levels = np.arange(own.sum() + 1, dtype=np.int64)
            ranked = rank_list(np.arange(size, dtype=np.int32), roles, levels)
            yield _Query(slice(end - size, end), ranked, new_lift(ranked.T), new_edits(4), own)

    @cached_property
    def relevant(self) -> Floats:
        return np.array([q.ranked.T for q in self._queries], dtype=np.float64)

    @property
    def defined(self) -> np.ndarray:
        return self.relevant > 0.0

    @property
    def value(self) -> Floats:
        return np.array([q.sum() for q in self._queries], dtype=np.float64) / np.maximum(self.relevant, 1.0)

    def nearest(self) -> Moves:
        """The nearest steps of every document."""
        n = len(self.lists.score)
        moves = Moves(np.full(n, NONE), np.zeros(n), np.full(n, NONE), np.zeros(n))
        for query in self._queries:
            if query.ranked.T > 0:
                self._nearest_of(query, moves)
        return moves

    def _nearest_of(self, query: _Query, moves: Moves) -> None:
        start, T, present = query.at.start, query.ranked.T, query.sum()
        ties = Ties(
            (self.lists.group_first[query.at] - start).astype(np.int32),
            (self.lists.group_last[query.at] - start).astype(np.int32),
        )
        envelope = envelope_of(query.ranked)
        tools = (query.ranked, query.lift, query.edits, envelope, ties)
        others, hits = false_positive_steps(*tools), true_positive_steps(*tools)
        above = query.ranked.tp_above[:-1]
        for out, change, of_others, of_hits, sum_others, sum_hits in (
            (moves.up, moves.up_change, others.up, hits.up, others.up_sum, hits.up_sum),
            (moves.down, moves.down_change, others.down, hits.down, others.down_sum, hits.down_sum),
        ):
            own = np.minimum(above + 1, T)
            passed = np.where(query.hit, of_hits[own], of_others[above])
            out[query.at] = np.where(passed == NONE, NONE, passed + start)
            beyond = np.where(query.hit, sum_hits[own], sum_others[above])
            change[query.at] = np.where(passed == NONE, 0.0, (beyond - present) / T)

    def moved(self, target: Ints) -> Floats:
        """The change of AP if a document alone moves to the target position."""
        change = np.zeros(len(target))
        for query in self._queries:
            if query.ranked.T:
                change[query.at] = _moved_in(query, target[query.at] - query.at.start)
        return change


def _moved_in(query: _Query, target: Ints) -> Floats:
    """Documents that are not relevant and pass the same relevant ones share an answer, which is worked out once."""
    here, T, present = np.arange(len(target)), query.ranked.T, query.sum()
    gap = np.where(target > here, target + 1, target)  # the place to enter, in the list with the document still in it
    above = query.ranked.tp_above
    relevant = query.hit
    source_key = np.where(relevant, here + 0, above[here] - T - 1)  # negative for others: one key for a whole gap
    target_key = np.where(relevant, gap, above[gap])
    change = np.zeros(len(target))
    idle = (target == here) | (~relevant & (above[here] == above[gap]))
    todo = np.flatnonzero(~idle)
    keys = np.stack([source_key[todo], target_key[todo]], axis=1)
    _, example, of = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    sums = [_sum_after(query, int(d), int(gap[d])) for d in todo[example]]
    change[todo] = (np.array(sums, dtype=np.float64)[of.reshape(-1)] - present) / T
    return change


def _sum_after(query: _Query, document: int, gap: int) -> float:
    return float(_moved(query.ranked, query.lift, query.edits, 2 * document + 1, 2 * gap, int(query.hit[document])))
