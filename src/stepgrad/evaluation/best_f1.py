"""Where to cut a ranked list of detections: the score of the best F1."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepgrad.kernels.matching import FALSE_POSITIVE, TRUE_POSITIVE


@dataclass(frozen=True)
class Cut:
    """Where to cut the ranked detections of a class."""

    threshold: float | None
    """The least score that passes; None if no detection is right, then none passes."""
    f1: float | None
    """None for a class without objects."""
    passing: int
    """How many of the ranked detections reach it."""


def best_cut(scores: NDArray[np.float64], verdicts: NDArray[np.int8], P: int) -> Cut:
    """The threshold of the largest F1; of equally good ones the highest.

    Args:
        scores: of all detections of a class, in decreasing order. A threshold cannot part equal ones: they pass together.
        verdicts: of each: 1 true positive, 0 false positive, 2 ignored.
        P: objects there are to find.

    >>> best_cut(np.array([0.9, 0.8, 0.8, 0.1]), np.array([1, 0, 1, 0], dtype=np.int8), P=2)
    Cut(threshold=0.8, f1=0.8, passing=3)
    """
    if P == 0:
        return Cut(None, None, 0)
    true = np.cumsum(verdicts == TRUE_POSITIVE)
    wrong = np.cumsum(verdicts == FALSE_POSITIVE)
    f1 = 2 * true / (true + wrong + P)
    last_of_equals = np.append(scores[1:] != scores[:-1], True)[: len(scores)]
    f1 = np.where(last_of_equals, f1, -1.0)
    if len(f1) == 0 or true[-1] == 0:
        return Cut(None, 0.0, 0)
    place = int(np.argmax(f1))
    return Cut(float(scores[place]), float(f1[place]), place + 1)
