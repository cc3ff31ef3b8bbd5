"""Making a pseudogradient respect what AP does not feel: one constant added to all scores of a class.

A faithful gradient is orthogonal to that shift, so its pushes up and down sum to zero. Pseudogradients are not: each of
thousands of false positives reports its own way to the nearest true positive, a true positive only its nearest false one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

BALANCES = ["none", "class"]


def balanced(gradient: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scale the pushes up and the pushes down of one class to the smaller of their totals, so that they sum to zero.

    >>> balanced(np.array([1.0, -3.0, -1.0])).tolist()
    [1.0, -0.75, -0.25]
    """
    up = float(gradient[gradient > 0.0].sum())
    down = -float(gradient[gradient < 0.0].sum())
    smaller = min(up, down)
    if smaller <= 0.0:
        return np.zeros_like(gradient)
    return gradient * np.where(gradient > 0.0, smaller / up, smaller / down)
