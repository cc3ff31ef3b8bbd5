"""A page that compares several trainings of one detector on the same test images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from stepgrad.data.base import DetectionDataset
from stepgrad.errors import ConfigError, InputError
from stepgrad.evaluation.errors_by_type import TYPES, error_types
from stepgrad.evaluation.records import Evidence
from stepgrad.metric.protocol import Protocol
from stepgrad.report.arms import Arm, describe_arms, describe_curves, winner
from stepgrad.report.changed import CHANGED_RULE, Marks, better_and_worse, changes, describe_change
from stepgrad.report.charts import Numbers, arm_swatch, arms_chart, arms_panel, shortened
from stepgrad.report.content import describe_dataset, plain, reported_protocols
from stepgrad.report.diagnosis import thresholds_of
from stepgrad.report.drawn_pictures import EncodedPicture, Picture, encode_pictures
from stepgrad.report.examples import JudgedEvidence
from stepgrad.report.page import MEANINGS, fill_template, inline, standalone
from stepgrad.report.sentence import compared
from stepgrad.report.write import write_files

KINDS = ("better", "worse")


@dataclass(frozen=True)
class Content:
    """The numbers, and the pictures that go with `changed`."""

    numbers: dict[str, Any]
    pictures: dict[str, list[Picture]]


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
    """
    folder = Path(folder)
    _check_arms(arms, reference, chosen)
    shown, name = (0, "held-out images") if dataset is None else (shown, dataset.name)
    content = gather_comparison(title, sentence, arms, reference, chosen, protocols, name, config, shown)
    numbers = content.numbers
    page = _render(numbers, _encode_pairs(content, arms[reference].evidence, dataset))
    drawn = {f"precision-recall-{curves['iou']:g}.svg": standalone(svg) for curves, svg in _mean_charts(numbers)}
    return write_files(folder / "report.html", numbers, drawn, page)


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


def gather_comparison(
    title: str,
    sentence: str | None,
    arms: Sequence[Arm],
    reference: int,
    chosen: int,
    protocols: Sequence[str | Protocol],
    dataset_name: str,
    config: Mapping[str, Any],
    shown: int,
) -> Content:
    """Judge the detections of all arms under the first protocol and collect all numbers of the page."""
    reported = reported_protocols(protocols)
    first = reported[0]
    judged = [JudgedEvidence.under(first, arm.evidence) for arm in arms]
    results = [one.result for one in judged]
    evidence = arms[reference].evidence
    before, after = judged[reference].marks(), judged[chosen].marks()
    images = dict(zip(KINDS, better_and_worse(changes(before, after), shown), strict=True))
    described = describe_dataset(dataset_name, evidence, results[0])
    numbers = {
        "title": title,
        "sentence": sentence or "",
        "dataset": {name: value for name, value in described.items() if name != "detections"},
        "protocols": [p.name for p in reported],
        "reference": reference,
        "chosen": chosen,
        "winner": winner(arms, first.name),
        "arms": describe_arms(arms, reference, reported),
        "mistakes": [error_types(arm.evidence, first, *thresholds_of(first)).to_dict() for arm in arms],
        "curves": describe_curves(results, reference, chosen),
        "changed": {
            "rule": CHANGED_RULE,
            "iou": first.match_thresholds[0],
            "counts": _count_kinds(before, after),
            **{kind: [describe_change(evidence, i, before[i], after[i]) for i in images[kind]] for kind in KINDS},
        },
        "config": config,
    }
    sides = {kind: [Picture(i, marks[i]) for i in images[kind] for marks in (before, after)] for kind in KINDS}
    found = plain(numbers)
    return Content({**found, "sentence": sentence or compared(found)}, sides)


def _count_kinds(before: Marks, after: Marks) -> dict[str, int]:
    grown = changes(before, after)
    return {
        "better": sum(by > 0 for by in grown),
        "worse": sum(by < 0 for by in grown),
        "same": grown.count(0),
    }


Pair = tuple[EncodedPicture, EncodedPicture]
"""The reference's picture and the chosen arm's."""


def _encode_pairs(content: Content, evidence: Evidence, dataset: DetectionDataset | None) -> dict[str, list[Pair]]:
    if dataset is None:
        return {kind: [] for kind in KINDS}
    encoded = encode_pictures(list(chain(*(content.pictures[kind] for kind in KINDS))), evidence, dataset)
    pairs = list(zip(encoded[::2], encoded[1::2], strict=True))
    better = len(content.pictures["better"]) // 2
    return {"better": pairs[:better], "worse": pairs[better:]}


def arm_styles(numbers: Numbers) -> list[int]:
    """The style of each arm's lines: the chosen one first, then the reference, then the others as they come."""
    places = dict.fromkeys([numbers["chosen"], numbers["reference"], *range(len(numbers["arms"]))])
    styles = {arm: style for style, arm in enumerate(places)}
    return [styles[arm] for arm in range(len(numbers["arms"]))]


def _mean_charts(numbers: Numbers) -> list[tuple[Numbers, Any]]:
    names = [arm["name"] for arm in numbers["arms"]]
    return [
        (curves, arms_chart(curves, f"/curves/{k}", names, arm_styles(numbers)))
        for k, curves in enumerate(numbers["curves"])
    ]


def _render(numbers: Numbers, pairs: Mapping[str, Sequence[Pair]]) -> str:
    styles = arm_styles(numbers)
    return fill_template(
        "comparison.html.jinja",
        numbers,
        pairs=pairs,
        kinds=sorted(TYPES, key=lambda kind: -(numbers["mistakes"][numbers["chosen"]]["gains"][kind] or 0.0)),
        meaning=MEANINGS,
        seeds=max(len(arm["runs"]) for arm in numbers["arms"]),
        timed=any(arm["seconds"] is not None for arm in numbers["arms"]),
        short=[shortened(arm["name"]) for arm in numbers["arms"]],
        swatches=[inline(arm_swatch(style)) for style in styles],
        charts=[inline(svg) for _, svg in _mean_charts(numbers)],
        panels=[[inline(arms_panel(row, styles)) for row in curves["classes"]] for curves in numbers["curves"]],
    )
