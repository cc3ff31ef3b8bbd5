"""What all metrics of a class's ranked list share."""

from __future__ import annotations

import itertools
import math
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepgrad.errors import ConfigError, real_number
from stepgrad.metric.protocol import Protocol

Hits = NDArray[np.bool_]
Counts = NDArray[np.int64] | int
_NO_POINTS = np.zeros(0, dtype=np.int64)
_NO_LOGS = np.zeros(0)


LARGEST_OF_COCO = 1e5**2
"""Square pixels: the upper bound of pycocotools' "all" areas, which leaves larger boxes out without a word."""
AREAS = {
    "all": (0.0, LARGEST_OF_COCO),
    "small": (0.0, 32.0**2),
    "medium": (32.0**2, 96.0**2),
    "large": (96.0**2, LARGEST_OF_COCO),
}
"""COCO's sizes, in square pixels; both bounds belong to the range."""
LEVELS, BEST_F1, RECALL_AT_PRECISION, MISS_RATE, F1_AT_CUT, COST_AT_CUT = range(6)
"""The kinds of metrics that the engine knows."""


class MetricCode(NamedTuple):
    """A metric as numbers, for the engine; those it does not use are left out."""

    kind: int = LEVELS
    first: float = 0.0  # the precision to reach; the price of a false alarm
    second: float = 0.0  # the price of a miss
    allowed: NDArray[np.int64] = _NO_POINTS  # false positives allowed at each point of the miss rate, increasing
    logs: NDArray[np.float64] = _NO_LOGS  # (P + 1,) log of the miss rate, by the number of objects missed


class ListMetric:
    """Base of the metrics. Frozen dataclasses: two with the same numbers are the same metric."""

    higher_is_better: ClassVar[bool] = True
    is_compiled: ClassVar[bool] = True  # the kernels know it
    needs_objects: ClassVar[bool] = (
        True  # a class without objects has no value of its own: it counts as 0, or is left out
    )
    threshold: float | None = None  # only detections that score at least this count; None: all do
    area: tuple[float, float] | None = None  # only objects of these sizes, in square pixels; None: of all

    @property
    def name(self) -> str:
        """As `get_metric` reads it."""
        raise NotImplementedError

    @property
    def shift_invariant(self) -> bool:
        """Whether adding a constant to all scores changes nothing; what `balance` assumes."""
        return self.threshold is None

    def check_protocol(self, protocol: Protocol) -> None:
        """Raise where sizes are asked for but objects are not matched, or sizes not measured, as COCO does."""
        if self.area is not None and (protocol.duplicates, protocol.overlaps) != ("best_free", "double"):
            raise ConfigError(
                f'Expected a protocol that matches as COCO does (duplicates="best_free", overlaps="double") for {self.name}, '
                f"whose rules are COCO's, but got {protocol.name!r}."
            )

    def of_list(self, hits: Hits, objects: int, images: int, protocol: Protocol) -> float:
        """The value of a list: hits by decreasing score, cut at the threshold if there is one."""
        raise NotImplementedError

    def levels(self, P: int, protocol: Protocol) -> tuple[NDArray[np.int64], int]:
        """Integer weights of the interpolated precisions and their norm, as `Protocol.level_counts`; for AP and its kin."""
        return protocol.level_counts(P)[0], 1

    def code(self, P: int, images: int) -> MetricCode:
        """The metric as the engine takes it."""
        return MetricCode(LEVELS)


def share_of_one(name: str, value: float) -> float:
    """`value` as a float; raises ConfigError unless it is in [0, 1]."""
    number = real_number(name, value, "a number in [0, 1]")
    if not 0.0 <= number <= 1.0:
        raise ConfigError(f"Expected {name} to be in [0, 1] but got {value!r}.")
    return number


def check_threshold(threshold: float | None) -> None:
    """Raise unless this is None or a finite score."""
    if threshold is not None and not math.isfinite(real_number("threshold", threshold, "None or a score")):
        raise ConfigError(f"Expected threshold to be finite but got {threshold!r}.")


def f1_of(right: Counts, counted: Counts, objects: Counts) -> NDArray[np.float64]:
    """F1 of right detections among those that count, where there are so many objects; 0 for nothing of all.

    >>> f1_of(np.array([1, 1]), np.array([1, 3]), 1)
    array([1. , 0.5])
    """
    return np.asarray(2 * right / np.maximum(counted + objects, 1))


def weighted_precision(hits: Hits, counts: NDArray[np.int64], norm: int) -> float:
    """sum_k count_k p_k / norm, correctly rounded: p_k is the best precision at k or more true positives."""
    ranks = np.flatnonzero(hits) + 1
    precision = np.arange(1, len(ranks) + 1) / ranks
    best = np.maximum.accumulate(precision[::-1])[::-1].tolist()
    terms = (itertools.repeat(p, n) for p, n in zip(best, counts[1:].tolist(), strict=False))
    return math.fsum(itertools.chain.from_iterable(terms)) / norm


def area_range(area: object) -> tuple[float, float] | None:
    """Two bounds in square pixels, from COCO's word for them, "low:high" or a pair."""
    if area is None:
        return None
    if isinstance(area, str) and area in AREAS:
        return AREAS[area]
    pair = area.split(":") if isinstance(area, str) else area
    try:
        low, high = (float(bound) for bound in pair)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        low, high = 1.0, 0.0
    if not 0.0 <= low <= high:
        raise ConfigError(f"Expected area to be one of {list(AREAS)} or two bounds in square pixels but got {area!r}.")
    return low, high
