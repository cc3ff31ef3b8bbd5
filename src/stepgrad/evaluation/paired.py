"""Two results on the same images: which is ahead, and whether these images can tell.

Both are resampled together, so that images which are hard for both cancel out: a difference is far surer than the two numbers.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepgrad.errors import InputError
from stepgrad.evaluation.intervals import FewObjects, Interval, check_level, interval_of, judged_lists, units_of
from stepgrad.evaluation.metrics import AnyMetric
from stepgrad.evaluation.records import Evidence
from stepgrad.evaluation.resampling import JudgedList, Resamples, resample
from stepgrad.evaluation.result import EvaluationResult
from stepgrad.evaluation.tables import plain_table
from stepgrad.metric.list_metric import ListMetric
from stepgrad.metric.metrics import AVERAGE_PRECISION
from stepgrad.metric.options import get_metric
from stepgrad.metric.over_classes import OverClasses
from stepgrad.metric.protocol import Protocol
from stepgrad.names import ImageId
from stepgrad.number_text import metric_text

Floats = NDArray[np.float64]
_BLOCK = 4_000_000  # weights at a time
_ROUND = 100  # images that would be needed are told to two digits above this


@dataclass(frozen=True)
class ClassDifference:
    """One class of two results: values, and the difference B - A with its interval."""

    name: str
    values: tuple[float, float]
    difference: float
    interval: Interval
    objects: int


@dataclass(frozen=True, eq=False)
class PairedComparison:
    """Two results on the same images. `print` says who is ahead, and a table says in which classes."""

    names: tuple[str, str]
    metric: str
    protocol: str
    values: tuple[float, float]
    difference: float
    """B - A."""
    interval: Interval
    ahead: float
    """The share of resamples in which B is better, moved as for the interval; of those that are equal, half."""
    by_class: tuple[ClassDifference, ...]
    images: int
    images_needed: int | None
    """Images like these that would tell the two apart; None if they cannot be told from the same."""
    higher_is_better: bool
    pair: Pairing

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves 0 out. A single image, drawn again and again, says nothing of others."""
        return self.images > 1 and (self.interval.low > 0.0 or self.interval.high < 0.0)

    @property
    def sentence(self) -> str:
        """Who is ahead, by how much, and whether these images can tell."""
        better = self.difference > 0 if self.higher_is_better else self.difference < 0
        a, b = self.names if better else self.names[::-1]
        sign = 1 if (self.difference >= 0) else -1
        low, high = sorted((sign * self.interval.low, sign * self.interval.high))
        text = lambda value: metric_text(self.metric, value)  # noqa: E731
        if self.difference == 0.0 and low == high:
            return f"{self.names[0]} and {self.names[1]} are level on {self._these}."
        said = f"{b} is ahead of {a} by {text(abs(self.difference))} ({text(low)} to {text(high)})"
        if self.images < 2:
            return f"{b} is ahead of {a} by {text(abs(self.difference))}: a single image cannot tell."
        if self.is_clear:
            return f"{said} on {self._these}."
        enough = f"; about {_rounded(self.images_needed):,} would" if self.images_needed else ""
        return f"{said}: {self._these} cannot tell{enough}."

    @property
    def _these(self) -> str:
        """What was drawn from, in words."""
        grouped = self.images != len(self.pair.image_ids)
        return f"these {self.images} {'groups of images' if grouped else 'images'}"

    @property
    def resampled(self) -> str:
        """Both values, and in how many resamples the second was ahead, in words."""
        a, b = (f"{name} {metric_text(self.metric, v)}" for name, v in zip(self.names, self.values, strict=True))
        share = f"{self.names[1]} is ahead in {100 * self.ahead:.1f} % of {self.pair.draws.resamples} resamples"
        return f"{self.protocol}, {'mAP' if self.metric == 'ap' else self.metric}: {a}, {b}; {share}"

    def effects(self, most: int = 20) -> list[tuple[ImageId, float]]:
        """The images (or groups of them) that made the difference, and how much each of them made, the largest first."""
        without = np.concatenate([np.zeros(0), *map(self.pair.differences, self.pair.leave_one_out())])
        change = self.difference - without
        order = np.argsort(-np.abs(change), kind="stable")[:most]
        return [(self.pair.unit_names[i], float(change[i])) for i in order if change[i] != 0.0]

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Headings, and a row per class, those that differ most first."""
        text = lambda value: metric_text(self.metric, value)  # noqa: E731
        rows = [
            [
                c.name,
                str(c.objects),
                *map(text, c.values),
                text(c.difference),
                f"{text(c.interval.low)} to {text(c.interval.high)}",
            ]
            for c in sorted(self.by_class, key=lambda c: -abs(c.difference))
        ]
        return ["class", "objects", *self.names, "difference", f"{100 * self.interval.level:g}% interval"], rows

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and lists for json."""
        plain = {
            name: getattr(self, name)
            for name in ("metric", "protocol", "difference", "ahead", "images", "images_needed")
        }
        return {
            **plain,
            "names": list(self.names),
            "values": list(self.values),
            "interval": list(self.interval),
            "level": self.interval.level,
            "resamples": self.pair.draws.resamples,
            "seed": self.pair.draws.seed,
            "sentence": self.sentence,
            "classes": [
                {"name": c.name, "values": list(c.values), "difference": c.difference, "interval": list(c.interval)}
                for c in self.by_class
            ],
        }

    def __str__(self) -> str:
        return f"{self.sentence}\n{self.resampled}\n{plain_table(*self.table())}"


