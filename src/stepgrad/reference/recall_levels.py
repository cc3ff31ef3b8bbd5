"""Recall levels as tools compute them, and what one of them adds beyond the recall that was reached."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from stepgrad.metric.protocol import Protocol


def recall_level(q: int, last: int, protocol: Protocol) -> Fraction | float:
    """Recall level q of 0..last: the fraction, or what a tool makes of it in floating point."""
    if protocol.recall_grid == "exact":
        return Fraction(q, last)
    if protocol.recall_grid == "float":  # the product q * (1 / last), of which some are a little too high
        return 1.0 if q == last else q * (1.0 / last)
    # torch counts the lower half up from 0 and the upper half down from 1 in steps of float32, and rounds each to float32
    step = Fraction(float(np.float32(1.0) / np.float32(last)))
    return float(np.float32(float(q * step if 2 * q < last else 1 - (last - q) * step)))


def tail(T: int, detections: int, P: int, protocol: Protocol) -> float:
    """What a line from the last point of the curve, (T / P, T / detections), to (1, 0) adds to AP.

    >>> from dataclasses import replace
    >>> from stepgrad.metric.protocol import ULTRALYTICS_OLD
    >>> tail(1, 2, 2, replace(ULTRALYTICS_OLD, recall_levels=5))
    0.1875
    """
    if protocol.tail == "zero" or protocol.recall_levels is None or T == 0 or T == P:
        return 0.0
    last, strictly, terms = protocol.recall_levels - 1, protocol.interpolation == "passed", []
    for q in range(last + 1):
        level = recall_level(q, last, protocol)
        recall = Fraction(T, P) if protocol.recall_grid == "exact" else T / P
        if level > recall or (level == recall and strictly):
            weight = 2 if protocol.integral == "trapezoid" and 0 < q < last else 1
            terms.append(weight * (T / detections) * (1.0 - float(level)) / (1.0 - T / P))
    return math.fsum(terms) / (2 * last if protocol.integral == "trapezoid" else protocol.recall_levels)
