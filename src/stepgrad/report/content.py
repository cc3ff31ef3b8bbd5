"""Every number of a report, as plain lists and dicts: what report.json holds and the page shows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stepgrad.errors import ConfigError
from stepgrad.evaluation.class_result import ClassResult, Cut
from stepgrad.evaluation.metrics import MetricResult, metric_under
from stepgrad.evaluation.records import Evidence
from stepgrad.evaluation.result import EvaluationResult
from stepgrad.metric.list_metric import ListMetric
from stepgrad.metric.metrics import AVERAGE_PRECISION
from stepgrad.metric.options import get_metric
from stepgrad.metric.protocol import Protocol, get_protocol
from stepgrad.report.diagnosis import Findings
from stepgrad.report.examples import JudgedEvidence
from stepgrad.report.history import Line, summary, thin
from stepgrad.report.sentence import opening


@dataclass(frozen=True)
class ComparisonRow:
    """One of several ways to train, side by side."""

    name: str
    note: str = ""
    maps: dict[str, float] = field(default_factory=dict)
    """By protocol."""
    steps: int | None = None
    seconds: float | None = None


def gather(
    title: str,
    config: Mapping[str, Any],
    history: Sequence[Line],
    evidence: Evidence,
    protocols: Sequence[str | Protocol],
    dataset_name: str,
    comparison: Sequence[ComparisonRow],
    metrics: Sequence[str | ListMetric] = (),
) -> tuple[dict[str, Any], Findings]:
    """Judge the detections under every protocol and collect all numbers of the report."""
    chosen = reported_protocols(protocols)
    judged = {p.name: JudgedEvidence.under(p, evidence) for p in chosen}
    results = {name: under.result for name, under in judged.items()}
    first = chosen[0]
    findings = Findings.of(evidence, first)
    counted = _metrics(metrics, judged[first.name])
    starts = [line for line in history if line.get("kind") == "start" and line.get("versions")]
    numbers = {
        "title": title,
        "dataset": describe_dataset(dataset_name, evidence, results[first.name]),
        "protocols": [p.name for p in chosen],
        "maps": {name: result.map for name, result in results.items()},
        "metrics": {name: found.value for name, found in counted.items()},
        "how": {
            "maps": {name: result.metric(AVERAGE_PRECISION).how for name, result in results.items()},
            "metrics": {name: found.how for name, found in counted.items()},
        },
        "comparison": _comparison(comparison, [p.name for p in chosen]),
        "run": summary(history, first.name),
        "classes": [_class_row(c, results, findings.graded.cuts[c]) for c in range(evidence.num_classes)],
        "curves": {
            name: {
                "iou": iou,
                "names": [f"AP{100 * iou:g}", ap_name(result.protocol)],
                "aps": [row.ap_by_threshold[iou] if row.objects else None for row in result.classes],
                "classes": [_curve(row, iou) for row in result.classes],
            }
            for name, result in results.items()
            for iou in result.protocol.match_thresholds[:1]
        },
        **findings.numbers(first, results[first.name]),
        "config": config,
        "versions": starts[-1]["versions"] if starts else {},
    }
    found = plain(numbers)
    return {"title": found["title"], "sentence": opening(found), **found}, findings


def reported_protocols(protocols: Sequence[str | Protocol]) -> list[Protocol]:
    """The protocols of those names; there must be one."""
    if not protocols:
        raise ConfigError("Expected at least one protocol to report but got none.")
    return [get_protocol(protocol) for protocol in protocols]


def plain(value: Any) -> Any:
    """The value as JSON can hold it: names as text, None for NaN."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if isinstance(value, (np.integer, np.floating)):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int)) else str(value)


def _metrics(metrics: Sequence[str | ListMetric], judged: JudgedEvidence) -> dict[str, MetricResult]:
    result, chosen = judged.result, [get_metric(metric) for metric in metrics]
    return {metric.name: metric_under(judged.seen, result.protocol, result.classes, metric) for metric in chosen}


def describe_dataset(name: str, evidence: Evidence, result: EvaluationResult) -> dict[str, Any]:
    """How much there is of everything."""
    return {
        "name": name,
        "images": evidence.num_images,
        "classes": evidence.num_classes,
        "objects": sum(row.objects for row in result.classes),
        "ignored": sum(row.ignored for row in result.classes),
        "detections": len(evidence.detections),
    }


def _comparison(rows: Sequence[ComparisonRow], protocols: Sequence[str]) -> list[dict[str, Any]]:
    """The rows, each with its gain over the first, under the first protocol that all rows have."""
    common = next((name for name in protocols if all(name in row.maps for row in rows)), None)
    return [
        {
            "name": row.name,
            "note": row.note,
            "maps": row.maps,
            "gain": row.maps[common] - rows[0].maps[common] if common and row is not rows[0] else None,
            "steps": row.steps,
            "seconds": row.seconds,
        }
        for row in rows
    ]


def _class_row(label: int, results: Mapping[str, EvaluationResult], cut: Cut) -> dict[str, Any]:
    """Counts and recall are those of the first protocol."""
    row = next(iter(results.values())).classes[label]
    return {
        "name": row.name,
        "objects": row.objects,
        "ignored": row.ignored,
        "detections": row.detections,
        "recall": row.recall,
        "f1": cut.f1,
        "threshold": cut.threshold,
        "ap": {name: result.classes[label].ap for name, result in results.items()},
    }


def ap_name(protocol: Protocol) -> str:
    """AP under a protocol, named after its IoU thresholds.

    >>> ap_name(get_protocol("coco")), ap_name(get_protocol("voc12"))
    ('AP50:95', 'AP50')
    """
    ends = dict.fromkeys(f"{100 * protocol.match_thresholds[end]:.3g}" for end in (0, -1))
    return f"AP{':'.join(ends)}"


def _curve(row: ClassResult, threshold: float) -> dict[str, Any]:
    """Precision and recall, and the best precision at each recall or beyond (whose area is AP), thinned."""
    nothing: dict[str, list[float]] = {"recall": [], "precision": [], "best_recall": [], "best_precision": []}
    if row.objects == 0:
        return nothing
    curve = row.curve(threshold)
    if len(curve.recall) == 0 or curve.recall[-1] == 0.0:
        return nothing
    recall, precision = thin(curve.recall, curve.precision)
    # A staircase: level up to each recall, then down to the next best precision.
    steps = np.flatnonzero(np.append(np.diff(curve.interpolated) != 0, True))
    ends, heights = curve.recall[steps], curve.interpolated[steps]
    best_recall = np.append(np.column_stack([np.append(0.0, ends[:-1]), ends]).ravel(), ends[-1])
    best = np.append(np.repeat(heights, 2), 0.0)
    best_recall, best = thin(best_recall, best)
    return {
        "recall": recall.tolist(),
        "precision": precision.tolist(),
        "best_recall": best_recall.tolist(),
        "best_precision": best.tolist(),
    }
