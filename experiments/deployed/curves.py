"""Where on the precision-recall curve each training spends its capacity: the figure of docs/deployed_metrics.md.

    python -m experiments.deployed.curves --set voc --units 0 --data DIR --cache DIR --out FILE.jsonl    # and its SVG beside it

Trains again what `heads final` chose for recall at precision 0.9, with the first seed, and draws the mean over classes of the
interpolated precision on val; below it the gain over more cross-entropy.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from experiments.deployed.heads import LABELS, open_runs
from experiments.deployed.measure import PRECISION
from experiments.deployed.sets import SETS
from experiments.deployed.table import COLUMNS, chosen_ways
from experiments.figures import svg_figure
from experiments.records import load_runs
from stepgrad.evaluation.result import EvaluationResult

LEVELS = np.linspace(0.0, 1.0, 201)
SHOWN = {"more": "tab:grey", "map": "tab:blue", "metric": "tab:red"}


def mean_curve(result: EvaluationResult) -> NDArray[np.float64]:
    """(levels,) the best precision at each recall or beyond, mean over classes with objects; 0 where no list gets so far."""
    curves = []
    for row in result.classes:
        if row.objects:
            curve = row.curve()
            at = np.searchsorted(curve.recall, LEVELS - 1e-12)
            best = np.append(curve.interpolated, 0.0)
            curves.append(best[np.minimum(at, len(best) - 1)])
    return np.mean(curves, axis=0, dtype=np.float64)


def draw(curves: dict[str, NDArray[np.float64]], file: Path) -> None:
    names = {**COLUMNS, "more": "cross-entropy", "metric": "recall at precision 0.9"}
    with svg_figure(file, (6.4, 5.2)) as figure:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
        for name, colour in SHOWN.items():
            above.plot(LEVELS, 100 * curves[name], color=colour, label=names[name], linewidth=1.4)
            if name != "more":
                below.plot(LEVELS, 100 * (curves[name] - curves["more"]), color=colour, linewidth=1.4)
        above.axhline(100 * PRECISION, color="black", linewidth=0.6, linestyle=":")
        below.axhline(0.0, color="grey", linewidth=0.8)
        above.set_ylabel("precision, mean over classes (%)")
        below.set_ylabel("gain over cross-entropy")
        below.set_xlabel("recall")
        above.legend(frameon=False)
        figure.tight_layout()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=list(SETS), default="voc")
    parser.add_argument("--units", type=int, default=0)
    parser.add_argument("--labels", choices=LABELS, default="hard")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="the runs; the figure is written beside them")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    own = [r for r in load_runs(options.out, "choose") if (r["set"], r["units"]) == (options.set, options.units)]
    ways = chosen_ways(own, "recall", options.labels)
    heads = open_runs(options, test=True)["final"].heads(0)
    curves = {name: mean_curve(heads.lists(heads.make(ways[name])[0], "test")) for name in SHOWN}
    draw(curves, options.out.with_name(f"curves-{options.set}-{options.units}-{options.labels}.svg"))


if __name__ == "__main__":
    main()
