"""The gain of training for mAP against how far the training images are fitted: the plot of docs/when_it_pays.md.

From the curves of `experiments.yolo.heads`: heads of 64 units, for which the rates were chosen, on several numbers of images. How
far a head has fitted is its COCO AP on training images less that on val, before the last part of the training.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

from experiments.figures import svg_figure
from experiments.records import Run, load_runs

LABELS = {"soft": "IoU as the label", "aligned": "task-aligned labels"}


class Place(NamedTuple):
    """A number of images."""

    images: int
    fitted: float
    gain: float
    spread: float


def places(runs: Sequence[Run], start: str) -> list[Place]:
    """Of one kind of labels, means over seeds."""
    found = []
    for images in sorted({run["images"] for run in runs}):
        own = [run for run in runs if run["images"] == images]
        starts, more, ours = (
            {run["seed"]: run for run in own if (run["start"], run["loss"]) == way}
            for way in ((None, start), (start, start), (start, "coco"))
        )
        seeds = [seed for seed in ours if seed in more and seed in starts]
        if not seeds:
            continue
        gains = [ours[s]["found"]["coco"][0] - more[s]["found"]["coco"][0] for s in seeds]
        fitted = fmean(starts[s]["fitted"] - starts[s]["found"]["coco"][0] for s in seeds)
        spread = stdev(gains) if len(gains) > 1 else 0.0
        found.append(Place(images, fitted, fmean(gains), spread))
    return found


def draw(file: Path, out: Path) -> None:
    """A point per number of images, for each kind of labels."""
    runs = [run for run in load_runs(file, "curve") if run["units"] == 64]
    with svg_figure(out, (6.4, 3.6)) as figure:
        panel = figure.subplots()
        for marker, (start, says) in zip("os", LABELS.items(), strict=True):
            of_labels = places(runs, start)
            x, y = [p.fitted for p in of_labels], [p.gain for p in of_labels]
            panel.errorbar(x, y, [p.spread for p in of_labels], fmt=marker, capsize=2, label=says, markersize=5)
            for place in of_labels:
                panel.annotate(
                    f"{place.images} images", (place.fitted, place.gain), (5, 4), textcoords="offset points", fontsize=7
                )
        panel.margins(x=0.15, y=0.12)
        panel.axhline(0.0, color="grey", linewidth=0.8)
        panel.set_xlabel("overfitting before: COCO AP on training images minus COCO AP on val")
        panel.set_ylabel("gain in COCO AP over more cross-entropy")
        panel.legend(frameon=False)
        figure.tight_layout()
