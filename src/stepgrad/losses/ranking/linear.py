"""Metrics that are sums of gain x discount(rank): NDCG, precision and recall at k, AUC and Spearman's rho.

With d the discount and w_q = d_q - d_(q+1) >= 0, a document of gain g that rises past positions t..p-1 changes the sum by
sum_q (g - g_q) w_q, and one that sinks past p+1..t changes it by sum_q (g_q - g) w_(q-1). So a group of equal scores changes
nothing exactly if it has no weight, or if its weighted mean gain is g. The nearest step is the nearest weighted group of
another mean gain, and as nothing changed on the way there, the change is that group's alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepgrad.losses.ranking.lists import NONE, Floats, Ints, Lists
from stepgrad.losses.ranking.metrics import discount_of, gain_of

_EPS = float(np.finfo(np.float64).eps)


class Moves(NamedTuple):
    """By position: a position in the group whose passing is the nearest step (NONE: no step), and the change of the metric."""

    up: Ints
    up_change: Floats
    down: Ints
    down_change: Floats


@dataclass(frozen=True)
class Linear:
    """metric = offset + scale * sum of gain * discount, for every query; `defined` where it has a meaning."""

    lists: Lists
    gain: Floats  # by position
    discount: Floats  # by position
    scale: Floats  # (Q,)
    offset: Floats  # (Q,)
    defined: np.ndarray  # (Q,) bool
    exact: bool  # whether gains and discounts are integers, whose sums have no rounding

    @property
    def value(self) -> Floats:
        return self.offset + self.scale * self.lists.sums(self.gain * self.discount)

    def nearest(self) -> Moves:
        """The nearest steps of every document."""
        drop = self._drop()
        up, up_change = _nearest_above(_Side.rising(self, drop))
        down, down_change = _nearest_above(_Side.sinking(self, drop))
        scale = self.scale[self.lists.query]
        down = np.where(down == NONE, NONE, len(down) - 1 - down)[::-1]
        return Moves(up, up_change * scale, down, -down_change[::-1] * scale)

    def moved(self, target: Ints) -> Floats:
        """The change of the metric if a document alone moves to the target position."""
        lists = self.lists
        position = np.arange(len(target))
        drop = self._drop()
        above = lists.before(self.gain * drop)
        below = lists.before(self.gain * _shifted(drop))
        level = self.gain * (self.discount[target] - self.discount)
        passed = np.where(target <= position, above[target] - above[position], below[target + 1] - below[position + 1])
        change = level + passed
        if not self.exact:
            change[np.abs(change) <= self._rounding(above)] = 0.0
        return change * self.scale[lists.query]

    def _drop(self) -> Floats:
        """What a document loses by sinking one place, per unit of gain; 0 at the end of a list."""
        drop = np.zeros(len(self.discount))
        drop[:-1] = self.discount[:-1] - self.discount[1:]
        drop[self.lists.last()] = 0.0
        return drop

    def _rounding(self, before: Floats) -> float:
        """A bound on the rounding of differences of prefix sums and of gain * discount."""
        largest = max(float(before[-1]), float(np.max(self.gain, initial=0.0)))
        return 8.0 * _EPS * largest


class _Side(NamedTuple):
    """One direction: arrays in which the documents to be passed come first."""

    gain: Floats
    weight: Floats  # of passing a position
    query: Ints
    group_first: Ints
    tied: bool
    exact: bool

    @classmethod
    def rising(cls, metric: Linear, drop: Floats) -> _Side:
        lists = metric.lists
        return cls(metric.gain, drop, lists.query, lists.group_first, lists.tied, metric.exact)

    @classmethod
    def sinking(cls, metric: Linear, drop: Floats) -> _Side:
        lists = metric.lists
        weight, last = _shifted(drop)[::-1], lists.group_last[::-1]
        gain, query = np.ascontiguousarray(metric.gain[::-1]), np.ascontiguousarray(lists.query[::-1])
        return cls(gain, np.ascontiguousarray(weight), query, len(last) - 1 - last, lists.tied, metric.exact)


class _Groups(NamedTuple):
    """The groups that have weight, in order."""

    start: Ints
    mean: Floats  # weighted mean gain
    noise: Floats  # bound on its rounding
    weight: Floats
    query: Ints
    ahead: Ints  # by position: how many of these groups come before the position's own group


def _shifted(drop: Floats) -> Floats:
    return np.concatenate([[0.0], drop[:-1]]) if len(drop) else drop


def _nearest_above(side: _Side) -> tuple[Ints, Floats]:
    """For every position the nearest group above whose passing changes the sum, and the change."""
    n = len(side.gain)
    groups = _tied_groups(side) if side.tied else _single_groups(side)
    if len(groups.start) == 0:
        return np.full(n, NONE), np.zeros(n)
    at = groups.ahead - 1
    equal = np.abs(groups.mean[at] - side.gain) <= groups.noise[at]  # at -1 is another list's group: weeded out below
    at = np.where(equal & (at >= 0), _previous_other(groups)[at], at)
    exists = (at >= 0) & (groups.query[at] == side.query)
    position = np.where(exists, groups.start[at], NONE)
    change = np.where(exists, (side.gain - groups.mean[at]) * groups.weight[at], 0.0)
    if side.tied:
        _put_steps_within_groups(side, position, change)
    return position, change


def _previous_other(groups: _Groups) -> Ints:
    """For every group the nearest one above of another mean (or of another list); NONE if there is none."""
    index = np.arange(len(groups.mean))
    noise = np.maximum(groups.noise[1:], groups.noise[:-1])
    fresh = np.ones(len(index), dtype=bool)
    fresh[1:] = (np.abs(np.diff(groups.mean)) > noise) | (groups.query[1:] != groups.query[:-1])
    return np.maximum.accumulate(np.where(fresh, index, 0)) - 1


def _single_groups(side: _Side) -> _Groups:
    weighted = side.weight > 0.0
    ahead: Ints = np.cumsum(weighted) - weighted
    chosen, start = _where(weighted)
    return _Groups(start, side.gain[chosen], np.zeros(len(start)), side.weight[chosen], side.query[chosen], ahead)


def _where(flags: NDArray[np.bool_]) -> tuple[Ints | slice, Ints]:
    """The true places, as a slice if they are neighbours (as in a single list; a view costs nothing), and their numbers."""
    places = np.flatnonzero(flags)
    neighbours = len(places) > 0 and places[-1] - places[0] + 1 == len(places)
    return slice(int(places[0]), int(places[-1]) + 1) if neighbours else places, places


def _tied_groups(side: _Side) -> _Groups:
    starts = side.group_first == np.arange(len(side.gain))
    start = np.flatnonzero(starts)
    weight = np.add.reduceat(side.weight, start)
    mean, noise = side.gain[start], np.zeros(len(start))
    mixed = np.flatnonzero(np.minimum.reduceat(side.gain, start) < np.maximum.reduceat(side.gain, start))
    if len(mixed):
        total = np.add.reduceat(side.gain * side.weight, start)[mixed]
        mean[mixed] = total / np.where(weight[mixed] > 0.0, weight[mixed], 1.0)
        noise[mixed] = 0.0 if side.exact else 16.0 * _EPS * mean[mixed]
    weighted = weight > 0.0
    ahead: Ints = (np.cumsum(weighted) - weighted)[np.cumsum(starts) - 1]
    chosen, _ = _where(weighted)
    return _Groups(start[chosen], mean[chosen], noise[chosen], weight[chosen], side.query[start[chosen]], ahead)


def _put_steps_within_groups(side: _Side, position: Ints, change: Floats) -> None:
    """Where passing the documents of equal score that are ahead changes something, that is the nearest step."""
    here = np.flatnonzero(side.group_first < np.arange(len(side.gain)))
    start = side.group_first[here]
    before = np.concatenate([[0.0], np.cumsum(side.gain * side.weight)])
    weight = np.concatenate([[0.0], np.cumsum(side.weight)])
    rise = side.gain[here] * (weight[here] - weight[start]) - (before[here] - before[start])
    noise = 0.0 if side.exact else 8.0 * _EPS * max(float(before[-1]), float(side.gain.max() * weight[-1]))
    steps = np.abs(rise) > noise
    position[here[steps]] = here[steps]
    change[here[steps]] = rise[steps]


def ndcg_metric(lists: Lists, k: int | None, gains: str) -> Linear:
    """NDCG of the first k documents."""
    gain, rank = gain_of(lists.relevance, gains), lists.rank + 1
    discount = discount_of(rank, k)
    ideal = lists.sums(_best_first(gain, lists) * discount)
    defined = ideal > 0.0
    zero = np.zeros(len(ideal))
    scale = np.where(defined, 1.0 / np.where(defined, ideal, 1.0), 0.0)
    return Linear(lists, gain, discount, scale, zero, defined, exact=False)


def _best_first(gain: Floats, lists: Lists) -> Floats:
    """Every list's gains in decreasing order."""
    if len(lists.size) == 1:
        return -np.sort(-gain)
    return gain[np.lexsort((-gain, lists.query))]


