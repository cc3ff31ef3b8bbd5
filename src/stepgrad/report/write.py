"""report.json, report.html and plots/ of a run folder, and the same page of any detections."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stepgrad.data.base import DetectionDataset
from stepgrad.evaluation.records import Evidence
from stepgrad.files import write_whole
from stepgrad.metric.list_metric import ListMetric
from stepgrad.metric.protocol import Protocol
from stepgrad.names import file_name
from stepgrad.report.content import ComparisonRow, gather
from stepgrad.report.history import Line
from stepgrad.report.image_data import image_data
from stepgrad.report.objects import describe_objects
from stepgrad.report.page import plots, render
from stepgrad.report.pictures import prepare_photos


def write_report(
    folder: Path | str,
    *,
    title: str,
    config: Mapping[str, Any],
    history: Sequence[Line],
    evidence: Evidence,
    protocols: Sequence[str | Protocol],
    dataset: DetectionDataset | None,
    comparison: Sequence[ComparisonRow] = (),
    metrics: Sequence[str | ListMetric] = (),
) -> Path:
    """Write report.json, plots/*.svg and report.html into a folder; returns the path of the page.

    The arguments are those of `write_page`.
    """
    page = Path(folder) / "report.html"
    return write_page(
        page,
        title=title,
        config=config,
        history=history,
        evidence=evidence,
        protocols=protocols,
        dataset=dataset,
        comparison=comparison,
        metrics=metrics,
        with_plots=True,
    )


def write_page(
    page: Path,
    *,
    title: str,
    evidence: Evidence,
    protocols: Sequence[str | Protocol],
    dataset: DetectionDataset | None,
    config: Mapping[str, Any] | None = None,
    history: Sequence[Line] = (),
    comparison: Sequence[ComparisonRow] = (),
    metrics: Sequence[str | ListMetric] = (),
    with_plots: bool = False,
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
        comparison: ways of training to be set side by side, the first being what the others are measured against.
        metrics: to be shown as well as mAP, by the first protocol.
        with_plots: whether to write the charts of the training to plots/ as well.
    """
    name = "images" if dataset is None else dataset.name
    numbers, findings = gather(title, config or {}, history, evidence, protocols, name, comparison, metrics)
    photos = prepare_photos(page, evidence, dataset)
    numbers["objects"] = describe_objects(findings, [photo.size if photo else None for photo in photos])
    data = image_data(findings, photos)
    drawn = plots(numbers) if with_plots else {}
    return write_files(page, numbers, drawn, render(numbers, data, page.stem, bool(drawn)))


def write_files(page: Path, numbers: Mapping[str, Any], drawn: Mapping[str, str], content: str) -> Path:
    """The numbers next to the page, the charts below plots/, then the page itself; returns its path."""
    text = json.dumps(numbers, indent=1, ensure_ascii=False, allow_nan=False)
    write_whole(page.with_suffix(".json"), text.encode("utf-8", "replace"))
    for name, chart in drawn.items():
        write_whole(page.parent / "plots" / file_name(name), chart.encode())
    write_whole(page, content.encode())
    return page
