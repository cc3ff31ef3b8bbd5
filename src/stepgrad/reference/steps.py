"""AP after NMS as a step function of one score (Henderson & Ferrari 2016, Sec. 4.4), by brute force.

The metric can only change where the moving score passes another one, so it is evaluated once between all breakpoints.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple, Protocol

from stepgrad.reference.class_ap import ClassScene, Scores, class_ap, kept_windows


class Value(Protocol):
    """What a step function has for values: an AP, or another metric's number."""

    @property
    def exact(self) -> Fraction: ...
    @property
    def rounded(self) -> float: ...
    def equals(self, other: Any, /) -> bool: ...


Curve = Callable[[float], Value]


class NearestSteps(NamedTuple):
    """The nearest step on either side: where, and the value just beyond; +-inf and the value here if there is none."""

    value: Value
    up_at: float
    up_value: Value
    down_at: float
    down_value: Value


@dataclass(frozen=True)
class StepFunction:
    """f over the whole line: `between[j]` is its value between breakpoints j - 1 and j; `here` is f(x)."""

    x: float
    here: Value
    breakpoints: list[float]
    between: list[Value]

    def nearest_steps(self) -> NearestSteps:
        f = self.here
        ups = [(y, v) for y, v in zip(self.breakpoints, self.between[1:], strict=True) if y >= self.x]
        downs = [(y, v) for y, v in zip(self.breakpoints, self.between, strict=False) if y <= self.x]
        up = next(((y, v) for y, v in ups if not v.equals(f)), (math.inf, f))
        down = next(((y, v) for y, v in reversed(downs) if not v.equals(f)), (-math.inf, f))
        return NearestSteps(f, *up, *down)

    def steps(self) -> list[tuple[float, Value, Value]]:
        """Every step of f: (where, value just below, value just above)."""
        sides = zip(self.breakpoints, self.between, self.between[1:], strict=False)
        return [(y, below, above) for y, below, above in sides if not below.equals(above)]


def sample_points(breakpoints: Sequence[float]) -> list[float]:
    """One point in every gap between sorted distinct breakpoints, and one beyond either end.

    >>> sample_points([1.0, 2.0])
    [0.0, 1.5, 4.0]
    """
    if not breakpoints:
        return [0.0]
    low, high = breakpoints[0], breakpoints[-1]
    inner = [a + (b - a) / 2 for a, b in itertools.pairwise(breakpoints)]
    points = [low - max(1.0, abs(low)), *inner, high + max(2.0, abs(high))]
    for y, p, q in zip(breakpoints, points, points[1:], strict=False):
        assert p < y < q, "breakpoints too close for a point between them"
    return points


def trace(curve: Curve, x: float, others: Sequence[float]) -> StepFunction:
    """The step function whose value can only change at the scores `others`."""
    breakpoints = sorted(set(others))
    return StepFunction(x, curve(x), breakpoints, [curve(y) for y in sample_points(breakpoints)])


def curve_of_score(scene: ClassScene, scores: Scores, i: int, b: int, fixed_kept: bool = False) -> Curve:
    """AP as a function of the score of window b of image i; with `fixed_kept` NMS is not run again."""
    kept = kept_windows(scene, scores) if fixed_kept else None

    def curve(y: float) -> Value:
        moved = [list(s) for s in scores]
        moved[i][b] = y
        return class_ap(scene, moved, kept)

    return curve


def step_function(scene: ClassScene, scores: Scores, i: int, b: int, fixed_kept: bool = False) -> StepFunction:
    """AP after NMS as a step function of the score of window b of image i, all other scores fixed."""
    others = [s for j, image in enumerate(scores) for c, s in enumerate(image) if (j, c) != (i, b)]
    return trace(curve_of_score(scene, scores, i, b, fixed_kept), scores[i][b], others)
