"""How sure a number is: the interval in which it would lie on other images like these."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepgrad.errors import ConfigError, real_number
from stepgrad.evaluation.class_result import ClassResult
from stepgrad.evaluation.counted import countable
from stepgrad.evaluation.judge import judge
from stepgrad.evaluation.records import Evidence
from stepgrad.evaluation.resampling import JudgedList, Resamples, resample
from stepgrad.metric.list_metric import ListMetric
from stepgrad.metric.over_classes import OverClasses
from stepgrad.metric.protocol import Protocol

Floats = NDArray[np.float64]
FEW_IMAGES = 20
"""Images with objects of a class below which its interval is too narrow to be relied on."""


@dataclass(frozen=True)
class Interval:
    """Where a value would lie on other images like these, with this probability."""

    low: float
    high: float
    level: float = 0.95

    def __iter__(self) -> Iterator[float]:
        return iter((self.low, self.high))

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2


@dataclass(frozen=True, eq=False)
class Intervals:
    """The interval of a metric over all classes, and that of each class."""

    metric: str
    value: Interval
    by_class: tuple[Interval | None, ...]
    """None for a class without objects."""
    images: int
    resamples: int
    few: tuple[int, ...]
    """Labels of classes whose objects lie in so few images that their intervals say little."""


def judged_lists(
    classes: Sequence[ClassResult], evidence: Evidence, protocol: Protocol, metric: ListMetric
) -> list[JudgedList]:
    """The list of every class under a protocol; for AP by size detections are judged again."""
    objects, detections, there = evidence.objects, evidence.detections, countable(evidence, protocol)
    rows = [(row.label, row.rows, row.verdicts) for row in classes]
    if metric.area is not None:
        low, high = metric.area
        there = there & (objects.area >= low) & (objects.area <= high)
        rows = [(row.label, row.detections, row.verdicts) for row in judge(evidence, protocol, metric=metric)]
    return [
        JudgedList(
            images=detections.images[found],
            verdicts=verdicts,
            object_images=objects.images[there & (objects.labels == label)],
            scores=detections.scores[found],
        )
        for label, found, verdicts in rows
    ]


def intervals_of(
    classes: Sequence[ClassResult],
    evidence: Evidence,
    protocol: Protocol,
    metric: ListMetric,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
    groups: Sequence[Hashable] | None = None,
    over: OverClasses | None = None,
) -> Intervals:
    """Intervals by resampling images, or groups of them, with repetition."""
    check_level(level)
    draws = Resamples.of(evidence.num_images, resamples, seed, groups)
    lists = judged_lists(classes, evidence, protocol, metric)
    over = over or OverClasses(absent_classes=protocol.absent_classes)
    samples = resample(lists, metric, protocol, draws.weights, draws, over)
    units = [len(np.unique(draws.unit[judged.object_images])) for judged in lists]
    return Intervals(
        metric=metric.name,
        value=interval_of(samples.values, level),
        by_class=tuple(
            interval_of(column, level) if n else None for column, n in zip(samples.by_class.T, units, strict=True)
        ),
        images=draws.units,
        resamples=resamples,
        few=tuple(c for c, n in enumerate(units) if 0 < n < FEW_IMAGES),
    )


def interval_of(samples: Floats, level: float) -> Interval:
    """The range that holds this share of the resamples, as much of the rest above it as below; resamples without a value are
    left out."""
    counted = samples[~np.isnan(samples)]
    if len(counted) == 0:
        return Interval(float("nan"), float("nan"), level)
    low, high = np.quantile(counted, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high), level)


def check_level(level: float) -> float:
    """The probability of an interval; raises ConfigError unless it is in (0, 1)."""
    number = real_number("level", level, "a number in (0, 1)")
    if not 0.0 < number < 1.0:
        raise ConfigError(f"Expected level to be in (0, 1), such as 0.95, but got {level!r}.")
    return number
