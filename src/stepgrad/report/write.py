"""The report of detections: all its numbers, as plain lists and dicts, its page, and the charts of the training."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stepgrad.data.base import DetectionDataset
from stepgrad.errors import ConfigError
from stepgrad.evaluation.intervals import affordable
from stepgrad.evaluation.metrics import metric_under
from stepgrad.evaluation.records import Evidence
from stepgrad.evaluation.result import EvaluationResult
from stepgrad.files import write_whole
from stepgrad.metric.list_metric import ListMetric
from stepgrad.metric.metrics import AVERAGE_PRECISION
from stepgrad.metric.options import get_metric
from stepgrad.metric.protocol import Protocol, get_protocol
from stepgrad.names import file_name
from stepgrad.report.confusion import confusion
from stepgrad.report.curves import describe_curves
from stepgrad.report.findings import Findings, judged
from stepgrad.report.image_data import image_data
from stepgrad.report.numbers import Numbers, plain
from stepgrad.report.objects import describe_objects, found_by_size
from stepgrad.report.page import render, standalone
from stepgrad.report.pictures import prepare_photos
from stepgrad.report.scores import describe_scores
from stepgrad.report.sentence import opening
from stepgrad.report.training import Line, summary, training_charts


def write_report(folder: Path | str, **given: Any) -> Path:
    """Write report.json, plots/*.svg and report.html into a folder; returns the path of the page.

    The arguments are those of `write_page`.
    """
    return write_page(Path(folder) / "report.html", with_plots=True, **given)


def write_page(
    page: Path,
    *,
    title: str,
    evidence: Evidence,
    protocols: Sequence[str | Protocol],
    dataset: DetectionDataset | None,
    config: Mapping[str, Any] | None = None,
    history: Sequence[Line] = (),
    metrics: Sequence[str | ListMetric] = (),
    with_plots: bool = False,
    provenance: Mapping[str, Any] | None = None,
) -> Path:
    """Write the page, and its numbers next to it, under the same name with .json; returns the path of the page.

    The page needs no other file, unless its pictures are many: then they are in a folder next to it, with its name.

    Args:
        page: the file; its folder is made if it does not exist.
        title: the heading of the page.
        evidence: detections and objects: `Evaluator.evidence()`.
        protocols: the first is the one by which images and classes are judged; AP is reported under all.
        dataset: where the pictures come from; images that cannot be read are shown as boxes alone, and so are all for None.
        config: nested keys and values, as they are to be read.
        history: the lines of log.jsonl.
        metrics: to be shown as well as mAP, by the first protocol.
        with_plots: whether to write the charts of the training to plots/ as well.
        provenance: files, version, rules and options that the numbers depend on; written next to them.
    """
    first, *further = reported_protocols(protocols, evidence)
    findings = Findings.of(evidence, first)
    photos = prepare_photos(page, evidence, dataset)
    starts = [line for line in history if line.get("kind") == "start" and line.get("versions")]
    numbers = plain(
        {
            "title": title,
            "sentence": "",
            "dataset": describe_dataset("images" if dataset is None else dataset.name, findings.result),
            **_describe(findings, [findings.result, *(judged(evidence, protocol) for protocol in further)], metrics),
            "objects": describe_objects(findings, [photo.size for photo in photos]),
            "run": summary(history, first.name),
            "config": config or {},
            "versions": starts[-1]["versions"] if starts else {},
            "provenance": provenance or {},
        }
    )
    numbers["sentence"] = opening(numbers)
    charts = training_charts(numbers["run"]) if with_plots else {}
    plots = {f"{name}.svg": standalone(svg) for name, (_, svg) in charts.items()}
    return write_files(page, numbers, plots, render(numbers, image_data(findings, photos), page.stem, bool(plots)))


def reported_protocols(protocols: Sequence[str | Protocol], evidence: Evidence) -> list[Protocol]:
    """The protocols of those names, as they are for the task of the evidence; there must be one."""
    if not protocols:
        raise ConfigError("Expected at least one protocol to report but got none.")
    return [evidence.overlap.adapt(get_protocol(protocol)) for protocol in protocols]


def describe_dataset(name: str, result: EvaluationResult) -> dict[str, Any]:
    """How much there is of everything."""
    return {
        "name": name,
        "images": result.images,
        "classes": len(result.classes),
        "objects": sum(row.objects for row in result.classes),
        "ignored": sum(row.ignored for row in result.classes),
        "detections": result.detections,
    }


def _describe(
    findings: Findings, results: Sequence[EvaluationResult], metrics: Sequence[str | ListMetric]
) -> dict[str, Any]:
    """What the detections are worth; `results` has one result per protocol, that of the findings first."""
    by_name = {result.protocol.name: result for result in results}
    first = results[0]
    chosen = [get_metric(metric) for metric in metrics]
    values = [metric_under(findings.evidence, first.protocol, first.classes, metric) for metric in chosen]
    return {
        "protocols": list(by_name),
        "maps": {name: result.map for name, result in by_name.items()},
        "metrics": {found.name: found.value for found in values},
        "intervals": {name: _interval(result, AVERAGE_PRECISION) for name, result in by_name.items()},
        "metric_intervals": {metric.name: _interval(first, metric) for metric in chosen},
        "how": {
            "maps": {name: result.metric(AVERAGE_PRECISION).how for name, result in by_name.items()},
            "metrics": {found.name: found.how for found in values},
        },
        "classes": [_class_row(label, by_name, findings) for label in range(len(results[0].classes))],
        "curves": {name: describe_curves(result) for name, result in by_name.items()},
        "mistakes": findings.costs(),
        "confusion": confusion(findings.cut_at(findings.passing)),
        **describe_scores(findings),
        "sizes": found_by_size(findings),
    }


def _interval(result: EvaluationResult, metric: ListMetric) -> list[float] | None:
    """The interval of a metric over images like these; None for a single image, and where it would take long."""
    if result.images < 2 or not affordable(result.detections, len(result.classes), result.protocol, [metric]):
        return None
    return result.intervals(metric=metric).value.to_list()


def _class_row(label: int, results: Mapping[str, EvaluationResult], findings: Findings) -> dict[str, Any]:
    """Counts and recall are those of the first protocol."""
    row, cut = findings.result.classes[label], findings.cuts[label]
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


def write_files(page: Path, numbers: Numbers, plots: Mapping[str, str], content: str) -> Path:
    """The numbers next to the page, the charts below plots/, then the page itself; returns its path."""
    text = json.dumps(numbers, indent=1, ensure_ascii=False, allow_nan=False)
    write_whole(page.with_suffix(".json"), text.encode("utf-8", "replace"))
    for name, chart in plots.items():
        write_whole(page.parent / "plots" / file_name(name), chart.encode())
    write_whole(page, content.encode())
    return page
