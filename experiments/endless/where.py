"""Where mAP pays: the gain over more cross-entropy against the size of the head, the number of images, and wrong labels.

    python -m experiments.endless.where run --out FILE.jsonl

The head of `experiments.endless.new_head`, soft labels, with one thing changed at a time. At every place cross-entropy has the
better of two weight decays on val, 0 and 1; three seeds, test images.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from experiments.endless.new_head import Point, fit, measure, pictures
from experiments.endless.windows import MAP_RATE, MORE_RATE, START_RATE, new_head
from experiments.figures import svg_figure
from experiments.records import Run, add_line, mean_and_spread, read_lines
from stepgrad.models.demo.detector import CLASSES
from stepgrad.models.fine_tuning.windows import ImageWindows, Labelled, labelled

SEEDS = (0, 1, 2)
DECAYS = (0.0, 1.0)


@dataclass(frozen=True)
class Place:
    """Where the two are compared."""

    units: int = 128
    images: int = 600
    wrong: float = 0.0  # share of objects with another label, in training


PLACES = {
    "units": [Place(units=n) for n in (4, 16, 128, 512)],
    "images": [Place(images=n) for n in (75, 300, 600, 1200)],
    "wrong": [Place(wrong=share) for share in (0.0, 0.2, 0.4)],
}
TITLES = {"units": "hidden units", "images": "training images", "wrong": "share of wrong labels"}


def training_images(place: Place) -> list[Labelled]:
    given = pictures("train", place.images)
    if not place.wrong:
        return given
    g = torch.Generator().manual_seed(1)
    changed = []
    for image in given:
        labels = image.target["labels"]
        turn = torch.randint(1, CLASSES, labels.shape, generator=g)
        turn = torch.where(torch.rand(labels.shape, generator=g) < place.wrong, turn, 0)
        target = {**image.target, "labels": (labels + turn) % CLASSES}
        changed.append(ImageWindows(image.features, image.boxes, target))
    return labelled("train", changed, CLASSES)


def compare(place: Place, seed: int) -> dict[str, dict[str, float]]:
    """mAP of the start, of more cross-entropy and of mAP."""
    images = training_images(place)
    head = new_head(images[0].features.shape[1], seed, place.units)
    tried = []
    for decay in DECAYS:
        point = Point("soft", "start", START_RATE, decay)
        start = fit(head, point, seed, images)
        tried.append((measure(start, point, "val")["coco"], point, start))
    _, point, start = max(tried, key=lambda t: t[0])
    more, ours = replace(point, arm="more", rate=MORE_RATE), replace(point, arm="coco", rate=MAP_RATE)
    heads = {"start": start, "more": fit(start, more, seed + 50, images), "map": fit(start, ours, seed + 50, images)}
    return {name: measure(head, point, "test") for name, head in heads.items()} | {"train": measure_on(start, images)}


def measure_on(head: torch.nn.Module, images: Sequence[Labelled]) -> dict[str, float]:
    """mAP on training images: how much of them is known by heart."""
    from stepgrad.metric.protocol import get_protocol
    from stepgrad.models.fine_tuning.training import judge

    point = Point("soft", "start", START_RATE)
    return {"coco": round(100 * judge(head, images[:300], point.task, [get_protocol("coco")])[0], 2)}


def run() -> Iterator[Run]:
    known: dict[Place, list[Run]] = {}
    for axis, places in PLACES.items():
        for place in places:
            if place not in known:
                known[place] = [compare(place, seed) for seed in SEEDS]
            yield {"axis": axis, **asdict(place), "runs": known[place]}


def draw(file: Path, out: Path) -> None:
    """One panel per axis: COCO AP of both ways, with the spread of the gain written beside."""
    lines = read_lines(file)
    with svg_figure(out, (10, 3)) as figure:
        panels = figure.subplots(1, len(PLACES), sharey=False)
        for panel, axis in zip(panels, PLACES, strict=True):
            _draw_axis(panel, axis, [line for line in lines if line["axis"] == axis])
        panels[0].set_ylabel("COCO AP, test")
        panels[0].legend(frameon=False, loc="lower right")
        figure.tight_layout()


def _draw_axis(panel: Any, axis: str, rows: Sequence[Run]) -> None:
    x = [row[axis] for row in rows]
    means = {name: [fmean(r[name]["coco"] for r in row["runs"]) for row in rows] for name in ("more", "map")}
    panel.plot(x, means["more"], "--o", label="more cross-entropy", markersize=4)
    panel.plot(x, means["map"], "-o", label="mAP", markersize=4)
    for place, row, *tops in zip(x, rows, *means.values(), strict=True):
        gain = mean_and_spread([r["map"]["coco"] - r["more"]["coco"] for r in row["runs"]], signed=True)
        style = {"textcoords": "offset points", "ha": "center", "fontsize": 7}
        panel.annotate(gain.replace(" ", "\n"), (place, max(tops)), (0, 5), **style)
    if axis != "wrong":
        panel.set_xscale("log", base=2)
        panel.set_xticks(x, [str(v) for v in x])
    panel.margins(x=0.12, y=0.25)
    panel.set_xlabel(TITLES[axis])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run"])
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    for line in run():
        print(line, flush=True)
        add_line(options.out, line)


if __name__ == "__main__":
    main()
