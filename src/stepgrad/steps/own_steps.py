"""The pseudogradient of any function of a class's ranked list, through NMS: every list a moved score brings about, evaluated.

Nothing is known of the function but its value, so nothing can be left out but what gives the same list: exact, and slow. The
kernels only say what NMS and matching make of an order of windows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stepgrad.kernels.class_view import ClassView, order_and_suppress
from stepgrad.kernels.estimators import mee_at, sde_at
from stepgrad.metric.arrange import Arrangement
from stepgrad.metric.class_values import ranked_hits
from stepgrad.steps.method import Method

Values = tuple[float, ...]  # one per match threshold


@dataclass(frozen=True)
class _MovedWindow:
    """One class with all windows but one, which stands at a *gap*: that many of the others rank above it."""

    arrangement: Arrangement
    view: ClassView
    fixed_kept: bool
    window: int
    others: NDArray[np.int32]  # windows by decreasing score
    scores: NDArray[np.float64]  # theirs
    known: dict[bytes, float] = field(repr=False)  # values of lists, shared by all windows of the class

    def at_score(self, y: float) -> Values:
        """The values with the window's score at y: equal scores rank by index."""
        low, high = np.searchsorted(-self.scores, -y, "left"), np.searchsorted(-self.scores, -y, "right")
        return self.at_gap(int(low + np.searchsorted(self.others[low:high], self.window)))

    def at_gap(self, gap: int) -> Values:
        by_window = np.insert(self.others, gap, self.window)
        column = self.view.scores[self.view.slots.slot_of]
        scores, order, position, kept = order_and_suppress(column, by_window, self.view.slots, self.view.rows)
        moved = self.view._replace(
            scores=scores, order=order, position=position, kept=self.view.kept if self.fixed_kept else kept
        )
        return values_of(self.arrangement, moved, self.known)

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


def values_of(arrangement: Arrangement, view: ClassView, known: dict[bytes, float]) -> Values:
    """The metric at each threshold; `known` holds the values of lists seen before."""
    metric, images = arrangement.metric, arrangement.batch.images - arrangement.cuts
    values = []
    for hits in ranked_hits(view, arrangement.rules):
        key = hits.tobytes()
        if key not in known:
            known[key] = metric.of_list(hits, view.P, images, arrangement.protocol)
        values.append(known[key])
    return tuple(values)


def own_slopes(
    arrangement: Arrangement, view: ClassView, method: Method, fixed_kept: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """By window, the sum over the thresholds of the metric's pseudogradients; and the metric at each of them.

    With `fixed_kept`, NMS is not run again, and suppressed windows have no gradient.
    """
    known: dict[bytes, float] = {}
    present = values_of(arrangement, view, known)
    slopes = np.zeros(len(view.slots.slot_of))
    form = sde_at if method.estimator == "sde" else mee_at
    for moved, x in _each_moved(arrangement, view, fixed_kept, known):
        if method.estimator == "radius":
            raised, lowered = moved.at_score(x + method.radius), moved.at_score(x - method.radius)
            slopes[moved.window] = sum(a - b for a, b in zip(raised, lowered, strict=True)) / (2.0 * method.radius)
        else:
            for t, value in enumerate(present):
                slopes[moved.window] += form(x, value, *moved.nearest(x, t, value), method.min_step)
    return slopes, np.array(present)


def own_steps(arrangement: Arrangement, view: ClassView, fixed_kept: bool) -> tuple[float, list[NDArray[np.float64]]]:
    """The metric at the one match threshold and, by window, its nearest steps: up_at, up_value, down_at, down_value."""
    known: dict[bytes, float] = {}
    (present,) = values_of(arrangement, view, known)
    windows = len(view.slots.slot_of)
    columns = [np.full(windows, start) for start in (np.inf, present, -np.inf, present)]
    for moved, x in _each_moved(arrangement, view, fixed_kept, known):
        for column, found in zip(columns, moved.nearest(x, 0, present), strict=True):
            column[moved.window] = found
    return present, [column[: windows - arrangement.cuts] for column in columns]


def _each_moved(
    arrangement: Arrangement, view: ClassView, fixed_kept: bool, known: dict[bytes, float]
) -> Iterator[tuple[_MovedWindow, float]]:
    """Every window that may have a gradient, ready to be moved, and its score."""
    by_score = view.slots.window_of[view.order]
    for p, window in enumerate(by_score.tolist()):
        slot = view.order[p]
        if slot == view.metric.cut or (fixed_kept and view.kept.suppressor[slot] >= 0):
            continue
        others, scores = np.delete(by_score, p), np.delete(view.scores[view.order], p)
        yield _MovedWindow(arrangement, view, fixed_kept, window, others, scores, known), float(view.scores[slot])
