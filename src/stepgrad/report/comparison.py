"""A page that compares several trainings of one detector on the same test images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np

from stepgrad.data.base import DetectionDataset
from stepgrad.errors import ConfigError, InputError
from stepgrad.evaluation.paired import compare
from stepgrad.evaluation.records import Evidence
from stepgrad.evaluation.result import EvaluationResult
from stepgrad.metric.protocol import Protocol
from stepgrad.report.arms import Arm, describe_arms, winner
from stepgrad.report.changed import describe_changes
from stepgrad.report.curves import arm_swatch, arms_chart, arms_panel, compare_curves, shortened
from stepgrad.report.findings import Findings
from stepgrad.report.numbers import Numbers, plain
from stepgrad.report.page import fill_template, standalone
from stepgrad.report.pictures import draw_pictures
from stepgrad.report.sentence import MISTAKES, compared
from stepgrad.report.write import describe_dataset, reported_protocols, write_files


def write_comparison(
    folder: Path | str,
    *,
    title: str,
    sentence: str | None,
    arms: Sequence[Arm],
    reference: int,
    chosen: int,
    protocols: Sequence[str | Protocol],
    dataset: DetectionDataset | None,
    config: Mapping[str, Any],
    shown: int = 6,
    provenance: Mapping[str, Any] | None = None,
    next_steps: Sequence[str] = (),
) -> Path:
    """Write report.json, plots/*.svg and report.html, one file that needs no other; returns the path of the page.

    Args:
        folder: made if it does not exist.
        title: the heading of the page.
        sentence: what happened, in plain words; stands large below the title. None: it is said from the numbers.
        arms: the trainings, all judged on the same images.
        reference: position of the arm that gains are counted from.
        chosen: position of the arm to look at: its pictures are shown next to those of the reference.
        protocols: the first is the one by which curves and images are judged; mAP is reported under all.
        dataset: where the pictures come from; None: none are shown.
        config: nested keys and values, as they are to be read.
        shown: half of so many images where the chosen arm does better, and half where it does worse.
        provenance: files, version, rules and options that the numbers depend on; written next to them.
        next_steps: what the reader could do on data of his own, a command a line.
    """
    _check_arms(arms, reference, chosen)
    reported = reported_protocols(protocols, arms[0].evidence)
    findings = [Findings.of(arm.evidence, reported[0]) for arm in arms]
    results, names = [found.result for found in findings], [arm.name for arm in arms]
    described = describe_dataset("held-out images" if dataset is None else dataset.name, results[0])
    numbers = plain(
        {
            "title": title,
            "sentence": sentence or "",
            "dataset": {name: value for name, value in described.items() if name != "detections"},
            "protocols": [protocol.name for protocol in reported],
            "reference": reference,
            "chosen": chosen,
            "winner": winner(arms, reported[0].name),
            "arms": describe_arms(arms, reference, reported),
            "mistakes": [found.costs() for found in findings],
            "curves": compare_curves(results, reference, chosen),
            "changed": describe_changes(findings[reference], findings[chosen], 0 if dataset is None else shown),
            "paired": _paired(results, names, reference, chosen),
            "config": config,
            "provenance": provenance or {},
            "next_steps": list(next_steps),
        }
    )
    numbers["sentence"] = sentence or compared(numbers)
    styles = _styles(numbers)
    overlap = arms[0].evidence.overlap.word
    charts = [arms_chart(curves, f"/curves/{k}", names, styles, overlap) for k, curves in enumerate(numbers["curves"])]
    page = _render(numbers, charts, styles, _draw_changed(numbers["changed"], arms[reference].evidence, dataset))
    ious = [curves["iou"] for curves in numbers["curves"]]
    plots = {f"precision-recall-{iou:g}.svg": standalone(svg) for iou, svg in zip(ious, charts, strict=True)}
    return write_files(Path(folder) / "report.html", numbers, plots, page)


def _paired(
    results: Sequence[EvaluationResult], names: Sequence[str], reference: int, chosen: int
) -> dict[str, Any] | None:
    """How sure it is that the chosen arm is ahead of the reference, by the first result of each on the same resampled images."""
    if reference == chosen or results[0].images < 2 or not any(row.objects for row in results[0].classes):
        return None
    return compare(
        results[reference], results[chosen], names=(shortened(names[reference]), shortened(names[chosen]))
    ).to_dict()


def _check_arms(arms: Sequence[Arm], reference: int, chosen: int) -> None:
    """Arms can be compared only on the same images, and both positions must be arms."""
    if not arms:
        raise InputError("Expected at least one arm to report but got none.")
    for name, position in (("reference", reference), ("chosen", chosen)):
        if position not in range(len(arms)):
            raise ConfigError(
                f"Expected {name} to be the position of an arm, 0 to {len(arms) - 1}, but got {position!r}."
            )
    for arm in arms[1:]:
        if not _same_images(arm.evidence, arms[0].evidence):
            raise InputError(
                f"Expected all arms to be judged on the same images, objects and classes, in the same order, but those of "
                f"{arm.name!r} are not those of {arms[0].name!r}; evaluate both on one dataset."
            )


def _same_images(a: Evidence, b: Evidence) -> bool:
    return (
        list(a.image_ids) == list(b.image_ids)
        and a.class_names == b.class_names
        and all(
            np.array_equal(getattr(a.objects, name), getattr(b.objects, name))
            for name in ("images", "labels", "boxes", "difficult", "crowd")
        )
    )


def _draw_changed(
    changed: Numbers, evidence: Evidence, dataset: DetectionDataset | None
) -> dict[tuple[int, str], dict[str, Any]]:
    """The pictures to show, by the position of the image and the side: the reference's or the chosen arm's."""
    boxes = {
        (image["position"], side): image[side]["boxes"]
        for image in (*changed["better"], *changed["worse"])
        for side in ("reference", "chosen")
    }
    drawn = draw_pictures([(position, found) for (position, _), found in boxes.items()], evidence, dataset)
    return dict(zip(boxes, drawn, strict=True))


def _styles(numbers: Numbers) -> list[int]:
    """The style of each arm's lines: the chosen one first, then the reference, then the others as they come."""
    order = list(dict.fromkeys([numbers["chosen"], numbers["reference"], *range(len(numbers["arms"]))]))
    return [order.index(arm) for arm in range(len(numbers["arms"]))]


def _render(
    numbers: Numbers,
    charts: Sequence[Element],
    styles: Sequence[int],
    pictures: Mapping[tuple[int, str], Mapping[str, Any]],
) -> str:
    gains = numbers["mistakes"][numbers["chosen"]]["gains"]
    return fill_template(
        "comparison.html.jinja",
        numbers,
        pictures=pictures,
        kinds=sorted(gains, key=lambda kind: -(gains[kind] or 0.0)),
        meaning=MISTAKES,
        seeds=max(len(arm["runs"]) for arm in numbers["arms"]),
        timed=any(arm["seconds"] is not None for arm in numbers["arms"]),
        short=[shortened(arm["name"]) for arm in numbers["arms"]],
        swatches=[arm_swatch(style) for style in styles],
        charts=charts,
        panels=[[arms_panel(row, styles) for row in curves["classes"]] for curves in numbers["curves"]],
    )