@dataclass(frozen=True, eq=False)
class Pairing:
    """The lists of two results whose images correspond, ready to be resampled together."""

    lists: tuple[list[JudgedList], list[JudgedList]]
    metric: ListMetric
    protocol: Protocol
    draws: Resamples
    image_ids: Sequence[ImageId]

    def samples(self, weights: NDArray[np.uint8]) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
        """Values (R,) and values by class (R, K) of both."""
        over = OverClasses(absent_classes=self.protocol.absent_classes)
        both = [resample(lists, self.metric, self.protocol, weights, self.draws, over) for lists in self.lists]
        return (both[0].values, both[1].values), (both[0].by_class, both[1].by_class)

    def differences(self, weights: NDArray[np.uint8]) -> Floats:
        """(R,) B - A."""
        (a, b), _ = self.samples(weights)
        return b - a

    def leave_one_out(self) -> Iterator[NDArray[np.uint8]]:
        """Every unit once but one, each in turn: blocks of rows (some, units)."""
        rows = max(1, _BLOCK // max(1, self.draws.units))
        for first in range(0, self.draws.units, rows):
            left_out = np.arange(first, min(first + rows, self.draws.units))
            weights = np.ones((len(left_out), self.draws.units), dtype=np.uint8)
            weights[np.arange(len(left_out)), left_out] = 0
            yield weights

    @cached_property
    def unit_names(self) -> list[ImageId]:
        """The first image of each unit."""
        first = np.unique(self.draws.unit, return_index=True)[1]
        return [self.image_ids[i] for i in first]


def compare(
    a: EvaluationResult,
    b: EvaluationResult,
    *,
    metric: AnyMetric | None = None,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
    groups: Sequence[Hashable] | None = None,
    names: tuple[str, str] = ("A", "B"),
) -> PairedComparison:
    """Whether B is ahead of A on the same images, by mAP or another metric, and how sure that is.

    Args:
        a: a result of `Evaluator.compute()`.
        b: another, of the same images and classes under the same protocol.
        metric: as for `Evaluator`; None: mAP.
        level: the probability of the interval.
        resamples: how often the images are drawn anew, for both together.
        seed: of the draws.
        groups: the group of each image of `a`, in its order, if some belong together (frames of a clip).
        names: what the two are called.

    >>> import torch
    >>> from stepgrad.evaluation import Evaluator
    >>> results = []
    >>> for scores in ([0.9, 0.1], [0.1, 0.9]):
    ...     evaluator = Evaluator(1)
    ...     boxes = torch.tensor([[0.0, 0, 10, 10], [50, 0, 60, 10]])
    ...     found = {"boxes": boxes, "scores": torch.tensor(scores), "labels": torch.tensor([0, 0])}
    ...     evaluator.update([found] * 4, [{"boxes": boxes[:1], "labels": torch.tensor([0])}] * 4)
    ...     results.append(evaluator.compute())
    >>> print(compare(*results, names=("before", "after")).sentence)
    before is ahead of after by 50.0 (50.0 to 50.0) on these 4 images.
    """
    check_level(level)
    resolved = AVERAGE_PRECISION if metric is None else get_metric(metric)
    pair = _paired(a, b, resolved, resamples, seed, groups)
    values = [one.metric(resolved).value if resolved.area is None else math.nan for one in (a, b)]
    (drawn_a, drawn_b), (classes_a, classes_b) = pair.samples(pair.draws.weights)
    once = np.ones((1, pair.draws.units), dtype=np.uint8)
    (now_a, now_b), (by_a, by_b) = pair.samples(once)
    if resolved.area is not None:
        values = [float(now_a[0]), float(now_b[0])]
    difference = values[1] - values[0]
    differences = drawn_b - drawn_a
    units = units_of(pair.lists[0], pair.draws)
    better = differences if resolved.higher_is_better else -differences
    return PairedComparison(
        names=names,
        metric=resolved.name,
        protocol=a.protocol.name,
        values=(values[0], values[1]),
        difference=difference,
        interval=interval_of(differences, level, difference, FewObjects.of_mean(classes_b - classes_a, units)),
        ahead=float((better > 0).mean() + (better == 0).mean() / 2),
        by_class=_by_class(a, (by_a[0], by_b[0]), classes_b - classes_a, units, pair.lists[0], level),
        images=pair.draws.units,
        images_needed=_images_needed(differences, difference, pair.draws.units, level),
        higher_is_better=resolved.higher_is_better,
        pair=pair,
    )


def _paired(
    a: EvaluationResult,
    b: EvaluationResult,
    metric: ListMetric,
    resamples: int,
    seed: int,
    groups: Sequence[Hashable] | None,
) -> Pairing:
    """The lists of both over the images of A; raises InputError where they cannot be compared."""
    evidence, other = (_evidence_of(one) for one in (a, b))
    if a.protocol != b.protocol:
        raise InputError(
            f"Expected two results under one protocol but got {a.protocol.name!r} and {b.protocol.name!r}; for two protocols "
            "on the same detections see `Evaluator.compare`."
        )
    if evidence.class_names != other.class_names:
        raise InputError("Expected two results with the same classes but their names differ.")
    place = {image_id: i for i, image_id in enumerate(evidence.image_ids)}
    missing = [image_id for image_id in other.image_ids if image_id not in place]
    if missing or len(other.image_ids) != len(place):
        example = f", such as {missing[0]}" if missing else ""
        raise InputError(
            f"Expected two results on the same images but A has {len(place)} and B {len(other.image_ids)}, of which A lacks "
            f"{len(missing)}{example}; judge both on the same images."
        )
    lists = [judged_lists(one.classes, ev, one.protocol, metric) for one, ev in ((a, evidence), (b, other))]
    moved = np.array([place[image_id] for image_id in other.image_ids], dtype=np.int32)
    lists[1] = [
        JudgedList(moved[judged.images], judged.verdicts, moved[judged.object_images], judged.scores)
        for judged in lists[1]
    ]
    draws = Resamples.of(evidence.num_images, resamples, seed, groups)
    return Pairing((lists[0], lists[1]), metric, a.protocol, draws, evidence.image_ids)


def _evidence_of(result: EvaluationResult) -> Evidence:
    if result.evidence is None:
        raise InputError("Expected a result of `Evaluator.compute()` but this one does not hold its detections.")
    return result.evidence


def _by_class(
    a: EvaluationResult,
    now: tuple[Floats, Floats],
    drawn: Floats,
    units: Sequence[int],
    lists: Sequence[JudgedList],
    level: float,
) -> tuple[ClassDifference, ...]:
    return tuple(
        ClassDifference(
            name=row.name,
            values=(float(now[0][c]), float(now[1][c])),
            difference=float(now[1][c] - now[0][c]),
            interval=interval_of(drawn[:, c], level, float(now[1][c] - now[0][c]), FewObjects.of_units(units[c])),
            objects=len(lists[c].object_images),
        )
        for c, row in enumerate(a.classes)
        if len(lists[c].object_images)
    )


def _images_needed(differences: Floats, difference: float, images: int, level: float) -> int | None:
    """How many images like these would make an interval of this level end at 0; its width falls with their square root."""
    spread = float(differences.std(ddof=1)) if len(differences) > 1 else 0.0
    if difference == 0.0 or spread == 0.0:
        return None
    return math.ceil(images * (NormalDist().inv_cdf((1 + level) / 2) * spread / abs(difference)) ** 2)


def _rounded(number: int) -> int:
    """A number to two digits.

    >>> _rounded(1873), _rounded(96)
    (1900, 96)
    """
    return number if number < _ROUND else int(float(f"{number:.1e}"))
