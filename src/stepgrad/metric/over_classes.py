"""One number of the classes': their mean, a weighted mean, or the worst of them; and what each class has to do with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stepgrad.errors import ConfigError, InputError, not_negative, one_of
from stepgrad.metric.list_metric import ListMetric

OVER_CLASSES = ["mean", "worst"]


@dataclass(frozen=True)
class MAPResult:
    """mAP and the AP of each class (nan for a class that is left out because it has no objects)."""

    map: float
    ap: Tensor  # (K,) float64

    def __float__(self) -> float:
        return self.map


def mean_over_classes(ap: NDArray[np.float64], present: NDArray[np.bool_], absent_classes: str) -> float:
    """The mean, correctly rounded, over all classes ("zero") or those present ("skip"); 0 without any."""
    counted = ap if absent_classes == "zero" else ap[present]
    return math.fsum(counted.tolist()) / len(counted) if len(counted) else 0.0


def result_of(ap: NDArray[np.float64], present: NDArray[np.bool_], absent_classes: str) -> MAPResult:
    """The mean over classes, with classes left out of it shown as nan."""
    shown = ap if absent_classes == "zero" else np.where(present, ap, np.nan)
    return MAPResult(mean_over_classes(ap, present, absent_classes), torch.from_numpy(shown))


@dataclass(frozen=True)
class ClassesResult:
    """What the classes amount to."""

    value: float
    by_class: Tensor  # (K,) float64; nan for a class that is left out
    weights: list[float]  # of each class in the value ...
    total: float  # ... once divided by this

    def slopes(self, outer: float) -> list[float]:
        """By the chain rule, the derivative in each class's value of what has the derivative `outer` in the joined one."""
        return [outer * weight / self.total for weight in self.weights]


@dataclass(frozen=True)
class OverClasses:
    """How the values of the classes become one."""

    classes: str = "mean"
    class_weights: tuple[float, ...] | None = None
    absent_classes: str = "zero"

    def __post_init__(self) -> None:
        one_of("classes", self.classes, OVER_CLASSES)
        if self.class_weights is not None and self.classes == "worst":
            raise ConfigError("Expected no class_weights for the worst class: it is the worst whatever it weighs.")

    def join(self, metric: ListMetric, values: Sequence[float], objects: Sequence[int]) -> ClassesResult:
        """The classes' values, and how many objects each has, as one value."""
        plain = np.array(values, dtype=np.float64)
        present = np.array([P > 0 for P in objects], dtype=np.bool_)
        counted = self.counted(metric, present)
        value, weights = self._joined(metric, plain, counted)
        total = math.fsum(weights.tolist()) or 1.0
        return ClassesResult(value, torch.from_numpy(np.where(counted, plain, np.nan)), weights.tolist(), total)

    def counted(self, metric: ListMetric, present: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which classes count, of those with objects and those without.

        A class without objects is counted if the metric has a value for it, or as 0 if `absent_classes` is "zero" and 0 is the
        worst value there is.
        """
        zero = self.absent_classes == "zero" and metric.higher_is_better and self.classes != "worst"
        return np.ones_like(present) if zero or not metric.needs_objects else present

    def _joined(
        self, metric: ListMetric, values: NDArray[np.float64], counted: NDArray[np.bool_]
    ) -> tuple[float, NDArray[np.float64]]:
        """The value, and what each class weighs in it."""
        weights = counted.astype(np.float64)
        if not counted.any():
            return 0.0, weights
        if self.classes == "worst":
            worst = values[counted].min() if metric.higher_is_better else values[counted].max()
            return float(worst), (counted & (values == worst)).astype(np.float64)  # equally bad classes share the blame
        if self.class_weights is None:
            return mean_over_classes(values, counted, "skip"), weights
        weights *= self.class_weights
        weights /= weights.max() or 1.0  # so that no product is too large or too small for a float
        total = math.fsum(weights.tolist())
        return (math.fsum((weights * values).tolist()) / total if total else 0.0), weights


def check_class_weights(class_weights: Sequence[float] | Tensor | None, num_classes: int) -> tuple[float, ...] | None:
    """The weights as floats; raises unless there is one >= 0 per class and not all are 0."""
    if class_weights is None:
        return None
    given = class_weights.tolist() if isinstance(class_weights, (Tensor, np.ndarray)) else class_weights
    if isinstance(given, (str, bytes)) or not isinstance(given, Sequence) or len(given) != num_classes:
        raise InputError(
            f"Expected class_weights to be {num_classes} numbers, one per class, but got {class_weights!r}."
        )
    weights = tuple(not_negative(f"class_weights[{c}]", weight) for c, weight in enumerate(given))
    if not any(weights):
        raise ConfigError("Expected some class weight above 0 but all are 0.")
    return weights
