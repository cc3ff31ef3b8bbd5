"""Pseudo partial derivatives of a step function, by their definitions (Henderson & Ferrari 2016, Sec. 4.3).

SDE and MEE are from the paper; the radius estimator is from stepgrad.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction

from stepgrad.reference.steps import Curve, NearestSteps, StepFunction


def difference(rise: Fraction, distance: float, min_step: float) -> Fraction:
    """rise / distance, the distance bounded below by min_step; nothing for a missing step or a zero distance."""
    bounded = max(distance, min_step)
    return Fraction(0) if bounded in (0.0, math.inf) else rise / Fraction(bounded)


def sde(x: float, steps: NearestSteps, min_step: float = 0.0) -> Fraction:
    """Symmetric difference estimator: the mean of the two difference quotients over the smallest moves that change f.

    1/2 [ (f+ - f) / (x+ - x)  +  (f - f-) / (x - x-) ]
    """
    up = difference(steps.up_value.exact - steps.value.exact, steps.up_at - x, min_step)
    down = difference(steps.value.exact - steps.down_value.exact, x - steps.down_at, min_step)
    return (up + down) / 2


def mee(f: StepFunction, min_step: float = 0.0) -> Fraction | None:
    """Mean envelope estimator: the mean slope of the envelopes at x; outside the outermost steps, SDE.

    None where x sits on a step with a value of its own, so that its constant region is a single point.
    """
    steps = f.nearest_steps()
    if steps.up_at == math.inf or steps.down_at == -math.inf:
        return sde(f.x, steps, min_step)
    if steps.up_at == steps.down_at:
        return None
    inside = Fraction(steps.down_at) / 2 + Fraction(steps.up_at) / 2  # x itself may lie on the rim of its region
    return (envelope_slope(f, max, inside) + envelope_slope(f, min, inside)) / 2


def envelope_slope(f: StepFunction, pick: Callable[[Fraction, Fraction], Fraction], x: Fraction) -> Fraction:
    """Slope at x of the broken line through every (step, pick(value below, value above))."""
    corners = [(Fraction(y), pick(below.exact, above.exact)) for y, below, above in f.steps()]
    for (x0, f0), (x1, f1) in itertools.pairwise(corners):
        if x0 < x < x1:
            return (f1 - f0) / (x1 - x0)
    raise AssertionError("x does not lie between two steps")


def radius(curve: Curve, x: float, rho: float) -> Fraction:
    """Radius estimator: the central difference over a fixed distance, (f(x + rho) - f(x - rho)) / (2 rho)."""
    return (curve(x + rho).exact - curve(x - rho).exact) / (2 * Fraction(rho))
