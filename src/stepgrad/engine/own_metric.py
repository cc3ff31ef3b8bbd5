"""The slopes of any function of a class's ranked list, through NMS: every list that a moved score brings about is evaluated.

Nothing is known of the function but its value, so nothing can be left out but lists seen before: exact, and slow. The kernels
only say what NMS and matching make of an order of windows.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepgrad.engine.lists import ranked_hits
from stepgrad.engine.matching import OneClass
from stepgrad.engine.nms import suppress
from stepgrad.engine.slopes import mee_at, sde_at

Values = tuple[float, ...]  # one per match threshold
ValueOf = Callable[[NDArray[np.bool_], int], float]
"""The metric of a list: hits by decreasing score, and the number of objects."""


class SlopeMethod(typing.Protocol):
    """How slopes are taken, and how they go through NMS."""

    @property
    def estimator(self) -> str:
        """ "radius", "mee" or "sde"."""

    @property
    def radius(self) -> float:
        """Of the radius estimator, in units of score."""

    @property
    def min_step(self) -> float:
        """The least distance to a step."""

    @property
    def through_nms(self) -> str:
        """ "exact", "paper" or "none"."""


class KnownLists:
    """The values of a class's lists, each evaluated once."""

    def __init__(self, value_of: ValueOf) -> None:
        self._value_of = value_of
        self._known: dict[bytes, float] = {}

    def values(self, one: OneClass) -> Values:
        """The metric at each threshold."""
        return tuple(self._value(hits, one.rules.objects) for hits in ranked_hits(one))

    def _value(self, hits: NDArray[np.bool_], objects: int) -> float:
        # Moving a score seldom makes a list that was not seen before.
        key = hits.tobytes()
        if key not in self._known:
            self._known[key] = self._value_of(hits, objects)
        return self._known[key]


@dataclass(frozen=True)
class _MovedWindow:
    """One class with all windows but one, which stands at a *gap*: that many of the others rank above it."""

    one: OneClass
    fixed_kept: bool
    index: int
    others: NDArray[np.int32]  # indices of windows by decreasing score
    scores: NDArray[np.float64]  # theirs
    known: KnownLists

    def at_score(self, y: float) -> Values:
        """The values with the window's score at y: equal scores rank by index."""
        # Scores fall, so their negatives can be searched; among equal ones the lower index is first.
        low, high = np.searchsorted(-self.scores, -y, "left"), np.searchsorted(-self.scores, -y, "right")
        return self.at_gap(int(low + np.searchsorted(self.others[low:high], self.index)))

    def at_gap(self, gap: int) -> Values:
        """The values with the window at a gap."""
        ranking, neighbours = self.one.ranking, self.one.neighbours
        by_score = np.insert(self.others, gap, self.index)
        moved = suppress(ranking.scores[neighbours.number_of], by_score, neighbours)
        if self.fixed_kept:
            # NMS held fixed: the order changes, what is kept does not.
            moved = moved._replace(kept=ranking.kept, suppressor=ranking.suppressor)
        return self.known.values(self.one._replace(ranking=moved))

    def nearest(self, x: float, t: int, present: float) -> tuple[float, float, float, float]:
        """The nearest steps of list t from score x: where, and the value just beyond, above and below."""
        up = next(self._changes(self._ways_up(x), t, present), (np.inf, present))
        down = next(self._changes(self._ways_down(x), t, present), (-np.inf, present))
        return *up, *down

    def _changes(self, ways: Iterator[tuple[float, int]], t: int, present: float) -> Iterator[tuple[float, float]]:
        for y, gap in ways:
            value = self.at_gap(gap)[t]
            if value != present:
                yield y, value

    def _ways_up(self, x: float) -> Iterator[tuple[float, int]]:
        """(score passed, gap just beyond it), nearest first; equal scores are passed as a whole."""
        for y in sorted(set(self.scores[self.scores >= x].tolist())):
            yield y, int(np.count_nonzero(self.scores > y))

    def _ways_down(self, x: float) -> Iterator[tuple[float, int]]:
        for y in sorted(set(self.scores[self.scores <= x].tolist()), reverse=True):
            yield y, int(np.count_nonzero(self.scores >= y))


def own_slopes(
    one: OneClass, value_of: ValueOf, method: SlopeMethod
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """By index of the windows, the sum over the thresholds of the metric's slopes; and the metric at each of them."""
    known = KnownLists(value_of)
    present = known.values(one)
    slopes = np.zeros(len(one.neighbours.number_of))
    form = sde_at if method.estimator == "sde" else mee_at
    # A function of the user's is asked as a whole for every window: slow, and right for whatever it computes.
    for moved, x in _each_moved(one, method.through_nms, known):
        if method.estimator == "radius":
            raised, lowered = moved.at_score(x + method.radius), moved.at_score(x - method.radius)
            slopes[moved.index] = sum(a - b for a, b in zip(raised, lowered, strict=True)) / (2.0 * method.radius)
        else:
            for t, value in enumerate(present):
                slopes[moved.index] += form(x, value, *moved.nearest(x, t, value), method.min_step)
    return slopes, np.array(present)


def own_steps(one: OneClass, value_of: ValueOf, through_nms: str) -> tuple[float, list[NDArray[np.float64]]]:
    """The metric at the one match threshold and, by window, its nearest steps: up_at, up_value, down_at, down_value."""
    known = KnownLists(value_of)
    (present,) = known.values(one)
    columns = [np.full(len(one.neighbours.number_of), start) for start in (np.inf, present, -np.inf, present)]
    for moved, x in _each_moved(one, through_nms, known):
        for column, found in zip(columns, moved.nearest(x, 0, present), strict=True):
            column[moved.index] = found
    return present, columns


def _each_moved(one: OneClass, through_nms: str, known: KnownLists) -> Iterator[tuple[_MovedWindow, float]]:
    """Every window that may have a slope, ready to be moved, and its score; with "none", NMS is not run again."""
    ranking, by_score = one.ranking, one.by_score
    fixed_kept = through_nms == "none"
    for p, index in enumerate(by_score.tolist()):
        window = ranking.order[p]
        # The threshold is no window of the user's, and a suppressed one cannot matter while NMS is held fixed.
        if window == one.rules.cut or (fixed_kept and ranking.suppressor[window] >= 0):
            continue
        others, scores = np.delete(by_score, p), np.delete(ranking.scores[ranking.order], p)
        yield _MovedWindow(one, fixed_kept, index, others, scores, known), float(ranking.scores[window])
