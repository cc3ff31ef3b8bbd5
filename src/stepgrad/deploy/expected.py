"""What thresholds are worth on new images: cross-validated, with intervals over images.

On the images that a threshold was chosen by it looks better than it is. So every image is counted at the threshold that other
images lead to. Images are then drawn anew, with repetition, for the interval of each number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepgrad.deploy.wish import Wish
from stepgrad.evaluation.intervals import Interval, interval_of
from stepgrad.number_text import metric_text

Floats = NDArray[np.float64]
Counts = tuple[Floats, Floats, Floats]


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


def expected_of(counts: Sequence[Floats], wish: Wish, weights: NDArray[np.uint8], level: float) -> list[Expected]:
    """What to expect of each class, then of the mean over classes (costs are summed).

    Args:
        counts: of each class (3, units): right detections that pass, all that pass, objects.
        wish: which numbers to tell.
        weights: (R, units) how often each resample draws each unit.
        level: the probability of the intervals.
    """
    units = weights.shape[1]
    once = np.ones((1, units), dtype=np.uint8)
    now, drawn = ([_rates(_drawn(one, w), wish, units) for one in counts] for w in (once, weights))
    now.append(_joined(now))
    drawn.append(_joined(drawn))
    return [
        Expected(
            wish.aim,
            {
                name: _number(float(value[name][0]), samples[name], level) if name in value else _NOTHING
                for name in wish.numbers
            },
        )
        for value, samples in zip(now, drawn, strict=True)
    ]


_NOTHING = ExpectedNumber(math.nan, Interval(math.nan, math.nan))


def _number(value: float, samples: Floats, level: float) -> ExpectedNumber:
    return ExpectedNumber(value, interval_of(samples, level, value))


def _drawn(counts: Floats, weights: NDArray[np.uint8]) -> Floats:
    """(3, R) sums over the units drawn; units without anything of the class are left out."""
    there = np.flatnonzero(counts.any(axis=0))
    return np.asarray(counts[:, there] @ weights[:, there].T.astype(np.float64))


def _rates(drawn: Floats, wish: Wish, units: int) -> dict[str, Floats]:
    found, counted, objects = drawn
    return wish.rates(found, counted, objects, images=np.full(len(found), float(units)))


def _joined(of_classes: Sequence[Mapping[str, Floats]]) -> dict[str, Floats]:
    """The mean over the classes that have a number, and the sum of costs."""
    joined = {}
    for name in of_classes[0] if of_classes else ():
        values = np.stack([rates[name] for rates in of_classes])
        there = ~np.isnan(values)
        total = np.where(there, values, 0.0).sum(axis=0)
        count = there.sum(axis=0)
        mean = np.divide(total, count, out=np.full(len(total), np.nan), where=count > 0)
        joined[name] = total if name == "cost" else mean
    return joined