def precision_metric(lists: Lists, k: int) -> Linear:
    """Relevant documents among the first k, over k."""
    gain, relevant = _relevant(lists)
    zero = np.zeros(len(relevant))
    return Linear(lists, gain, _first(lists, k), zero + 1.0 / k, zero, relevant > 0, exact=True)


def recall_metric(lists: Lists, k: int) -> Linear:
    """Relevant documents among the first k, over all relevant ones."""
    gain, relevant = _relevant(lists)
    return Linear(
        lists, gain, _first(lists, k), 1.0 / np.maximum(relevant, 1.0), 0.0 * relevant, relevant > 0, exact=True
    )


def auc_metric(lists: Lists) -> Linear:
    """Share of pairs of a relevant and another document in the right order."""
    gain, relevant = _relevant(lists)
    pairs = relevant * (lists.size - relevant)
    scale = 1.0 / np.maximum(pairs, 1.0)
    offset = -0.5 * relevant * (relevant - 1.0) * scale
    return Linear(lists, gain, _documents_below(lists), scale, offset, pairs > 0, exact=True)


def spearman_metric(lists: Lists) -> Linear:
    """The correlation of the scores' ranks with the relevances' middle ranks."""
    gain = _twice_middle_rank(lists)
    n = lists.size.astype(np.float64)
    centre = (n - 1.0) / 2.0
    square = lists.sums((gain / 2.0 - centre[lists.query]) ** 2) * n * (n * n - 1.0) / 12.0
    scale = 1.0 / np.sqrt(np.where(square > 0.0, square, 1.0))
    return Linear(
        lists, gain, _documents_below(lists), scale / 2.0, -n * centre * centre * scale, square > 0.0, exact=True
    )


def _first(lists: Lists, k: int) -> Floats:
    return (lists.rank < k).astype(np.float64)


def _relevant(lists: Lists) -> tuple[Floats, Floats]:
    """1 for relevant documents, by position, and how many each query has."""
    gain = (lists.relevance > 0.0).astype(np.float64)
    return gain, lists.sums(gain)


def _documents_below(lists: Lists) -> Floats:
    return (lists.last() - np.arange(len(lists.rank))).astype(np.float64)


def _twice_middle_rank(lists: Lists) -> Floats:
    """Documents of lower relevance twice, plus the others of equal relevance once."""
    if len(lists.size) == 1:
        order = np.argsort(lists.relevance)
    else:
        order = np.lexsort((lists.relevance, lists.query))
    ordered, query = lists.relevance[order], lists.query[order]
    fresh = np.ones(len(order), dtype=bool)
    fresh[1:] = (ordered[1:] != ordered[:-1]) | (query[1:] != query[:-1])
    group = np.cumsum(fresh) - 1
    start = np.flatnonzero(fresh)
    end = np.append(start[1:], len(order))
    twice = np.empty(len(order))
    twice[order] = (start + end - 1)[group] - 2 * lists.first[order]
    return twice
