"""Making a pseudogradient respect what AP does not feel: all scores of a class shifted by a constant, or scaled.

A faithful gradient is orthogonal to both: its pushes up and down sum to zero, and it does not blow the scores up. A
pseudogradient is neither: each of thousands of false positives reports its own way to the nearest true positive, a true
positive only its nearest false one. "class" corrects the first, "class+scale" both.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepgrad.engine.jit import kernel

BALANCES = ["none", "class", "class+scale"]


class Sums(NamedTuple):
    """What a gradient amounts to."""

    nonzero: int
    positive: float
    negative: float


@kernel
def _sums(gradient: NDArray[np.float64]) -> tuple[int, float, float]:
    nonzero = 0
    up = 0.0
    down = 0.0
    for g in gradient:
        nonzero += g != 0.0
        if g > 0.0:
            up += g
        else:
            down += g
    return nonzero, up, down


@kernel
def _scale_to_smaller(gradient: NDArray[np.float64]) -> None:
    """Scale the pushes up and the pushes down to the smaller of their totals; one sign alone becomes zero."""
    _, up, down = _sums(gradient)
    smaller = min(up, -down)
    for i in range(len(gradient)):
        # Pushes of one sign only would move the class as a whole, which changes no ranking.
        if smaller <= 0.0:
            gradient[i] = 0.0
        else:
            gradient[i] *= smaller / up if gradient[i] > 0.0 else smaller / -down


@kernel
def _remove_scale(gradient: NDArray[np.float64], scores: NDArray[np.floating]) -> None:
    """Project out the scores, centred over the windows with a gradient: the sum stays, the stretch goes."""
    count, mean = 0, 0.0
    for i in range(len(gradient)):
        if gradient[i] != 0.0:
            count += 1
            # A running mean: a sum of large scores could overflow.
            mean += (scores[i] - mean) / count
    along = square = 0.0
    for i in range(len(gradient)):
        if gradient[i] != 0.0:
            along += gradient[i] * (scores[i] - mean)
            square += (scores[i] - mean) ** 2
    # All scores equal, or too far apart to square: there is no stretch to take away.
    if not 0.0 < square < np.inf:
        return
    for i in range(len(gradient)):
        if gradient[i] != 0.0:
            gradient[i] -= (scores[i] - mean) * (along / square)


@kernel
def _shrink_to(gradient: NDArray[np.float64], bound: float) -> None:
    """Scale all of it down until no element exceeds the bound."""
    largest = 0.0
    for g in gradient:
        largest = max(largest, abs(g))
    if largest > bound:
        for i in range(len(gradient)):
            gradient[i] *= bound / largest


@kernel
def finish_class(
    gradient: NDArray[np.float64],
    scores: NDArray[np.floating],
    scale: float,
    clip: float,
    shift_free: bool,
    scale_free: bool,
    out: NDArray[np.float64],
) -> tuple[int, float, float]:
    """out = scale * gradient, clipped, then freed of shift and scale if asked; returns the `Sums` of the result."""
    for i in range(len(gradient)):
        out[i] = min(max(gradient[i] * scale, -clip), clip)
    if shift_free:
        _scale_to_smaller(out)
    # The projection may lift single elements above the clip again.
    if scale_free:
        _remove_scale(out, scores)
        _shrink_to(out, clip)
    return _sums(out)


def balanced(gradient: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scale the pushes up and the pushes down of one class to the smaller of their totals, so that they sum to zero.

    With pushes of one sign only, nothing is left: a class cannot be improved by moving it as a whole.

    >>> balanced(np.array([1.0, -3.0, -1.0])).tolist()
    [1.0, -0.75, -0.25]
    """
    out = np.empty(len(gradient))
    finish_class(gradient, gradient, 1.0, np.inf, True, False, out)
    return out
