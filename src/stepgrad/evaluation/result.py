"""The result of an evaluation: mAP, a table of the classes, and further metrics."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stepgrad.errors import ConfigError, InputError, one_of
from stepgrad.evaluation.class_result import ClassResult, best_cut, position_of
from stepgrad.evaluation.coco_numbers import warn_of_giants
from stepgrad.evaluation.export import to_coco, to_supervision
from stepgrad.evaluation.intervals import RESAMPLES, Intervals, intervals_of
from stepgrad.evaluation.judge import ClassJudgement, judge
from stepgrad.evaluation.metrics import AnyMetric, MetricResult, metric_of, metric_under
from stepgrad.evaluation.plots import plot_curves
from stepgrad.evaluation.records import Evidence
from stepgrad.evaluation.tables import plain_table
from stepgrad.metric.list_metric import ListMetric
from stepgrad.metric.metrics import AVERAGE_PRECISION
from stepgrad.metric.options import get_metric
from stepgrad.metric.over_classes import MAPResult, mean_over_classes, result_of
from stepgrad.metric.protocol import Protocol
from stepgrad.number_text import metric_text, per_cent
from stepgrad.overlaps.batch import BOXES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from stepgrad.names import ImageId


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
    found_intervals: dict[str, Intervals] = field(default_factory=dict)
    """Intervals of mAP ("ap") and of the metrics, by name, in a result of `with_intervals`."""

    @property
    def detections(self) -> int:
        return sum(row.detections for row in self.classes)

    @property
    def overlap(self) -> str:
        """What detections and objects were compared by: "IoU", "mask IoU", "OKS", "rotated IoU", "tIoU"."""
        return BOXES.word if self.evidence is None else self.evidence.overlap.word

    @cached_property
    def area_map(self) -> float:
        """The mean of the areas under the interpolated curves."""
        return self._mean([row.area_ap for row in self.classes])

    def map_at(self, threshold: float) -> float:
        """mAP at one of the protocol's thresholds: `result.map_at(0.75)` is COCO's AP75."""
        thresholds = self.protocol.match_thresholds
        own = thresholds[position_of(thresholds, threshold)]
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
        given = self.classes, self.images, self.protocol
        return metric_of(*given, resolved, classes, class_weights, self.overlap)

    def interval(
        self,
        level: float = 0.95,
        metric: AnyMetric | None = None,
        resamples: int = RESAMPLES,
        seed: int = 0,
        groups: Sequence[Hashable] | None = None,
    ) -> tuple[float, float]:
        """Where mAP, or another metric, would lie on other images like these with this probability: (low, high).

        Images are resampled with repetition, `resamples` times. `groups` names the group of each image, in the order in which
        images were given, if some belong together: frames of one clip are then drawn together.
        """
        low, high = self.intervals(level, metric, resamples, seed, groups).value
        return low, high

    def intervals(
        self,
        level: float = 0.95,
        metric: AnyMetric | None = None,
        resamples: int = RESAMPLES,
        seed: int = 0,
        groups: Sequence[Hashable] | None = None,
    ) -> Intervals:
        """The same with the interval of each class."""
        resolved = AVERAGE_PRECISION if metric is None else get_metric(metric)
        return intervals_of(self.classes, self._kept_evidence, self.protocol, resolved, level, resamples, seed, groups)

    def with_intervals(
        self,
        level: float = 0.95,
        resamples: int = RESAMPLES,
        seed: int = 0,
        groups: Sequence[Hashable] | None = None,
    ) -> EvaluationResult:
        """The same result, with the intervals of mAP and of its metrics in its text, its table and its `to_dict`."""
        metrics: dict[str, AnyMetric] = {name: found.metric or name for name, found in self.metrics.items()}
        found = {
            name: self.intervals(level, metric, resamples, seed, groups)
            for name, metric in {"ap": AVERAGE_PRECISION, **metrics}.items()
        }
        others = {name: r.with_intervals(level, resamples, seed, groups) for name, r in self.others.items()}
        return replace(self, found_intervals=found, others=others)

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
        self._add_intervals(content)
        if self.others:
            content["others"] = {name: result.to_dict() for name, result in self.others.items()}
        return content

    def _add_intervals(self, content: dict[str, Any]) -> None:
        """Intervals next to the numbers they belong to, and how they were found."""
        for name, found in self.found_intervals.items():
            by_class = [None if interval is None else interval.to_list() for interval in found.by_class]
            if name == "ap":
                content["interval"] = found.value.to_list()
                content["resampling"] = {**found.to_dict(), "few": [self.classes[c].name for c in found.few]}
                for row, interval in zip(content["classes"], by_class, strict=True):
                    row["interval"] = interval
            if name in self.metrics:
                content["metrics"][name] |= {"interval": found.value.to_list(), "intervals_by_class": by_class}

    def plot(
        self, path: str | Path | None = None, threshold: float | None = None, classes: Sequence[str | int] | None = None
    ) -> Figure:
        """Precision-recall curves as a matplotlib figure, written to `path` if given."""
        rows = [self.of_class(name) for name in classes] if classes is not None else self.classes
        at = threshold or self.protocol.match_thresholds[0]
        title = f"{self.protocol.name}: mAP {per_cent(self.map)}, curves at {self.overlap} {at:g}"
        return plot_curves(rows, at, title, path)

    def to_supervision(self) -> dict[ImageId, Any]:
        """Per image the detections as `supervision.Detections`, with their verdicts at the first threshold in `data`."""
        return to_supervision(self._kept_evidence, self.classes)

    def to_coco(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Annotations and detections as COCO's json has them: what `pycocotools.COCO` and its `loadRes` take."""
        return to_coco(self._kept_evidence)

    @property
    def _kept_evidence(self) -> Evidence:
        """The detections and objects that were judged; InputError if they were not kept."""
        if self.evidence is None:
            raise InputError("Expected a result of `Evaluator.compute()` but this one does not hold its detections.")
        return self.evidence

    def __str__(self) -> str:
        header, rows = self.table()
        sure = self.found_intervals.get("ap")
        title = f"{self.protocol.name}, {self.images} images, {self.detections} detections: mAP {per_cent(self.map)}"
        lines = [
            title if sure is None else f"{title} ({sure.value.text()})",
            plain_table(header, rows),
            *(self._metric_line(name, found) for name, found in self.metrics.items()),
        ]
        note = "" if sure is None else sure.note([row.name for row in self.classes])
        table = "\n".join([*lines, *([note] if note else [])])
        return "\n\n".join([table, *(str(other) for other in self.others.values())])

    def _metric_line(self, name: str, found: MetricResult) -> str:
        sure = self.found_intervals.get(name)
        interval = "" if sure is None else f"{sure.value.text(name)}; "
        return f"{name} {metric_text(name, found.value)} ({interval}{found.how})"

    def __repr__(self) -> str:
        return f"EvaluationResult(protocol={self.protocol.name!r}, map={self.map}, classes={len(self.classes)})"

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Headings, one row per class, and the mean; recall and AP in per cent."""
        extra = self._extra_columns()
        header = ["class", "objects", "ignored", "detections", "recall", "AP", *self._interval_cells("heading"), *extra]
        rows = [
            [row.name, str(row.objects), str(row.ignored), str(row.detections), per_cent(row.recall), per_cent(row.ap)]
            + self._interval_cells(row.label)
            + [per_cent(values[row.label]) for values, _ in extra.values()]
            for row in self.classes
        ]
        counted = sum(not math.isnan(row.ap) for row in self.classes)
        total = [str(sum(getattr(row, name) for row in self.classes)) for name in ("objects", "ignored", "detections")]
        mean = [per_cent(self.map), *self._interval_cells("mean"), *(per_cent(value) for _, value in extra.values())]
        return header, [*rows, [f"mean of {counted}", *total, "", *mean]]

    def _interval_cells(self, row: str | int) -> list[str]:
        """The cell of the interval of AP in the heading, in the row of a class or of the mean; none without intervals."""
        if "ap" not in self.found_intervals:
            return []
        sure = self.found_intervals["ap"]
        if row == "heading":
            return [f"{100 * sure.value.level:g}% interval"]
        interval = sure.value if row == "mean" else sure.by_class[int(row)]
        return ["-" if interval is None else interval.text()]

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


def evaluate_under(evidence: Evidence, protocol: Protocol, metrics: Sequence[ListMetric] = ()) -> EvaluationResult:
    """Judge everything under one protocol; by further metrics too, if wanted."""
    if protocol.duplicates == "best_free":  # COCO's way, whose numbers are compared with pycocotools'
        warn_of_giants(evidence)
    result = result_from(judge(evidence, protocol), evidence, protocol)
    for metric in metrics:
        result.metrics[metric.name] = metric_under(evidence, protocol, result.classes, metric)
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


def best_thresholds(result: EvaluationResult) -> dict[str, float]:
    """By class, the score at which F1 is best, at the protocol's first IoU; classes of which no object was found have none."""
    cuts = {row.name: best_cut(row.scores, row.verdicts[0], row.objects) for row in result.classes}
    return {name: cut.threshold for name, cut in cuts.items() if cut.threshold is not None}
