"""The nearest step of each output in each coordinate: by bracketing and bisection, or between known candidates.

An *entry* is one question: going up (or down) from x in coordinate i, where does output j first change? Every round
asks f once for all open entries together. Distances are measured from x outwards; `lo` is a distance at which the
output still has its value at x, `hi` one at which it has not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepgrad.errors import ConfigError, InputError
from stepgrad.steps.evaluate import Floats, Function, OutOfBudget

Indices = NDArray[np.int64]
_WATCHED = 4  # points looked at beyond a step: a function that changes at each of them is not constant there


@dataclass(frozen=True)
class Limits:
    """How far and how finely to look."""

    search_range: float = 1e3
    tolerance: float = 1e-9
    value_tolerance: float = 1e-12
    growth: float = 2.0

    def __post_init__(self) -> None:
        for name, least in (("search_range", 0.0), ("tolerance", 1e-15), ("value_tolerance", 0.0), ("growth", 1.0)):
            given = getattr(self, name)
            reached = given >= least if name in ("tolerance", "value_tolerance") else given > least
            if not (np.isfinite(given) and reached):
                sign = ">=" if name in ("tolerance", "value_tolerance") else ">"
                raise ConfigError(f"Expected {name} to be a finite number {sign} {least:g} but got {given!r}.")


@dataclass(frozen=True)
class Entries:
    """All questions, flat, and the answers: `at` +-inf where no step was found, `open` where the budget ran out first."""

    sign: Floats  # +1 up, -1 down
    coordinate: Indices
    output: Indices
    at: Floats
    value: Floats
    open: NDArray[np.bool_]

    @staticmethod
    def of(function: Function) -> Entries:
        n, m = len(function.x), len(function.value)
        sign, output, coordinate = (a.ravel() for a in np.meshgrid([1.0, -1.0], range(m), range(n), indexing="ij"))
        value = function.value[output.astype(np.int64)]
        at = np.where(sign > 0, np.inf, -np.inf)
        return Entries(sign, coordinate.astype(int), output.astype(int), at, value.copy(), np.ones(len(at), np.bool_))


def _ask(function: Function, entries: Entries, who: Indices, position: Floats) -> Floats:
    """The outputs the entries `who` ask about, each at its position; equal points are evaluated once."""
    points = np.stack([entries.coordinate[who].astype(np.float64), position], axis=1)
    distinct, inverse = np.unique(points, axis=0, return_inverse=True)
    found = function.moved(distinct[:, 0].astype(np.int64), distinct[:, 1])
    return found[inverse.reshape(-1), entries.output[who]]


class Bracketing:
    """Expanding search and bisection (see `find_steps` for what it may miss)."""

    def __init__(self, function: Function, limits: Limits) -> None:
        self.function, self.limits = function, limits
        self.entries = Entries.of(function)
        self.start = self.entries.value.copy()  # the outputs at x
        self.tolerance = limits.tolerance * np.maximum(1.0, np.abs(function.x))[self.entries.coordinate]
        self.noise = limits.value_tolerance * np.maximum(1.0, np.abs(self.start))
        count = len(self.start)
        self.lo, self.hi = np.zeros(count), np.full(count, np.inf)
        self.lo_value, self.hi_value = self.start.copy(), self.start.copy()

    def run(self) -> Entries:
        who = np.arange(len(self.start))
        try:
            while len(who):
                self._bisect(who := self._expand(who))
                who = self._confirm(who)
        except OutOfBudget:
            pass  # what is still open says so
        return self.entries

    def _expand(self, who: Indices) -> Indices:
        """Widen until the output changes; returns the entries that have a bracket now, the others are done."""
        bracketed = []
        while len(who):
            done = self.lo[who] >= self.limits.search_range
            self.entries.open[who[done]] = False
            who = who[~done]
            wider = np.maximum(self.lo[who] * self.limits.growth, self.tolerance[who])
            changed = self._probe(who, np.minimum(wider, self.limits.search_range))
            bracketed.append(who[changed])
            who = who[~changed]
        return np.sort(np.concatenate(bracketed)) if bracketed else who

    def _bisect(self, who: Indices) -> None:
        """Narrow the brackets to the tolerance."""
        while len(who):
            middle = 0.5 * (self.lo[who] + self.hi[who])
            wide = (self.hi - self.lo > self.tolerance)[who] & (self.lo[who] < middle) & (middle < self.hi[who])
            who = who[wide]
            self._probe(who, middle[wide])

    def _confirm(self, who: Indices) -> Indices:
        """Look just beyond each step; returns the entries where the output is back at its value, to be taken further."""
        if not len(who):
            return who
        everyone = np.repeat(who, _WATCHED)
        distance = self.hi[everyone] + np.tile(np.arange(1.0, _WATCHED + 1), len(who)) * self.tolerance[everyone]
        beyond = self._at(everyone, distance).reshape(len(who), _WATCHED)
        self._refuse_smooth(who, np.column_stack([self.hi_value[who], beyond]))
        back = np.abs(beyond[:, 0] - self.start[who]) <= self.noise[who]
        spike, found = who[back], who[~back]
        self.lo[spike], self.hi[spike] = self.hi[spike] + self.tolerance[spike], np.inf
        self.entries.at[found] = self._position(found, self.lo[found])
        self.entries.value[found] = beyond[~back, 0]
        self.entries.open[found] = False
        return spike

    def _refuse_smooth(self, who: Indices, beyond: Floats) -> None:
        """A step shows a jump, and beyond it a constant. Neither may be missing."""
        noise = self.noise[who]
        moving = (np.abs(np.diff(beyond, axis=1)) > noise[:, None]).all(axis=1)
        drifting = np.abs(self.hi_value[who] - self.lo_value[who]) <= noise
        bad = np.flatnonzero(moving | drifting)
        if not len(bad):
            return
        e = int(who[bad[0]])
        values = ", ".join(f"{v:.12g}" for v in beyond[bad[0]])
        raise InputError(
            f"Expected f to be piecewise constant, but in {self.function.name(int(self.entries.coordinate[e]))} it keeps "
            f"changing near {self._position(np.array([e]), self.lo[[e]])[0]:.12g}: {values} at points {self.tolerance[e]:.3g} "
            "apart. A smooth f has an ordinary gradient; for constant pieces narrower than that, lower tolerance=; "
            "if it is rounding noise, raise value_tolerance=."
        )

    def _probe(self, who: Indices, distance: Floats) -> NDArray[np.bool_]:
        """Ask at these distances and move lo or hi there; returns who has changed."""
        value = self._at(who, distance)
        changed = np.abs(value - self.start[who]) > self.noise[who]
        self.hi[who[changed]], self.hi_value[who[changed]] = distance[changed], value[changed]
        self.lo[who[~changed]], self.lo_value[who[~changed]] = distance[~changed], value[~changed]
        return changed

    def _at(self, who: Indices, distance: Floats) -> Floats:
        return _ask(self.function, self.entries, who, self._position(who, distance))

    def _position(self, who: Indices, distance: Floats) -> Floats:
        return self.function.x[self.entries.coordinate[who]] + self.entries.sign[who] * distance


def outward(x: Floats, candidates: list[Floats], sign: float) -> tuple[Floats, Floats]:
    """Per coordinate x and the candidates from there outwards, and a point inside the gap beyond each: (n, longest + 1).

    Beyond the last candidate the point is close to it. Points are nan where a gap has no room for a number between its
    ends, and both are nan past the last candidate.

    >>> ends, points = outward(np.array([1.0]), [np.array([0.0, 4.0, 2.0])], 1.0)
    >>> ends.tolist(), points.tolist()
    ([[1.0, 2.0, 4.0, nan]], [[1.5, 3.0, 4.000004, nan]])
    """
    longest = max((len(c) for c in candidates), default=0)
    ahead = np.full((len(x), longest), np.inf)
    for row, places in zip(ahead, candidates, strict=True):
        row[: len(places)] = sign * places
    ahead.sort(axis=1)
    ahead[:, 1:][ahead[:, 1:] == ahead[:, :-1]] = np.inf
    ahead[ahead < sign * x[:, None]] = np.inf
    ahead.sort(axis=1)
    ends = np.concatenate([sign * x[:, None], ahead], axis=1)
    beyond = np.concatenate([ahead, np.full((len(x), 1), np.inf)], axis=1)
    near_by = ends + np.where(np.arange(longest + 1) > 0, 1e-6, 1.0) * np.maximum(1.0, np.abs(ends))
    points = np.where(np.isinf(beyond), near_by, 0.5 * ends + 0.5 * beyond)
    points[(points <= ends) | (points >= beyond)] = np.nan
    ends[np.isinf(ends)] = np.nan
    return sign * ends, sign * points


def walk_candidates(function: Function, candidates: list[Floats], limits: Limits) -> Entries:
    """Try the gaps between candidate locations, nearest first, until the output changes."""
    entries = Entries.of(function)
    start = entries.value.copy()
    noise = limits.value_tolerance * np.maximum(1.0, np.abs(start))
    ends, points = np.stack([outward(function.x, candidates, sign) for sign in (1.0, -1.0)], axis=1)
    who = np.arange(len(start))
    try:
        for k in range(ends.shape[2]):
            side = (entries.sign[who] < 0).astype(int)
            end, point = (a[side, entries.coordinate[who], k] for a in (ends, points))
            past_last = np.isnan(end)
            entries.open[who[past_last]] = False
            real = ~np.isnan(point)
            value = _ask(function, entries, who[real], point[real])
            changed = np.abs(value - start[who[real]]) > noise[who[real]]
            found = who[real][changed]
            if k == 0 and len(found):
                _refuse_own_gap(function, entries, found[0], point[real][changed][0], value[changed][0])
            entries.at[found], entries.value[found] = end[real][changed], value[changed]
            entries.open[found] = False
            who = who[entries.open[who]]
        entries.open[who] = False
    except OutOfBudget:
        pass
    return entries


def _refuse_own_gap(function: Function, entries: Entries, e: int, point: float, value: float) -> None:
    i = int(entries.coordinate[e])
    raise InputError(
        f"Expected f to be constant between candidates, but with {function.name(i)} moved from {function.x[i]:.17g} to "
        f"{point:.17g}, past no candidate, it changes from {function.value[entries.output[e]]:.12g} to {value:.12g}; "
        "give every step location, or leave candidates= out to search for them."
    )
