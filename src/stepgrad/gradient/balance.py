"""Making a pseudogradient respect what AP does not feel: one constant added to all scores of a class.

A faithful gradient is orthogonal to that shift, so its pushes up and down sum to zero. Pseudogradients are not: each of
thousands of false positives reports its own way to the nearest true positive, a true positive only its nearest false one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepgrad.metric._jit import kernel

BALANCES = ["none", "class"]


class Sums(NamedTuple):
    """What a gradient amounts to."""

    nonzero: int
    positive: float
    negative: float


@kernel
def finish_class(
    gradient: NDArray[np.float64], scale: float, clip: float, balance: bool, out: NDArray[np.float64]
) -> tuple[int, float, float]:
    """out = scale * gradient, clipped, and balanced if asked; returns the `Sums` of the result."""
    up = down = 0.0
    nonzero = 0
    for i in range(len(gradient)):
        out[i] = min(max(gradient[i] * scale, -clip), clip)
        if out[i] > 0.0:
            up += out[i]
        else:
            down -= out[i]
        nonzero += out[i] != 0.0
    if not balance or up == down:
        return nonzero, up, -down
    smaller = min(up, down)
    if smaller <= 0.0:
        out[:] = 0.0
        return 0, 0.0, 0.0
    for i in range(len(out)):
        out[i] *= smaller / up if out[i] > 0.0 else smaller / down
    return nonzero, smaller, -smaller


def balanced(gradient: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scale the pushes up and the pushes down of one class to the smaller of their totals, so that they sum to zero.

    With pushes of one sign only, nothing is left: a class cannot be improved by moving it as a whole.

    >>> balanced(np.array([1.0, -3.0, -1.0])).tolist()
    [1.0, -0.75, -0.25]
    """
    out = np.empty(len(gradient))
    finish_class(gradient, 1.0, np.inf, True, out)
    return out
