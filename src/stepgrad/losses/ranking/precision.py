"""Average precision and reciprocal rank: what changes when one document of a ranked list moves.

AP rises strictly whenever a relevant document passes one that is not, and documents of equal kind change nothing by trading
places. So the nearest step of a document is the nearest document of the other kind, and a group of equal scores that holds
one is passed as a whole. The reciprocal rank feels the first relevant document, at f, and at times the second.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepgrad.losses.ranking.linear import Moves
from stepgrad.losses.ranking.lists import NONE, Floats, Ints, Lists


@dataclass(frozen=True)
class AveragePrecision:
    """Mean over the relevant documents of the precision at their rank."""

    lists: Lists

    @cached_property
    def hit(self) -> np.ndarray:
        return self.lists.relevance > 0.0

    @cached_property
    def found(self) -> Floats:
        """Relevant documents of the list up to and including each position."""
        total = np.cumsum(self.hit) * 1.0
        before_list = np.concatenate([[0.0], total])[self.lists.first]
        return total - before_list

    @cached_property
    def relevant(self) -> Floats:
        return self.lists.sums(self.hit * 1.0)

    @property
    def defined(self) -> np.ndarray:
        return self.relevant > 0.0

    @property
    def value(self) -> Floats:
        return self.lists.sums(self.hit * self.found / (self.lists.rank + 1.0)) / np.maximum(self.relevant, 1.0)

    def nearest(self) -> Moves:
        """The nearest steps of every document."""
        up, down = other_kind_above(self.hit, self.lists), other_kind_below(self.hit, self.lists)
        here = np.arange(len(up))
        rising = self._risen(np.where(up == NONE, here, self.lists.group_first[up]), here)
        sinking = self._sunk(np.where(down == NONE, here, self.lists.group_last[down]), here)
        share = 1.0 / np.maximum(self.relevant, 1.0)[self.lists.query]
        return Moves(up, np.where(up == NONE, 0.0, rising * share), down, np.where(down == NONE, 0.0, sinking * share))

    def moved(self, target: Ints) -> Floats:
        """The change of AP if a document alone moves to the target position."""
        here = np.arange(len(target))
        if np.all(target <= here):  # the radius estimator moves all documents the same way
            change = self._risen(target, here)
        elif np.all(target >= here):
            change = self._sunk(target, here)
        else:
            change = np.where(target < here, self._risen(target, here), self._sunk(target, here))
        change[self._only_own_kind(target, here)] = 0.0  # but for rounding
        return change / np.maximum(self.relevant, 1.0)[self.lists.query]

    def _only_own_kind(self, target: Ints, here: Ints) -> np.ndarray:
        """Whether all documents passed are relevant like the one that moves, or like it are not."""
        before = self.found - self.hit  # relevant documents above
        hits = np.where(target < here, before[here] - before[target], self.found[target] - self.found[here])
        return np.where(self.hit, hits == np.abs(target - here), hits == 0.0)

    def _risen(self, target: Ints, here: Ints) -> Floats:
        """Those passed sink by one place, and have one relevant document more above them if it is one that rises."""
        rank = self.lists.rank + 1.0
        found = self.found
        hit = self.hit
        by_other = self.lists.before(hit * -found / (rank * (rank + 1.0)))
        by_hit = self.lists.before(hit * (rank - found) / (rank * (rank + 1.0)))
        own = (found[target] + 1.0 - hit[target]) / rank[target] - found / rank
        return np.where(hit, by_hit[here] - by_hit[target] + own, by_other[here] - by_other[target])

    def _sunk(self, target: Ints, here: Ints) -> Floats:
        """Those passed rise by one place, and have one relevant document less above them if it is one that sinks."""
        rank = self.lists.rank + 1.0
        found = self.found
        hit = self.hit
        above = np.maximum(rank - 1.0, 1.0)  # the first of a list is never passed from above
        by_other = self.lists.before(hit * found / (rank * above))
        by_hit = self.lists.before(hit * (found - rank) / (rank * above))
        own = found[target] / rank[target] - found / rank
        return np.where(hit, by_hit[target + 1] - by_hit[here + 1] + own, by_other[target + 1] - by_other[here + 1])


def other_kind_above(hit: np.ndarray, lists: Lists) -> Ints:
    """The nearest position above, in the same list, of a document of the other kind; NONE if there is none."""
    position = np.arange(len(hit))
    fresh = np.ones(len(hit), dtype=bool)
    fresh[1:] = (hit[1:] != hit[:-1]) | (lists.query[1:] != lists.query[:-1])
    found = np.maximum.accumulate(np.where(fresh, position, 0)) - 1
    return np.where(found >= lists.first, found, NONE)


def other_kind_below(hit: np.ndarray, lists: Lists) -> Ints:
    """The nearest position below, in the same list, of a document of the other kind; NONE if there is none."""
    position = np.arange(len(hit))
    stale = np.ones(len(hit), dtype=bool)
    stale[:-1] = (hit[1:] != hit[:-1]) | (lists.query[1:] != lists.query[:-1])
    found = np.minimum.accumulate(np.where(stale, position, len(hit))[::-1])[::-1] + 1
    return np.where(found <= lists.last(), found, NONE)


@dataclass(frozen=True)
class ReciprocalRank:
    """1 / rank of the first relevant document."""

    lists: Lists

    @cached_property
    def hit(self) -> np.ndarray:
        return self.lists.relevance > 0.0

    @cached_property
    def _leading(self) -> tuple[Ints, Ints]:
        """By query: position of the first and of the second relevant document; beyond all lists where there is none."""
        at, queries = np.flatnonzero(self.hit), len(self.lists.size)
        beyond = np.full(queries + 1, 2 * len(self.hit) + 2)
        firsts, seconds = beyond[:-1].copy(), beyond[:-1].copy()
        query = self.lists.query[at]
        is_first = np.ones(len(at), dtype=bool)
        is_first[1:] = query[1:] != query[:-1]
        firsts[query[is_first]] = at[is_first]
        is_second = np.zeros(len(at), dtype=bool)
        is_second[1:] = is_first[:-1] & ~is_first[1:]
        seconds[query[is_second]] = at[is_second]
        return firsts, seconds

    @property
    def defined(self) -> np.ndarray:
        return self._leading[0] < len(self.hit)

    @property
    def value(self) -> Floats:
        start = np.cumsum(self.lists.size) - self.lists.size
        return np.where(self.defined, 1.0 / (self._leading[0] - start + 1.0), 0.0)

    def moved(self, target: Ints) -> Floats:
        """The change if a document alone moves to the target position."""
        lists, here = self.lists, np.arange(len(target))
        first, second = (position[lists.query] for position in self._leading)
        others = np.where(here == first, second, first)
        others = others - (here < others)  # as it stands once the document is taken out
        after = np.where(self.hit, np.minimum(target, others), others + (target <= others))
        change = 1.0 / (after - lists.first + 1.0) - self.value[lists.query]
        return np.where((after == first) | ~self.defined[lists.query], 0.0, change)

    def nearest(self) -> Moves:
        """The nearest steps of every document."""
        lists = self.lists
        here = np.arange(len(self.hit))
        hit = self.hit
        first, second = (np.minimum(position, len(here) - 1)[lists.query] for position in self._leading)
        some = self.defined[lists.query]
        tied_ahead = lists.group_first[first] < first  # others of its score, ranked before the first relevant one
        passed = np.where(tied_ahead, first, first - 1)  # what a relevant document passes to come first
        rises = some & np.where(hit, first > lists.first, here > first)
        up = np.where(rises, np.where(hit, passed, first), NONE)
        alone = (second != here + 1) | (self._leading[1] > len(here))[lists.query]
        sinks = some & np.where(hit, (here == first) & (here < lists.last()) & alone, here < first)
        down = np.where(sinks, np.where(hit, here + 1, first), NONE)
        rising = self.moved(np.where(up == NONE, here, lists.group_first[up]))
        sinking = self.moved(np.where(down == NONE, here, lists.group_last[down]))
        return Moves(up, rising, down, sinking)
