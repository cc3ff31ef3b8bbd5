"""What all metrics of a class's ranked list share."""

from __future__ import annotations

import itertools
import math
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from stepgrad.errors import ConfigError, real_number
from stepgrad.kernels import metric_code
from stepgrad.kernels.metric_code import MetricCode
from stepgrad.metric.protocol import Protocol

Hits = NDArray[np.bool_]
_NO_POINTS = np.zeros(0, dtype=np.int64)
_NO_LOGS = np.zeros(0)


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

    def code(self, P: int, images: int, cut: int) -> MetricCode:
        """The metric as the kernels take it; `cut` is the slot of the window that stands for the threshold."""
        return code_of(metric_code.LEVELS, P, cut=cut)


def code_of(
    kind: int,
    P: int,
    first: float = 0.0,
    second: float = 0.0,
    cut: int = metric_code.NO_CUT,
    allowed: NDArray[np.int64] = _NO_POINTS,
    logs: NDArray[np.float64] = _NO_LOGS,
) -> MetricCode:
    """A metric in numbers, those it does not use left out."""
    return MetricCode(kind, P, first, second, cut, allowed, logs)


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


def weighted_precision(hits: Hits, counts: NDArray[np.int64], norm: int) -> float:
    """sum_k count_k p_k / norm, correctly rounded: p_k is the best precision at k or more true positives."""
    ranks = np.flatnonzero(hits) + 1
    precision = np.arange(1, len(ranks) + 1) / ranks
    best = np.maximum.accumulate(precision[::-1])[::-1].tolist()
    terms = (itertools.repeat(p, n) for p, n in zip(best, counts[1:].tolist(), strict=False))
    return math.fsum(itertools.chain.from_iterable(terms)) / norm
