"""How each loss learns: mAP of training and of held-out images against steps and seconds, at every row's own rate.

    python -m experiments.curves run --data FOLDER --cache DIR     # after `python -m experiments.run ... --tune`
    python -m experiments.curves render

Every point is a run of its own of that many steps, with seed 0 on all but the 500 held-out training images, which the curves
are drawn for. Training mAP is that of 500 training images, as training sees them: corrections are judged on outputs of
models that have not seen the image.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from experiments.cross_fit import CrossEntropyModels
from experiments.frozen_features import load_parts
from experiments.results import load_runs, save_runs
from experiments.rows import ROWS, Row
from experiments.run import HELD_OUT, RESULTS, chosen_tuning, prepare, run
from experiments.window_head import Part, Tuning

CURVES = {
    "nll-more": "NLL",
    "radius": "mAP, radius 3",
    "mee": "mAP, MEE",
    "song": "Song et al.",
    "yue": "Yue et al.",
    "ap-loss": "AP-Loss",
    "smooth-ap": "Smooth-AP",
}
STEPS = (0, 20, 60)
FILE = RESULTS / "curves.jsonl"
Point = dict[str, Any]


def curve(row: Row, tuning: Tuning, models: CrossEntropyModels, held_out: Part) -> list[Point]:
    """The row after each number of steps."""
    points = []
    for steps in STEPS:
        short = replace(row, steps=steps)
        _, part, _ = prepare(short, models, {}, 0)
        found = run(short, tuning, models, {"heldout": held_out}, 0, {"train": part[:HELD_OUT]})
        points.append(
            {"steps": steps, "seconds": found["train_seconds"]}
            | {name: maps.get("voc12") for name, maps in found["map"].items()}
        )
        print(row.name, points[-1], flush=True)
    return points


def plot(curves: dict[str, list[Point]], file: Path) -> None:
    """Training and held-out mAP, each against steps and seconds."""
    from matplotlib.figure import Figure

    from stepgrad.evaluation.plots import save_figure

    figure = Figure(figsize=(8.4, 5.6), layout="constrained")
    panels = figure.subplots(2, 2, sharey="row", sharex="col")
    shown = [("heldout", "mAP of held-out images"), ("train", "mAP of training images")]
    for line, (name, points) in enumerate((n, curves[n]) for n in CURVES if n in curves):
        for panel_row, (where, _) in zip(panels, shown, strict=True):
            for panel, along in zip(panel_row, ("steps", "seconds"), strict=True):
                finite = [p for p in points if p.get(where) is not None]
                style = {"color": f"C{line}", "marker": "o", "markersize": 3}
                panel.plot([p[along] for p in finite], [p[where] for p in finite], label=CURVES[name], **style)
    for panel_row, (_, title) in zip(panels, shown, strict=True):
        panel_row[0].set_ylabel(title)
    panels[1][0].set_xlabel("steps of 64 images")
    panels[1][1].set_xlabel("seconds on one core")
    for panel in panels.flat:
        panel.spines[["top", "right"]].set_visible(False)
    panels[0][1].legend(frameon=False, fontsize=8)
    save_figure(figure, file)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phase", choices=["run", "render"])
    parser.add_argument("--data", type=Path, default=os.environ.get("STEPGRAD_DATA"), help="folder with VOC2012-320")
    parser.add_argument("--cache", type=Path, help="folder for features and start weights")
    parser.add_argument("--results", type=Path, default=RESULTS, help="of experiments.run, for the rates")
    parser.add_argument("--file", type=Path, default=FILE)
    options = parser.parse_args(arguments)
    curves = {run["row"]: run["points"] for run in load_runs(options.file, "run")}
    if options.phase == "run":
        if options.data is None or options.cache is None:
            parser.error("--data (or STEPGRAD_DATA) and --cache are needed")
        torch.set_num_threads(1)
        train, _ = load_parts(options.data, options.cache, 4000, 2000)
        models = CrossEntropyModels(train[:-HELD_OUT], 0, options.cache)
        for name in [n for n in CURVES if n not in curves]:
            tuning = chosen_tuning(ROWS[name], options.results)
            curves[name] = curve(ROWS[name], tuning, models, train[-HELD_OUT:])
            save_runs(options.file, "run", {"row": name, "points": curves[name]})
    plot(curves, options.file.with_suffix(".svg"))


if __name__ == "__main__":
    main()
