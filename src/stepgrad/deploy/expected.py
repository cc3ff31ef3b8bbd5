"""What thresholds are worth on new images, with intervals over images.

On the images that a threshold was chosen by it looks better than it is. Where every image is counted at the threshold that
others lead to, it looks a little worse, as fewer images choose. The truth is between the two, nearer to the second: two thirds of
the way are told. How far that can be off follows from three things: how much images differ from each other, how far the two are
apart, and how few detections there are. `python -m experiments.promises` counts how often such intervals hold the truth.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from stepgrad.deploy.wish import Wish
from stepgrad.evaluation.intervals import Interval
from stepgrad.number_text import metric_text

Floats = NDArray[np.float64]
WITHIN = 1 / 3
"""The weight of what is counted on the images that chose; the rest is that of the cross-validated count."""


@dataclass(frozen=True)
class ExpectedNumber:
    """A number on new images like these, and the interval that holds it with the probability asked for."""

    value: float
    interval: Interval

    def to_dict(self) -> dict[str, float | list[float] | None]:
        """Plain numbers for json."""
        return {"value": None if math.isnan(self.value) else self.value, "interval": self.interval.to_list()}


@dataclass(frozen=True)
class Expected:
    """What to expect of new images: precision, recall, F1 and, if costs count, the cost of 100 images."""

    aim: str
    """Which of the numbers the threshold was chosen for."""
    numbers: Mapping[str, ExpectedNumber]

    @property
    def value(self) -> float:
        return self.numbers[self.aim].value

    @property
    def interval(self) -> Interval:
        return self.numbers[self.aim].interval

    def __getitem__(self, name: str) -> ExpectedNumber:
        return self.numbers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.numbers)

    def __float__(self) -> float:
        return self.value

    def cells(self) -> list[str]:
        """Each number with its interval, as people read them; a dash where there is none."""
        return [_text(name, number) for name, number in self.numbers.items()]

    def to_dict(self) -> dict[str, dict[str, float | list[float] | None]]:
        """Plain numbers for json."""
        return {name: number.to_dict() for name, number in self.numbers.items()}


def _text(name: str, number: ExpectedNumber) -> str:
    if math.isnan(number.value):
        return "-"
    ends = "" if math.isnan(number.interval.low) else f" ({number.interval.text(name)})"
    return metric_text(name, number.value) + ends


@dataclass(frozen=True)
class Seen:
    """(3, units) right detections that pass, all that pass, and objects of each unit (an image, or a group of images)."""

    within: Floats
    """At the threshold that all units lead to."""
    beyond: Floats
    """Each unit at the threshold that others lead to."""


@dataclass(frozen=True)
class Estimate:
    """A number of one class, or of all, and what its interval follows from."""

    value: float
    pulls: Floats
    """(units,) how far each unit pulls the number away from what the others say."""
    units: NDArray[np.bool_]
    """(units,) those that have a say in it."""
    apart: float
    """What the number is within, minus what it is beyond."""
    doubt: float
    """Variance, since the truth lies somewhere between the two."""
    size: float
    """The number of detections or objects; infinite where nothing passes, which needs none."""
    alone: float
    """Variance of so many independent ones: the least that there can be."""

    def expected(self, name: str, level: float) -> ExpectedNumber:
        """The number with its interval."""
        if math.isnan(self.value):
            return ExpectedNumber(math.nan, Interval(math.nan, math.nan, level))
        count = int(np.count_nonzero(self.units))
        spread = count / max(count - 1, 1)
        variance = max(spread * float(self.pulls @ self.pulls) + self.doubt, self.alone)
        z = student_quantile((1 + level) / 2, max(count - 1, 1))
        ends = _positive_ends if name == "cost" else _share_ends
        low, high = ends(self.value, variance, self.size, z)
        # rounding may leave the value a hair outside
        return ExpectedNumber(self.value, Interval(min(low, self.value), max(high, self.value), level))


def expected_of(classes: Iterable[Seen], wish: Wish, level: float) -> list[Expected]:
    """What to expect of each class, then of all: the mean over the classes that have objects; costs are summed."""
    found: list[Expected] = []
    together: dict[str, _Sum] = {name: _Sum() for name in wish.numbers}
    for seen in classes:
        estimates = {name: estimate(name, seen, wish) for name in wish.numbers}
        found.append(Expected(wish.aim, {name: e.expected(name, level) for name, e in estimates.items()}))
        has_objects = bool(seen.within[2].any())
        for name, one in estimates.items():
            if (has_objects or name == "cost") and not math.isnan(one.value):
                together[name].add(one)
    joined = {name: total.joined(name != "cost").expected(name, level) for name, total in together.items()}
    return [*found, Expected(wish.aim, joined)]


def estimate(name: str, seen: Seen, wish: Wish) -> Estimate:
    """A number of one class, between `within` and `beyond`."""
    above, below = wish.sides(name, WITHIN * seen.within + (1 - WITHIN) * seen.beyond)
    total = float(below.sum())
    units = above > 0 if name == "cost" else below > 0
    if total == 0 or (name == "f1" and not seen.within[2].any()):
        return Estimate(math.nan, np.zeros(len(below)), units, apart=0.0, doubt=0.0, size=0.0, alone=0.0)
    value = float(above.sum()) / total
    apart = _ratio(*wish.sides(name, seen.within)) - _ratio(*wish.sides(name, seen.beyond))
    apart = 0.0 if math.isnan(apart) else apart
    nothing_passes = not (seen.within[1].any() or seen.beyond[1].any())  # then recall and F1 are 0 on any images
    return Estimate(
        value,
        (above - value * below) / total,
        units,
        apart,
        doubt=(apart / 2) ** 2,
        size=math.inf if nothing_passes else total,
        alone=0.0 if name == "cost" else value * (1 - value) / total,
    )


def student_quantile(share: float, freedom: int) -> float:
    """Student's quantile by its expansion around the normal one (Abramowitz & Stegun 26.7.5).

    >>> round(student_quantile(0.975, 10), 3), round(student_quantile(0.975, 1000), 3)
    (2.228, 1.962)
    """
    z = NormalDist().inv_cdf(share)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / freedom**n for n, term in enumerate(terms, 1))


def _share_ends(value: float, variance: float, size: float, z: float) -> tuple[float, float]:
    """Wilson's interval of a share, with as many detections as would have this variance."""
    if math.isinf(size):
        return value, value
    count = value * (1 - value) / variance if variance > 0 and 0 < value < 1 else size
    middle = (value * count + z * z / 2) / (count + z * z)
    half = z * math.sqrt(value * (1 - value) * count + z * z / 4) / (count + z * z)
    return max(middle - half, 0.0), min(middle + half, 1.0)


