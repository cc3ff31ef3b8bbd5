"""What each piecewise-constant layer computes, in plain Python, and where it can step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stepgrad.reference.nms import by_score, greedy
from tests.oracles.steps import F, Vector


def sign(x: Vector) -> Vector:
    return [float((v > 0) - (v < 0)) for v in x]


def threshold(at: float) -> F:
    return lambda x: [float(v >= at) for v in x]


def quantizer(step: float, low: float, high: float) -> F:
    return lambda x: [min(max(round(v / step) * step, low), high) for v in x]


def top_k(k: int) -> F:
    return lambda x: [float(i in by_score(x)[:k]) for i in range(len(x))]


def ranks(x: Vector) -> Vector:
    return [1.0 + by_score(x).index(i) for i in range(len(x))]


def ascending_ranks(x: Vector) -> Vector:
    order = sorted(range(len(x)), key=lambda i: (x[i], i))
    return [1.0 + order.index(i) for i in range(len(x))]


def keep_mask(neighbours: Sequence[frozenset[int]]) -> F:
    def kept(x: Vector) -> Vector:
        keep, _ = greedy(x, neighbours)
        return [float(b in keep) for b in range(len(x))]

    return kept


def at_others(x: Vector) -> list[Vector]:
    """Order can only change where a number meets another."""
    return [[*x[:i], *x[i + 1 :]] for i in range(len(x))]


def at_places(places: Sequence[float]) -> Callable[[Vector], list[Vector]]:
    return lambda x: [list(places)] * len(x)
