"""How each loss learns: mAP of training and of held-out images against steps and seconds, at every row's own rate.

    python -m experiments.curves run --data FOLDER --cache DIR     # after `python -m experiments.run ... --tune`

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
from experiments.figures import svg_figure
from experiments.frozen_features import load_parts
from experiments.records import load_runs, save_run
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


def draw(file: Path, out: Path) -> None:
    """Training and held-out mAP, each against steps and seconds; a run that failed is a gap."""
    curves = {run["row"]: run["points"] for run in load_runs(file, "run")}
    shown = [("heldout", "mAP of held-out images"), ("train", "mAP of training images")]
    with svg_figure(out, (8.4, 5.6), layout="constrained") as figure:
        panels = figure.subplots(2, 2, sharey="row", sharex="col")
        for line, name in enumerate(name for name in CURVES if name in curves):
            for panel_row, (where, _) in zip(panels, shown, strict=True):
                for panel, along in zip(panel_row, ("steps", "seconds"), strict=True):
                    finite = [p for p in curves[name] if p.get(where) is not None]
                    style = {"color": f"C{line}", "marker": "o", "markersize": 3}
                    panel.plot([p[along] for p in finite], [p[where] for p in finite], label=CURVES[name], **style)
        for panel_row, (_, title) in zip(panels, shown, strict=True):
            panel_row[0].set_ylabel(title)
        panels[1][0].set_xlabel("steps of 64 images")
        panels[1][1].set_xlabel("seconds on one core")
        for panel in panels.flat:
            panel.spines[["top", "right"]].set_visible(False)
        panels[0][1].legend(frameon=False, fontsize=8)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phase", choices=["run"])
    parser.add_argument("--data", type=Path, default=os.environ.get("STEPGRAD_DATA"), help="folder with VOC2012-320")
    parser.add_argument("--cache", type=Path, required=True, help="folder for features and start weights")
    parser.add_argument("--results", type=Path, default=RESULTS, help="of experiments.run, for the rates")
    parser.add_argument("--file", type=Path, default=FILE)
    options = parser.parse_args(arguments)
    if options.data is None:
        parser.error("--data (or STEPGRAD_DATA) is needed")
    torch.set_num_threads(1)
    known = {run["row"] for run in load_runs(options.file, "run")}
    train, _ = load_parts(options.data, options.cache, 4000, 2000)
    models = CrossEntropyModels(train[:-HELD_OUT], 0, options.cache)
    for name in [name for name in CURVES if name not in known]:
        points = curve(ROWS[name], chosen_tuning(ROWS[name], options.results), models, train[-HELD_OUT:])
        save_run(options.file, "run", {"row": name, "points": points})


if __name__ == "__main__":
    main()
