"""What a protocol says about one class: AP, counts, verdicts, the curve behind them, and the score of the best F1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stepgrad.engine.matching import IGNORED, TRUE_POSITIVE
from stepgrad.errors import ConfigError
from stepgrad.metric.list_metric import f1_of


@dataclass(frozen=True, eq=False)
class PRCurve:
    """Precision and recall after each counted detection, by decreasing score."""

    threshold: float
    recall: NDArray[np.float64]
    precision: NDArray[np.float64]
    scores: NDArray[np.float64]

    @property
    def interpolated(self) -> NDArray[np.float64]:
        """The best precision at this recall or any higher, from which AP is computed."""
        return np.maximum.accumulate(self.precision[::-1])[::-1]


def position_of(thresholds: Sequence[float], threshold: float) -> int:
    """The position of a threshold among a protocol's, up to single precision."""
    for t, own in enumerate(thresholds):
        if math.isclose(own, threshold, abs_tol=1e-6):
            return t
    raise ConfigError(f"Expected one of the protocol's thresholds {list(thresholds)} but got {threshold!r}.")


@dataclass(frozen=True, eq=False)
class ClassResult:
    """The result of one class."""

    name: str
    label: int
    ap: float
    """nan if the protocol leaves the class out because it has no objects."""
    area_ap: float
    """The area under the interpolated curve, which VOC prints together with the 11-point AP."""
    ap_by_threshold: dict[float, float]
    objects: int
    ignored: int
    """Objects that are not counted: difficult ones or crowds."""
    scores: NDArray[np.float64] = field(repr=False)
    """(M,) of all detections, in decreasing order."""
    verdicts: NDArray[np.int8] = field(repr=False)
    """(thresholds, M) 1 true positive, 0 false positive, 2 ignored."""
    rows: NDArray[np.int64] = field(repr=False, default_factory=lambda: np.zeros(0, dtype=np.int64))
    """(M,) their rows in the `Detections` of the evidence."""

    @property
    def detections(self) -> int:
        return len(self.scores)

    @property
    def recall(self) -> float:
        """The share of objects found, at the lowest threshold; nan without objects."""
        true_positives = int(np.count_nonzero(self.verdicts[0] == TRUE_POSITIVE))
        return true_positives / self.objects if self.objects else math.nan

    def curve(self, threshold: float | None = None) -> PRCurve:
        """The precision-recall curve at one of the protocol's thresholds (default: the first)."""
        thresholds = list(self.ap_by_threshold)
        t = 0 if threshold is None else position_of(thresholds, threshold)
        verdicts = self.verdicts[t]
        counted = verdicts != IGNORED
        true = np.cumsum(verdicts[counted] == TRUE_POSITIVE)
        recall = true / self.objects if self.objects else np.full(len(true), np.nan)
        return PRCurve(thresholds[t], recall, true / np.arange(1, len(true) + 1), self.scores[counted])


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
    f1 = f1_of(true, np.cumsum(verdicts != IGNORED), P)
    last_of_equals = np.append(scores[1:] != scores[:-1], True)[: len(scores)]
    f1 = np.where(last_of_equals, f1, -1.0)
    if len(f1) == 0 or true[-1] == 0:
        return Cut(None, 0.0, 0)
    place = int(np.argmax(f1))
    return Cut(float(scores[place]), float(f1[place]), place + 1)
