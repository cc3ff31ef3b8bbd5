"""The result of an evaluation: mAP, a table of the classes, the curves behind them, and the score of the best F1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stepgrad.engine.matching import IGNORED, TRUE_POSITIVE
from stepgrad.errors import ConfigError, InputError, one_of
from stepgrad.evaluation.coco_numbers import warn_of_giants
from stepgrad.evaluation.judge import ClassJudgement, Counting, judge
from stepgrad.evaluation.metrics import AnyMetric, MetricResult, metric_of, metric_under
from stepgrad.evaluation.records import Evidence
from stepgrad.evaluation.tables import plain_table
from stepgrad.metric.list_metric import ListMetric, f1_of
from stepgrad.metric.options import get_metric
from stepgrad.metric.over_classes import MAPResult, mean_over_classes, result_of
from stepgrad.metric.protocol import Protocol
from stepgrad.number_text import metric_text, per_cent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from stepgrad.names import ImageId


@dataclass(frozen=True, eq=False)
class PRCurve:
    """Precision and recall after each counted detection, by decreasing score."""

    threshold: float
    recall: NDArray[np.float64]
    precision: NDArray[np.float64]
    scores: NDArray[np.float64]

    @property
    def interpolated(self) -> NDArray[np.float64]:
        """The best precision at this recall or any higher, from which AP is computed."""
        return np.maximum.accumulate(self.precision[::-1])[::-1]


def _position(thresholds: Sequence[float], threshold: float) -> int:
    """The position of a threshold among a protocol's, up to single precision."""
    for t, own in enumerate(thresholds):
        if math.isclose(own, threshold, abs_tol=1e-6):
            return t
    raise ConfigError(f"Expected one of the protocol's thresholds {list(thresholds)} but got {threshold!r}.")


@dataclass(frozen=True, eq=False)
class ClassResult:
    """The result of one class."""

    name: str
    label: int
    ap: float
    """nan if the protocol leaves the class out because it has no objects."""
    area_ap: float
    """The area under the interpolated curve, which VOC prints together with the 11-point AP."""
    ap_by_threshold: dict[float, float]
    objects: int
    ignored: int
    """Objects that are not counted: difficult ones or crowds."""
    scores: NDArray[np.float64] = field(repr=False)
    """(M,) of all detections, in decreasing order."""
    verdicts: NDArray[np.int8] = field(repr=False)
    """(thresholds, M) 1 true positive, 0 false positive, 2 ignored."""
    rows: NDArray[np.int64] = field(repr=False, default_factory=lambda: np.zeros(0, dtype=np.int64))
    """(M,) their rows in the `Detections` of the evidence."""

    @property
    def detections(self) -> int:
        return len(self.scores)

    @property
    def recall(self) -> float:
        """The share of objects found, at the lowest threshold; nan without objects."""
        true_positives = int(np.count_nonzero(self.verdicts[0] == TRUE_POSITIVE))
        return true_positives / self.objects if self.objects else math.nan

    def curve(self, threshold: float | None = None) -> PRCurve:
        """The precision-recall curve at one of the protocol's thresholds (default: the first)."""
        thresholds = list(self.ap_by_threshold)
        t = 0 if threshold is None else _position(thresholds, threshold)
        verdicts = self.verdicts[t]
        counted = verdicts != IGNORED
        true = np.cumsum(verdicts[counted] == TRUE_POSITIVE)
        recall = true / self.objects if self.objects else np.full(len(true), np.nan)
        return PRCurve(thresholds[t], recall, true / np.arange(1, len(true) + 1), self.scores[counted])


