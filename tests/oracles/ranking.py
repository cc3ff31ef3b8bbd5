"""Steps of a ranking metric by brute force: the metric itself, between all breakpoints of each score."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from stepgrad.reference.steps import sample_points

Metric = Callable[[np.ndarray], float]
SAME = 1e-12  # two values of a metric closer than this are one value: sums of a few terms of order 1


def nearest_steps(metric: Metric, scores: np.ndarray, i: int) -> tuple[float, float, float, float]:
    """(up_at, up_value, down_at, down_value) of the score of document i."""
    x, here = float(scores[i]), metric(scores)
    breakpoints = sorted({float(s) for j, s in enumerate(scores) if j != i})
    values = [value_at(metric, scores, i, y) for y in sample_points(breakpoints)]
    up = [(y, v) for y, v in zip(breakpoints, values[1:], strict=True) if y >= x and abs(v - here) > SAME]
    down = [(y, v) for y, v in zip(breakpoints, values[:-1], strict=True) if y <= x and abs(v - here) > SAME]
    return (*(up[0] if up else (math.inf, here)), *(down[-1] if down else (-math.inf, here)))


def value_at(metric: Metric, scores: np.ndarray, i: int, y: float) -> float:
    """The metric with document i alone at score y."""
    moved = np.array(scores, dtype=np.float64)
    moved[i] = y
    return metric(moved)


def all_nearest_steps(metric: Metric, scores: np.ndarray) -> np.ndarray:
    """(4, n): one column per document."""
    return np.array([nearest_steps(metric, scores, i) for i in range(len(scores))]).T.reshape(4, -1)


def radius_slope(metric: Metric, scores: np.ndarray, radius: float) -> np.ndarray:
    """(f(x + radius) - f(x - radius)) / (2 radius) in every score."""
    rise = [
        value_at(metric, scores, i, s + radius) - value_at(metric, scores, i, s - radius) for i, s in enumerate(scores)
    ]
    return np.array(rise) / (2.0 * radius)
