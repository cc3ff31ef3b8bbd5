"""The metrics that detectors are deployed by, of judged detections: the numbers `DetectionLoss` trains for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from stepgrad.engine.classes import mean_of
from stepgrad.engine.matching import TRUE_POSITIVE
from stepgrad.evaluation.class_result import ClassResult
from stepgrad.evaluation.judge import judge
from stepgrad.evaluation.records import Evidence
from stepgrad.metric.list_metric import ListMetric
from stepgrad.metric.metrics import F1
from stepgrad.metric.over_classes import OverClasses, check_class_weights
from stepgrad.metric.protocol import Protocol

AnyMetric = str | ListMetric | Callable[..., Any]


@dataclass(frozen=True, eq=False)
class MetricResult:
    """A metric's value over the classes, and that of each class; nan for a class that is left out."""

    name: str
    value: float
    by_class: Tensor  # (K,) float64
    how: str = ""
    """How it was counted: over which classes, at which IoU (or mask IoU, OKS, ...), from which score on."""
    metric: ListMetric | None = field(default=None, repr=False)

    def __float__(self) -> float:
        return self.value


def metric_of(
    rows: Sequence[ClassResult],
    images: int,
    protocol: Protocol,
    metric: ListMetric,
    classes: str = "mean",
    class_weights: Sequence[float] | Tensor | None = None,
    overlap: str = "IoU",
) -> MetricResult:
    """A metric of the detections as they were judged, class by class; `overlap` is the word for what thresholds are on."""
    metric.check_protocol(protocol)
    values = [_class_value(row, metric, images, protocol) for row in rows]
    return _over_classes(protocol, metric, values, [row.objects for row in rows], classes, class_weights, overlap)


def metric_under(
    evidence: Evidence, protocol: Protocol, judged: Sequence[ClassResult], metric: ListMetric
) -> MetricResult:
    """A metric of the detections; for AP by size they are judged again."""
    if metric.area is None:
        return metric_of(judged, evidence.num_images, protocol, metric, overlap=evidence.overlap.word)
    metric.check_protocol(protocol)
    rows = judge(evidence, protocol, metric=metric)
    values, objects = [row.mean_ap for row in rows], [row.P for row in rows]
    return _over_classes(protocol, metric, values, objects, "mean", None, evidence.overlap.word)


def _over_classes(
    protocol: Protocol,
    metric: ListMetric,
    values: list[float],
    objects: list[int],
    classes: str,
    class_weights: Sequence[float] | Tensor | None,
    overlap: str,
) -> MetricResult:
    weights = check_class_weights(class_weights, len(values))
    joined = OverClasses(classes, weights, protocol.absent_classes).join(metric, values, objects)
    how = ", ".join([_of_classes(joined.by_class, classes, weights), *_of_list(metric, protocol, overlap)])
    return MetricResult(metric.name, joined.value, joined.by_class, how, metric)


def _of_classes(by_class: Tensor, classes: str, weights: tuple[float, ...] | None) -> str:
    counted = int((~by_class.isnan()).sum())
    kind = "worst" if classes == "worst" else "mean" if weights is None else "weighted mean"
    return f"{kind} of {counted} {'class' if counted == 1 else 'classes'}"


def _of_list(metric: ListMetric, protocol: Protocol, overlap: str) -> Iterator[str]:
    """The thresholds on overlaps and on scores, in words."""
    thresholds = protocol.match_thresholds
    several = len(thresholds) > 1
    yield f"{overlap} {thresholds[0]:.2f}:{thresholds[-1]:.2f}" if several else f"{overlap} {thresholds[0]:.4g}"
    if metric.threshold is not None:
        yield f"scores of at least {metric.threshold:g}"
    elif isinstance(metric, F1):
        yield f"best threshold of each class{f' and {overlap}' if several else ''}"


def _class_value(row: ClassResult, metric: ListMetric, images: int, protocol: Protocol) -> float:
    """The mean over the thresholds; 0 for a class without objects, unless the metric has a value for those."""
    if row.objects == 0 and metric.needs_objects:
        return 0.0
    passing = _passing(row.scores, metric.threshold)
    lists = [verdicts[passing] for verdicts in row.verdicts]
    hits = [verdicts[verdicts <= TRUE_POSITIVE] == TRUE_POSITIVE for verdicts in lists]
    return mean_of([metric.of_list(h, row.objects, images, protocol) for h in hits])


def _passing(scores: NDArray[np.float64], threshold: float | None) -> NDArray[np.bool_]:
    return np.ones(len(scores), dtype=np.bool_) if threshold is None else scores >= threshold
