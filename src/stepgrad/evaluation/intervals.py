"""How sure a number is: the interval in which it would lie on other images like these."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepgrad.errors import ConfigError, real_number
from stepgrad.evaluation.class_result import ClassResult
from stepgrad.evaluation.counted import countable
from stepgrad.evaluation.judge import judge
from stepgrad.evaluation.records import Evidence
from stepgrad.evaluation.resampling import JudgedList, Resamples, resample, written_out
from stepgrad.metric.list_metric import COST_AT_CUT, LEVELS, ListMetric
from stepgrad.metric.over_classes import OverClasses
from stepgrad.metric.protocol import Protocol
from stepgrad.number_text import metric_text

Floats = NDArray[np.float64]
FEW_IMAGES = 20
"""Images with objects of a class below which its interval is too narrow to be relied on."""
RESAMPLES = 1000
_SHOWN = 10  # classes in a line of text


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

    def text(self, metric: str = "ap") -> str:
        """Both ends as people read them.

        >>> Interval(0.511, 0.534).text()
        '51.1 to 53.4'
        """
        return f"{metric_text(metric, self.low)} to {metric_text(metric, self.high)}"

    def to_list(self) -> list[float] | None:
        """Both ends for json; None where there is no interval."""
        return None if math.isnan(self.low) else [self.low, self.high]


@dataclass(frozen=True, eq=False)
class Intervals:
    """The interval of a metric over all classes, and that of each class."""

    metric: str
    value: Interval
    by_class: tuple[Interval | None, ...]
    """None for a class without objects."""
    images: int
    """Images, or groups of them, that were drawn from."""
    resamples: int
    seed: int
    few: tuple[int, ...]
    """Labels of classes whose objects lie in so few images that their intervals say little."""

    def note(self, names: Sequence[str]) -> str:
        """Which classes the interval says little about, in words; nothing where there are none."""
        if self.images < FEW_IMAGES:
            return f"too few images ({self.images}) to say how sure these numbers are"
        if not self.few:
            return ""
        shown = ", ".join(names[label] for label in self.few[:_SHOWN])
        more = f" and {len(self.few) - _SHOWN} more" if len(self.few) > _SHOWN else ""
        return f"objects in fewer than {FEW_IMAGES} images, so that their own intervals say little: {shown}{more}"

    def to_dict(self) -> dict[str, Any]:
        """How the intervals were found, for json."""
        return {"level": self.value.level, "resamples": self.resamples, "seed": self.seed, "units": self.images}


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
    resamples: int = RESAMPLES,
    seed: int = 0,
    groups: Sequence[Hashable] | None = None,
    over: OverClasses | None = None,
) -> Intervals:
    """Intervals by resampling images, or groups of them, with repetition."""
    check_level(level)
    draws = Resamples.of(evidence.num_images, resamples, seed, groups)
    lists = judged_lists(classes, evidence, protocol, metric)
    over = over or OverClasses(absent_classes=protocol.absent_classes)
    once = np.ones((1, draws.units), dtype=np.uint8)
    now, samples = (resample(lists, metric, protocol, w, draws, over) for w in (once, draws.weights))
    units, bounds = units_of(lists, draws), bounds_of(metric)
    return Intervals(
        metric=metric.name,
        value=interval_of(
            samples.values, level, float(now.values[0]), FewObjects.of_mean(samples.by_class, units), bounds
        ),
        by_class=tuple(
            interval_of(samples.by_class[:, c], level, float(now.by_class[0, c]), FewObjects.of_units(n), bounds)
            if n
            else None
            for c, n in enumerate(units)
        ),
        images=draws.units,
        resamples=resamples,
        seed=seed,
        few=tuple(c for c, n in enumerate(units) if 0 < n < FEW_IMAGES),
    )


def units_of(lists: Sequence[JudgedList], draws: Resamples) -> list[int]:
    """In how many units the objects of each class lie."""
    return [len(np.unique(draws.unit[judged.object_images])) for judged in lists]


class FewObjects(NamedTuple):
    """What resamples leave out: they differ too little where the objects of a class lie in few images.

    Resampling n units spreads a value (n - 1) / n as much as drawing n new ones does, in squares, and how far it spreads is
    itself known from n units only, which is what Student's t is for. Here n is the number of units with objects of the class.
    For a mean over classes, as for any sum of estimates, the degrees of freedom are Welch's.
    """

    spread: float = 1.0
    """By how much resamples differ too little."""
    freedom: float = math.inf
    """Degrees of freedom of the spread."""

    @classmethod
    def of_units(cls, units: int) -> FewObjects:
        """Of one class, with objects in so many units."""
        n = max(units, 2)
        return cls(math.sqrt(n / (n - 1)), n - 1)

    @classmethod
    def of_mean(cls, by_class: Floats, units: Sequence[int]) -> FewObjects:
        """Of a mean over classes, from their resamples (R, K)."""
        n = np.maximum(np.asarray(units), 2)
        known = (~np.isnan(by_class)).sum(axis=0) > 1
        variance = np.array([np.nanvar(column) for column in by_class.T[known]])
        total = variance.sum()
        if total == 0.0:
            return cls()
        unbiased = variance * (n / (n - 1))[known]
        freedom = unbiased.sum() ** 2 / (unbiased**2 / (n - 1)[known]).sum()
        return cls(math.sqrt(unbiased.sum() / total), float(freedom))


def student_quantile(share: float, freedom: float) -> float:
    """Quantile of Student's t by the series of Fisher and Cornish; to 1 % from 2 degrees of freedom on, for 95 %.

    >>> [round(student_quantile(0.975, n), 3) for n in (2, 5, 20, math.inf)]
    [4.271, 2.57, 2.086, 1.96]
    """
    z = NormalDist().inv_cdf(share)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return sum(term / freedom**power for power, term in enumerate(terms))


def interval_of(
    samples: Floats,
    level: float,
    value: float,
    few: FewObjects | None = None,
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> Interval:
    """The interval of a value from its resamples, corrected for bias (Efron's BC) and for classes with few objects; resamples
    without a value are left out. `bounds` are those of the metric.

    Copies of an image in a resample agree with each other, so its AP is higher than that of as many different images, and more of
    the resamples lie above the value than below. The correction takes quantiles as far below the usual ones as that share says.
    """
    counted = samples[~np.isnan(samples)]
    if len(counted) == 0 or math.isnan(value):
        return Interval(math.nan, math.nan, level)
    normal = NormalDist()
    few = few or FewObjects()
    tail = student_quantile((1 + level) / 2, few.freedom)
    below = (np.count_nonzero(counted < value) + 0.5 * np.count_nonzero(counted == value)) / len(counted)
    # A shift of more than the tail would leave the value outside of its own interval.
    bias = float(np.clip(normal.inv_cdf(float(np.clip(below, 1e-9, 1 - 1e-9))), -tail, tail))
    ends = np.quantile(counted, [normal.cdf(2 * bias - tail), normal.cdf(2 * bias + tail)])
    low, high = np.clip(value + few.spread * (ends - value), *bounds).tolist()
    # Between two resamples a quantile is interpolated, and may pass the value by a little.
    return Interval(min(low, value), max(high, value), level)


def bounds_of(metric: ListMetric) -> tuple[float, float]:
    """Between which numbers a metric lies: shares do between 0 and 1, prices and one's own functions anywhere."""
    shares = metric.is_compiled and metric.code(0, 0).kind != COST_AT_CUT
    return (0.0, 1.0) if shares else (-math.inf, math.inf)


def check_level(level: float) -> float:
    """The probability of an interval; raises ConfigError unless it is in (0, 1)."""
    number = real_number("level", level, "a number in (0, 1)")
    if not 0.0 < number < 1.0:
        raise ConfigError(f"Expected level to be in (0, 1), such as 0.95, but got {level!r}.")
    return number


def affordable(
    detections: int, classes: int, protocol: Protocol, metrics: Sequence[ListMetric], resamples: int = RESAMPLES
) -> bool:
    """Whether intervals of these metrics take at most as long as `stepgrad evaluate` takes without them.

    That is 3 s to start and 20 us per detection to read and to judge it, measured with 1,000 to 500,000 detections on 2 cores.
    A step of a resample (a detection at one threshold) takes at most 1 ns, of
    metrics without recall levels 2.5 ns; where lists are written out, 40 ns and 80 us per list.
    """
    thresholds = len(protocol.match_thresholds)
    seconds = 0.0
    for metric in metrics:
        if written_out(metric, protocol):
            seconds += resamples * thresholds * (8e-5 * classes + 4e-8 * detections)
        else:
            step = 1e-9 if metric.code(0, 0).kind == LEVELS else 2.5e-9
            seconds += resamples * thresholds * step * detections
    return seconds <= 3.0 + 2e-5 * detections
