"""What one class's ranked list is worth: AP, and the metrics that detectors are deployed by.

A list is what NMS and matching leave of a class: hits (true positives) and false alarms by decreasing score, and the number
of objects to find. Equal scores rank as they do for AP, the earlier window first. `sg.metrics` is this file.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from stepgrad.errors import ConfigError, InputError, NonFiniteError, not_negative
from stepgrad.metric.list_metric import (
    AREAS,
    BEST_F1,
    COST_AT_CUT,
    F1_AT_CUT,
    MISS_RATE,
    RECALL_AT_PRECISION,
    Hits,
    ListMetric,
    MetricCode,
    area_range,
    check_threshold,
    f1_of,
    share_of_one,
    weighted_precision,
)
from stepgrad.metric.protocol import Protocol

FALSE_ALARMS_PER_IMAGE = tuple(10.0 ** (j / 4 - 2) for j in range(9))
"""Nine points from 0.01 to 1, evenly in the logarithm: where pedestrian detection reads the miss rate."""
_LEAST_MISS_RATE = 1e-10


@dataclass(frozen=True)
class AP(ListMetric):
    """Average precision by the protocol: what `MAPLoss` trains for.

    With `max_recall`, the mean of the interpolated precision over recalls up to it (partial AP); at 1 it is AP. With `area`,
    AP of "small", "medium" or "large" objects by COCO's rules, or of those between two areas, for protocols like COCO's.

    >>> from stepgrad.metric.protocol import VOC12
    >>> hits = np.array([True, False, True])
    >>> AP().of_list(hits, 2, 1, VOC12), AP(max_recall=0.5).of_list(hits, 2, 1, VOC12)
    (0.8333333333333333, 1.0)
    """

    max_recall: float = 1.0
    area: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "area", area_range(self.area))
        if not 0.0 < share_of_one("max_recall", self.max_recall) <= 1.0:
            raise ConfigError(f"Expected max_recall to be in (0, 1] but got {self.max_recall!r}.")

    @property
    def name(self) -> str:
        parts = [] if self.max_recall == 1.0 else [f"max_recall={self.max_recall:g}"]
        if self.area is not None:
            known = [size for size, bounds in AREAS.items() if bounds == self.area]
            parts.append(f"area={known[0] if known else '{:g}:{:g}'.format(*self.area)}")
        return "@".join(["ap", ",".join(parts)]) if parts else "ap"

    def check_protocol(self, protocol: Protocol) -> None:
        super().check_protocol(protocol)
        if protocol.tail == "line" and self != AP():
            raise ConfigError(
                f'Expected a protocol with tail="zero" for {self.name} but got {protocol.name!r}, whose curve continues '
                "to recall 1."
            )

    def levels(self, P: int, protocol: Protocol) -> tuple[NDArray[np.int64], int]:
        counts, norm = protocol.level_counts(P)
        if self.max_recall == 1.0 or P == 0:
            return counts, norm
        recall = Fraction(self.max_recall).limit_denominator(1000)  # 0.3 is meant as 3/10
        if protocol.recall_levels is not None:
            last = math.floor(recall * (protocol.recall_levels - 1))
            # A trapezoid counts in halves: of the last level one of its two is left out.
            norm = last + 1 if protocol.integral == "mean" else max(2 * last, 1)
            return np.diff(np.minimum(np.cumsum(counts), norm), prepend=0), norm
        # True positive k serves recalls from (k - 1) / P to k / P: in units of 1 / (P d) these are whole numbers.
        end = recall.numerator * P
        counts = np.diff(np.minimum(np.arange(P + 1, dtype=np.int64) * recall.denominator, end), prepend=0)
        shared = math.gcd(end, *counts.tolist())
        return counts // shared, end // shared

    def of_list(self, hits: Hits, objects: int, images: int, protocol: Protocol) -> float:
        tail = protocol.tail_ap(int(hits.sum()), len(hits), objects)
        return weighted_precision(hits, *self.levels(objects, protocol)) + tail


@dataclass(frozen=True)
class PrecisionAtRecall(ListMetric):
    """The best precision at which at least this share of the objects is found; 0 if it never is.

    >>> from stepgrad.metric.protocol import VOC12
    >>> PrecisionAtRecall(0.75).of_list(np.array([True, False, True, True]), 4, 1, VOC12)
    0.75
    """

    recall: float

    def __post_init__(self) -> None:
        share_of_one("recall", self.recall)

    @property
    def name(self) -> str:
        return f"precision@recall={self.recall:g}"

    def levels(self, P: int, protocol: Protocol) -> tuple[NDArray[np.int64], int]:
        counts = np.zeros(P + 1, dtype=np.int64)
        if P > 0:  # all of the weight on the first true positive that reaches the recall
            counts[int(np.argmax(np.arange(1, P + 1) / P >= self.recall)) + 1] = 1
        return counts, 1

    def of_list(self, hits: Hits, objects: int, images: int, protocol: Protocol) -> float:
        return weighted_precision(hits, *self.levels(objects, protocol))


@dataclass(frozen=True)
class RecallAtPrecision(ListMetric):
    """The largest share of the objects found while the precision is at least this; 0 if it never is.

    >>> from stepgrad.metric.protocol import VOC12
    >>> RecallAtPrecision(0.75).of_list(np.array([True, False, True, True]), 4, 1, VOC12)
    0.75
    """

    precision: float

    def __post_init__(self) -> None:
        share_of_one("precision", self.precision)

    @property
    def name(self) -> str:
        return f"recall@precision={self.precision:g}"

    def levels(self, P: int, protocol: Protocol) -> tuple[NDArray[np.int64], int]:
        return super().levels(P, protocol)[0], max(P, 1)

    def of_list(self, hits: Hits, objects: int, images: int, protocol: Protocol) -> float:
        found = np.cumsum(hits)
        reached = found[found / np.arange(1, len(hits) + 1) >= self.precision]
        return int(reached.max(initial=0)) / max(objects, 1)

    def code(self, P: int, images: int) -> MetricCode:
        return MetricCode(RECALL_AT_PRECISION, float(self.precision))


@dataclass(frozen=True)
class F1(ListMetric):
    """F1 of the detections that reach a score threshold; without one, at the best threshold of the list.

    >>> from stepgrad.metric.protocol import VOC12
    >>> F1().of_list(np.array([True, False, False]), 1, 1, VOC12), F1(0.5).of_list(np.array([True, False]), 2, 1, VOC12)
    (1.0, 0.5)
    """

    threshold: float | None = None

    def __post_init__(self) -> None:
        check_threshold(self.threshold)

    @property
    def name(self) -> str:
        return "f1" if self.threshold is None else f"f1@threshold={self.threshold:g}"

    def of_list(self, hits: Hits, objects: int, images: int, protocol: Protocol) -> float:
        if self.threshold is not None:
            return float(f1_of(int(hits.sum()), len(hits), objects))
        return float(f1_of(np.cumsum(hits), np.arange(1, len(hits) + 1), objects).max(initial=0.0))

    def code(self, P: int, images: int) -> MetricCode:
        return MetricCode(BEST_F1 if self.threshold is None else F1_AT_CUT)


@dataclass(frozen=True)
class Cost(ListMetric):
    """The cost of false alarms and misses at a score threshold, each with its price; a class without objects can cost, too.

    >>> from stepgrad.metric.protocol import VOC12
    >>> Cost(threshold=0.5, false_alarm=1.0, miss=10.0).of_list(np.array([True, False, False]), 2, 1, VOC12)
    12.0
    """

    higher_is_better: ClassVar[bool] = False
    needs_objects: ClassVar[bool] = False

    threshold: float
    false_alarm: float = 1.0
    miss: float = 1.0

    def __post_init__(self) -> None:
        if self.threshold is None:
            raise ConfigError("Expected a threshold for Cost, without which every detection counts, but got None.")
        check_threshold(self.threshold)
        prices = not_negative("false_alarm", self.false_alarm), not_negative("miss", self.miss)
        if not any(prices):
            raise ConfigError("Expected false_alarm or miss to cost something but both are 0.")

    @property
    def name(self) -> str:
        return f"cost@threshold={self.threshold:g},false_alarm={self.false_alarm:g},miss={self.miss:g}"

    def of_list(self, hits: Hits, objects: int, images: int, protocol: Protocol) -> float:
        found = int(hits.sum())
        return self.false_alarm * (len(hits) - found) + self.miss * (objects - found)

    def code(self, P: int, images: int) -> MetricCode:
        return MetricCode(COST_AT_CUT, float(self.false_alarm), float(self.miss))


@dataclass(frozen=True)
class LogAverageMissRate(ListMetric):
    """The geometric mean of the share of objects missed, over nine rates of false alarms per image from 0.01 to 1.

    This is the metric of pedestrian detection (Dollar et al. 2012). At each rate the threshold is as low as the rate allows.

    >>> from stepgrad.metric.protocol import VOC12
    >>> round(LogAverageMissRate().of_list(np.array([True, False]), 2, 1, VOC12), 12)
    0.5
    """

    higher_is_better: ClassVar[bool] = False

    @property
    def name(self) -> str:
        return "miss_rate"

    def check_protocol(self, protocol: Protocol) -> None:
        super().check_protocol(protocol)
        if protocol.federated:
            raise ConfigError(
                f"Expected a protocol that looks for every class in every image for {self.name}, which counts false alarms per "
                f"image, but got {protocol.name!r}."
            )

    def of_list(self, hits: Hits, objects: int, images: int, protocol: Protocol) -> float:
        if objects == 0:
            return 1.0
        false_alarms, logs = np.flatnonzero(~hits), _miss_logs(objects)
        # The list is cut just above the first false alarm too many; all above it but the allowed ones are hits.
        most = [
            int(false_alarms[m]) - m if m < len(false_alarms) else int(hits.sum()) for m in _allowed(images).tolist()
        ]
        return math.exp(math.fsum(logs[objects - found] for found in most) / len(most))

    def code(self, P: int, images: int) -> MetricCode:
        return MetricCode(MISS_RATE, allowed=_allowed(images), logs=_miss_logs(P))


@dataclass(frozen=True, repr=False)
class OwnMetric(ListMetric):
    """Any function of a list: `function(hits, objects)`, with hits a bool array by decreasing score, gives a number.

    It may use only these two. Its pseudogradient is as exact as that of the other metrics, but every value is a call of the
    function, so it is far slower: use it for experiments and small batches.

    Args:
        function: gives the value of a list; it is called once for each list that a moved score can lead to.
        threshold: a score; the function gets only detections that reach it, and crossing it is a step.
        higher_is_better: whether training raises the value or lowers it.

    >>> from stepgrad.metric.protocol import VOC12
    >>> right_at_the_top = OwnMetric(lambda hits, objects: float(hits[:1].sum()))
    >>> right_at_the_top.of_list(np.array([True, False]), 2, 1, VOC12)
    1.0
    """

    is_compiled: ClassVar[bool] = False

    function: Callable[[Hits, int], float]
    threshold: float | None = None
    higher_is_better: bool = field(default=True)  # type: ignore[misc]  # a choice here, a fact elsewhere

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ConfigError(f"Expected a function of (hits, objects) but got {type(self.function).__name__}.")
        check_threshold(self.threshold)

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)

    def __repr__(self) -> str:  # the same in every process, unlike a function's own
        return f"OwnMetric({self.name}, threshold={self.threshold}, higher_is_better={self.higher_is_better})"

    def of_list(self, hits: Hits, objects: int, images: int, protocol: Protocol) -> float:
        given = self.function(hits.copy(), objects)
        try:
            value = float(given)
        except (TypeError, ValueError) as error:
            raise InputError(f"Expected {self.name} to return a number but got {type(given).__name__}.") from error
        if not math.isfinite(value):
            raise NonFiniteError(
                f"Expected {self.name} to return a finite number but got {value} for {len(hits)} hits."
            )
        return value


def _allowed(images: int) -> NDArray[np.int64]:
    """The most false alarms at each rate: the largest m with m / images <= rate, as floats compare."""
    most = []
    for rate in FALSE_ALARMS_PER_IMAGE:
        m = math.floor(rate * images) + 1
        while m / max(images, 1) > rate:
            m -= 1
        most.append(m)
    return np.array(most, dtype=np.int64)


def _miss_logs(P: int) -> NDArray[np.float64]:
    """log of the miss rate for 0, ..., P objects missed."""
    return np.log(np.maximum(np.arange(P + 1) / max(P, 1), _LEAST_MISS_RATE))


AVERAGE_PRECISION = AP()
