"""Pseudo-Jacobians of any step function by brute force: evaluate f in every gap between its breakpoints."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from stepgrad.reference.steps import sample_points

Vector = list[float]
F = Callable[[Vector], Vector]  # R^n -> R^m


class Estimate(NamedTuple):
    """How to take a slope."""

    name: str = "mee"
    min_step: float = 0.0
    radius: float = 1.0


class Line(NamedTuple):
    """One output along one coordinate: between[j] is its value between breakpoints j - 1 and j, `here` that at x."""

    x: float
    here: float
    breakpoints: Vector
    between: Vector

    def steps(self) -> list[tuple[float, float, float]]:
        """(where, value below, value above) of every step."""
        sides = zip(self.breakpoints, self.between, self.between[1:], strict=False)
        return [(y, a, b) for y, a, b in sides if a != b]

    def nearest(self) -> tuple[float, float, float, float]:
        """up_at, up_value, down_at, down_value; a value at x alone, on a breakpoint, makes steps at distance zero."""
        pairs = list(zip(self.breakpoints, self.between, self.between[1:], strict=False))
        up = next(((y, b) for y, _, b in pairs if y >= self.x and b != self.here), (math.inf, self.here))
        down = next(((y, a) for y, a, _ in reversed(pairs) if y <= self.x and a != self.here), (-math.inf, self.here))
        return *up, *down


def with_coordinate(x: Vector, i: int, y: float) -> Vector:
    return [*x[:i], y, *x[i + 1 :]]


def lines(f: F, x: Vector, i: int, breakpoints: Sequence[float]) -> list[Line]:
    """Every output of f along coordinate i, whose breakpoints these are."""
    places = sorted(set(breakpoints))
    here = f(x)
    columns = [f(with_coordinate(x, i, y)) for y in sample_points(places)]
    return [Line(x[i], here[j], places, [c[j] for c in columns]) for j in range(len(here))]


def quotient(rise: float, distance: float, min_step: float) -> float:
    bounded = max(distance, min_step)
    return 0.0 if bounded in (0.0, math.inf) else rise / bounded


def sde(line: Line, min_step: float) -> float:
    up_at, up, down_at, down = line.nearest()
    return (
        quotient(up - line.here, up_at - line.x, min_step) + quotient(line.here - down, line.x - down_at, min_step)
    ) / 2


def mee(line: Line, min_step: float) -> float:
    """The mean slope of the broken lines through the larger and the smaller value at every step."""
    up_at, up, down_at, down = line.nearest()
    if math.inf in (up_at, -down_at):
        return sde(line, min_step)
    if up_at == down_at:  # x is a region by itself; only min_step can give it a length
        return quotient(up - down, 0.0, min_step) / 2
    total = 0.0
    for pick in (max, min):
        corners = [(y, pick(a, b)) for y, a, b in line.steps()]
        middle = down_at / 2 + up_at / 2
        ((x0, f0), (x1, f1)) = next(c for c in itertools.pairwise(corners) if c[0][0] < middle < c[1][0])
        total += (f1 - f0) / (x1 - x0)
    return total / 2


def pseudo_jacobian(f: F, x: Vector, breakpoints: Sequence[Sequence[float]], how: Estimate) -> list[Vector]:
    """(m, n) slopes; breakpoints[i] are all places where f can step in coordinate i.

    >>> pseudo_jacobian(lambda v: [float(v[0] > 2)], [0.0], [[2.0]], Estimate())
    [[0.25]]
    """
    columns = []
    for i in range(len(x)):
        if how.name == "radius":
            raised, lowered = (f(with_coordinate(x, i, x[i] + s * how.radius)) for s in (1, -1))
            columns.append([(a - b) / (2 * how.radius) for a, b in zip(raised, lowered, strict=True)])
        else:
            form = mee if how.name == "mee" else sde
            columns.append([form(line, how.min_step) for line in lines(f, x, i, breakpoints[i])])
    return [list(row) for row in zip(*columns, strict=True)]
