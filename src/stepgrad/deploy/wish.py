"""What a threshold should achieve: the best F1, a precision or a recall that is kept, or the least cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepgrad.errors import ConfigError
from stepgrad.metric.list_metric import ListMetric
from stepgrad.metric.metrics import F1, Cost, PrecisionAtRecall, RecallAtPrecision
from stepgrad.metric.options import get_metric

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
EXAMPLES = ("f1", "precision=0.9", "recall=0.8", "cost@false_alarm=1,miss=10")
SHORT = {"precision=": "recall@precision=", "recall=": "precision@recall="}
"""To keep a precision is to find as much as possible at it, and the other way round."""
NUMBERS = {F1: "f1", RecallAtPrecision: "recall", PrecisionAtRecall: "precision", Cost: "cost"}
"""What each wish makes as good as possible."""
PER_IMAGES = 100
"""A cost is told for so many images."""


@dataclass(frozen=True)
class Wish:
    """What to choose thresholds by: F1, RecallAtPrecision, PrecisionAtRecall or Cost, whose own threshold means nothing here."""

    metric: ListMetric

    @property
    def name(self) -> str:
        """As `wish_of` reads it."""
        if isinstance(self.metric, Cost):
            return f"cost@false_alarm={self.metric.false_alarm:g},miss={self.metric.miss:g}"
        return self.metric.name

    @property
    def aim(self) -> str:
        """What is made as good as possible: "f1", "recall", "precision" or "cost"."""
        return NUMBERS[type(self.metric)]

    @property
    def numbers(self) -> tuple[str, ...]:
        """What is told of new images."""
        return ("precision", "recall", "f1", *(["cost"] if self.aim == "cost" else []))

    def best(self, found: Whole | Floats, counted: Whole, objects: int) -> int:
        """The place of the best cut, among cuts by falling threshold of which the first lets nothing pass.

        A wanted recall that no cut reaches is met as far as possible, by the last cut; for a precision that no cut keeps,
        nothing passes.

        Args:
            found: right detections that pass each cut, counted or expected.
            counted: detections that pass each cut, right or wrong.
            objects: objects that there are to find.
        """
        metric = self.metric
        if isinstance(metric, Cost):
            return int(np.argmin(self.cost(found, counted, objects)))
        if objects == 0:
            return 0
        precision = found / np.maximum(counted, 1)
        if isinstance(metric, RecallAtPrecision):
            return int(np.argmax(np.where(precision >= metric.precision, found, 0)))
        if isinstance(metric, PrecisionAtRecall):
            value = np.where(found / objects >= metric.recall, precision, -1.0)
            # Of equally precise cuts the last finds most; if none reaches the recall, all are equally bad.
            return len(value) - 1 - int(np.argmax(value[::-1]))
        return int(np.argmax(2 * found / np.maximum(counted + objects, 1)))

    def is_kept(self, found: int, counted: int, objects: int) -> bool:
        """Whether a cut with these counts keeps the wanted precision or recall; True where none is wanted."""
        if isinstance(self.metric, RecallAtPrecision):
            return counted > 0 and found / counted >= self.metric.precision
        if isinstance(self.metric, PrecisionAtRecall):
            return objects > 0 and found / objects >= self.metric.recall
        return True

    def cost(self, found: Floats | Whole, counted: Floats | Whole, objects: Floats | Whole | int) -> Floats:
        """The price of false alarms and misses; 0 unless costs are what is wished for."""
        if not isinstance(self.metric, Cost):
            return np.zeros(np.shape(found))
        return np.asarray(self.metric.false_alarm * (counted - found) + self.metric.miss * (objects - found))

    def sides(self, name: str, counts: Floats) -> tuple[Floats, Floats]:
        """One of `numbers` as a ratio of two sums over units, from (3, units) found, counted and objects."""
        found, counted, objects = counts
        if name == "cost":
            return self.cost(found, counted, objects), np.full(len(found), 1 / PER_IMAGES)
        sides = {"precision": (found, counted), "recall": (found, objects), "f1": (2 * found, counted + objects)}
        return sides[name]


def wish_of(wish: str | ListMetric) -> Wish:
    """A wish from its name, or from a metric of `sg.metrics` that a threshold can be chosen by.

    >>> wish_of("precision=0.9").name, wish_of("cost@false_alarm=1,miss=10").name
    ('recall@precision=0.9', 'cost@false_alarm=1,miss=10')
    >>> wish_of("f1@threshold=0.5")
    Traceback (most recent call last):
    stepgrad.errors.ConfigError: Expected something to choose a threshold by, such as f1, precision=0.9, recall=0.8 or \
cost@false_alarm=1,miss=10, but got 'f1@threshold=0.5'.
    """
    metric = get_metric(_spelled_out(wish) if isinstance(wish, str) else wish)
    if type(metric) not in NUMBERS or (isinstance(metric, F1) and metric.threshold is not None):
        raise ConfigError(
            f"Expected something to choose a threshold by, such as {', '.join(EXAMPLES[:-1])} or {EXAMPLES[-1]}, but got "
            f"{wish if isinstance(wish, str) else metric.name!r}."
        )
    return Wish(metric)


def _spelled_out(text: str) -> str:
    """The name of a metric: `Cost` needs a threshold, which is what is looked for here."""
    for short, whole in SHORT.items():
        if text.startswith(short):
            return whole + text[len(short) :]
    word, _, numbers = text.partition("@")
    if word.strip() == "cost" and "threshold=" not in numbers:
        return f"cost@threshold=0{',' if numbers else ''}{numbers}"
    return text