def _positive_ends(value: float, variance: float, size: float, z: float) -> tuple[float, float]:
    """The same for a sum that is never negative, by the score interval of Poisson's distribution."""
    if variance == 0:
        return value, value
    count = value * value / variance
    middle, half = count + z * z / 2, z * math.sqrt(count + z * z / 4)
    return value * max(middle - half, 0.0) / count, value * (middle + half) / count


def _ratio(above: Floats, below: Floats) -> float:
    total = float(below.sum())
    return float(above.sum()) / total if total > 0 else math.nan


class _Sum:
    """Estimates of classes, added up one by one: with a thousand classes their pulls do not fit into memory."""

    def __init__(self) -> None:
        self.count = 0
        self.value = self.apart = self.doubt = self.alone = self.inverse_sizes = 0.0
        self.pulls: Floats | None = None
        self.units: NDArray[np.bool_] | None = None

    def add(self, one: Estimate) -> None:
        self.count += 1
        self.value += one.value
        self.apart += one.apart
        self.doubt += one.doubt
        self.alone += one.alone
        self.inverse_sizes += 1 / one.size
        self.pulls = one.pulls if self.pulls is None else self.pulls + one.pulls
        self.units = one.units if self.units is None else self.units | one.units

    def joined(self, mean: bool) -> Estimate:
        """The sum, or the mean."""
        if self.pulls is None or self.units is None:
            none = np.zeros(0)
            return Estimate(math.nan, none, none > 0, apart=0.0, doubt=0.0, size=0.0, alone=0.0)
        by = self.count if mean else 1
        return Estimate(
            self.value / by,
            self.pulls / by,
            self.units,
            self.apart / by,
            # Where each class lies between the two is its own affair. Where they lie on average concerns all: the mean square
            # distance of what is told from a truth that may be anywhere between is a ninth of their distance's square.
            doubt=self.doubt / by**2 + (self.apart / by) ** 2 / 9,
            size=math.inf if self.inverse_sizes == 0 else by**2 / self.inverse_sizes,
            alone=self.alone / by**2,
        )