@dataclass(frozen=True, eq=False, repr=False)
class EvaluationResult(MAPResult):
    """mAP, and the AP, counts and curves of each class. `print` shows a table."""

    protocol: Protocol
    classes: tuple[ClassResult, ...]
    images: int
    others: dict[str, EvaluationResult] = field(default_factory=dict)
    """Results of further protocols on the same detections, by name."""
    evidence: Evidence | None = None
    """Detections and objects that were judged."""
    metrics: dict[str, MetricResult] = field(default_factory=dict)
    """Values of the metrics that were asked for, by name."""

    @property
    def detections(self) -> int:
        return sum(row.detections for row in self.classes)

    @cached_property
    def area_map(self) -> float:
        """The mean of the areas under the interpolated curves."""
        return self._mean([row.area_ap for row in self.classes])

    def map_at(self, threshold: float) -> float:
        """mAP at one of the protocol's thresholds: `result.map_at(0.75)` is COCO's AP75."""
        thresholds = self.protocol.match_thresholds
        own = thresholds[_position(thresholds, threshold)]
        return self._mean([row.ap_by_threshold[own] for row in self.classes])

    def metric(
        self, metric: AnyMetric, *, classes: str = "mean", class_weights: Sequence[float] | None = None
    ) -> MetricResult:
        """The value of any metric of `sg.metrics`, or of a function of a class's list, as for `DetectionLoss`.

        AP by size needs other verdicts: ask for it with `Evaluator(..., metrics=["ap@area=small"])`.
        """
        resolved = get_metric(metric)
        if resolved.area is not None:
            raise ConfigError(
                f"Expected {resolved.name} to be one of the evaluator's metrics; ask for it with Evaluator(..., metrics=[...])."
            )
        return metric_of(self, resolved, classes, class_weights)

    def __getitem__(self, name: str) -> EvaluationResult:
        """The result under the protocol of that name."""
        one_of("the protocol", name, [self.protocol.name, *self.others])
        return self if name == self.protocol.name else self.others[name]

    def of_class(self, name: str | int) -> ClassResult:
        """The row of a class, by name or label."""
        if isinstance(name, int):
            if not 0 <= name < len(self.classes):
                raise InputError(f"Expected a label in [0, {len(self.classes)}) but got {name}.")
            return self.classes[name]
        one_of("the class", name, [row.name for row in self.classes])
        return next(row for row in self.classes if row.name == name)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and lists for json; None where there is no number."""
        content: dict[str, Any] = {
            "protocol": self.protocol.name,
            "map": self.map,
            "area_map": self.area_map,
            "images": self.images,
            "detections": self.detections,
            "classes": [_class_dict(row) for row in self.classes],
        }
        if self.metrics:
            content["metrics"] = {name: _metric_dict(found) for name, found in self.metrics.items()}
        if self.others:
            content["others"] = {name: result.to_dict() for name, result in self.others.items()}
        return content

    def plot(
        self, path: str | Path | None = None, threshold: float | None = None, classes: Sequence[str | int] | None = None
    ) -> Figure:
        """Precision-recall curves as a matplotlib figure, written to `path` if given."""
        from stepgrad.evaluation.plots import plot_curves

        return plot_curves(self, path, threshold, classes)

    def to_supervision(self) -> dict[ImageId, Any]:
        """Per image the detections as `supervision.Detections`, with their verdicts at the first threshold in `data`."""
        from stepgrad.evaluation.export import to_supervision

        return to_supervision(self)

    def to_coco(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Annotations and detections as COCO's json has them: what `pycocotools.COCO` and its `loadRes` take."""
        from stepgrad.evaluation.export import to_coco

        return to_coco(self)

    def __str__(self) -> str:
        header, rows = self.table()
        title = f"{self.protocol.name}, {self.images} images, {self.detections} detections: mAP {per_cent(self.map)}"
        table = "\n".join(
            [
                title,
                plain_table(header, rows),
                *(f"{name} {metric_text(name, m.value)} ({m.how})" for name, m in self.metrics.items()),
            ]
        )
        return "\n\n".join([table, *(str(other) for other in self.others.values())])

    def __repr__(self) -> str:
        return f"EvaluationResult(protocol={self.protocol.name!r}, map={self.map}, classes={len(self.classes)})"

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Headings, one row per class, and the mean; recall and AP in per cent."""
        extra = self._extra_columns()
        header = ["class", "objects", "ignored", "detections", "recall", "AP", *extra]
        rows = [
            [row.name, str(row.objects), str(row.ignored), str(row.detections), per_cent(row.recall), per_cent(row.ap)]
            + [per_cent(values[row.label]) for values, _ in extra.values()]
            for row in self.classes
        ]
        counted = sum(not math.isnan(row.ap) for row in self.classes)
        total = [str(sum(getattr(row, name) for row in self.classes)) for name in ("objects", "ignored", "detections")]
        mean = [per_cent(self.map), *(per_cent(value) for _, value in extra.values())]
        return header, [*rows, [f"mean of {counted}", *total, "", *mean]]

    def _extra_columns(self) -> dict[str, tuple[list[float], float]]:
        """Further APs that people look for: the area in addition to the 11 points, AP50 and AP75 in addition to the mean."""
        columns: dict[str, tuple[list[float], float]] = {}
        if self.protocol.recall_levels == 11:
            columns["AP (area)"] = [self._left_out(row, row.area_ap) for row in self.classes], self.area_map
        thresholds = self.protocol.match_thresholds
        for t in (0.5, 0.75):
            if len(thresholds) > 1 and t in thresholds:
                values = [self._left_out(row, row.ap_by_threshold[t]) for row in self.classes]
                columns[f"AP{100 * t:.0f}"] = values, self.map_at(t)
        return columns

    def _left_out(self, row: ClassResult, value: float) -> float:
        return math.nan if math.isnan(row.ap) else value

    def _mean(self, values: list[float]) -> float:
        present = np.array([row.objects > 0 for row in self.classes], dtype=np.bool_)
        return mean_over_classes(np.array(values), present, self.protocol.absent_classes)


def _metric_dict(found: MetricResult) -> dict[str, Any]:
    by_class = [None if math.isnan(value) else value for value in found.by_class.tolist()]
    return {"value": found.value, "by_class": by_class}


def _class_dict(row: ClassResult) -> dict[str, Any]:
    number = lambda value: None if math.isnan(value) else value  # noqa: E731
    return {
        "name": row.name,
        "ap": number(row.ap),
        "area_ap": number(row.area_ap) if not math.isnan(row.ap) else None,
        "ap_by_threshold": {f"{t:.2f}": value for t, value in row.ap_by_threshold.items()},
        "objects": row.objects,
        "ignored": row.ignored,
        "detections": row.detections,
        "recall": number(row.recall),
    }


def evaluate_under(evidence: Evidence, counting: Counting, metrics: Sequence[ListMetric] = ()) -> EvaluationResult:
    """Judge everything under one protocol; by further metrics too, if wanted."""
    if counting.protocol.duplicates == "best_free":  # COCO's way, whose numbers are compared with pycocotools'
        warn_of_giants(evidence)
    result = result_from(judge(evidence, counting), evidence, counting.protocol)
    for metric in metrics:
        result.metrics[metric.name] = metric_under(evidence, counting, result, metric)
    return result


def result_from(judged: list[ClassJudgement], evidence: Evidence, protocol: Protocol) -> EvaluationResult:
    """The result that follows from the verdicts."""
    ap = np.array([row.mean_ap for row in judged], dtype=np.float64)
    present = np.array([row.P > 0 for row in judged], dtype=np.bool_)
    means = result_of(ap, present, protocol.absent_classes)
    classes = tuple(
        ClassResult(
            name=evidence.class_names[row.label],
            label=row.label,
            ap=float(value),
            area_ap=row.area_ap,
            ap_by_threshold=dict(zip(protocol.match_thresholds, row.ap.tolist(), strict=True)),
            objects=row.P,
            ignored=row.ignored,
            scores=evidence.detections.scores[row.detections],
            verdicts=row.verdicts,
            rows=row.detections,
        )
        for row, value in zip(judged, means.ap.tolist(), strict=True)
    )
    return EvaluationResult(means.map, means.ap, protocol, classes, evidence.num_images, evidence=evidence)


@dataclass(frozen=True)
class Cut:
    """Where to cut the ranked detections of a class."""

    threshold: float | None
    """The least score that passes; None if no detection is right, then none passes."""
    f1: float | None
    """None for a class without objects."""
    passing: int
    """How many of the ranked detections reach it."""


def best_cut(scores: NDArray[np.float64], verdicts: NDArray[np.int8], P: int) -> Cut:
    """The threshold of the largest F1; of equally good ones the highest.

    Args:
        scores: of all detections of a class, in decreasing order. A threshold cannot part equal ones: they pass together.
        verdicts: of each: 1 true positive, 0 false positive, 2 ignored.
        P: objects there are to find.

    >>> best_cut(np.array([0.9, 0.8, 0.8, 0.1]), np.array([1, 0, 1, 0], dtype=np.int8), P=2)
    Cut(threshold=0.8, f1=0.8, passing=3)
    """
    if P == 0:
        return Cut(None, None, 0)
    true = np.cumsum(verdicts == TRUE_POSITIVE)
    f1 = f1_of(true, np.cumsum(verdicts != IGNORED), P)
    last_of_equals = np.append(scores[1:] != scores[:-1], True)[: len(scores)]
    f1 = np.where(last_of_equals, f1, -1.0)
    if len(f1) == 0 or true[-1] == 0:
        return Cut(None, 0.0, 0)
    place = int(np.argmax(f1))
    return Cut(float(scores[place]), float(f1[place]), place + 1)


def best_thresholds(result: EvaluationResult) -> dict[str, float]:
    """By class, the score at which F1 is best, at the protocol's first IoU; classes of which no object was found have none."""
    cuts = {row.name: best_cut(row.scores, row.verdicts[0], row.objects) for row in result.classes}
    return {name: cut.threshold for name, cut in cuts.items() if cut.threshold is not None}
