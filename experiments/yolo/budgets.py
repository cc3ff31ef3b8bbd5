"""Heads on the frozen YOLOv8n by budget: every usual loss for so many epochs, or half of them and then mAP for the other half.

    python -m experiments.yolo.budgets choose --set visdrone --data DIR --cache DIR --out FILE.jsonl
    python -m experiments.yolo.budgets final --set visdrone --data DIR --cache DIR --out FILE.jsonl

Rare classes learn slowly under cross-entropy; the mean over classes of AP pushes them as hard as the others. So the question is
how far each loss gets with a usual budget, and where it ends. Every training has a rate that falls to zero at its end, the best
of four on held-out images for its own budget; nothing is a part of a longer training. Going on for mAP starts from the best two
cross-entropies.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from experiments.records import Run, grouped, load_runs, mean_and_spread, table
from experiments.yolo.heads import OBJECTIVES, Point, Runs, Trial, chosen
from experiments.yolo.heads_table import HEADINGS, RAREST, label, value
from experiments.yolo.losses import CROSS_ENTROPIES
from experiments.yolo.sets import SETS

RATES = (1e-3, 3e-3, 1e-2, 3e-2)
EPOCHS = (3, 12, 36)
INTRODUCTION = """# Heads by budget: VisDrone, and VOC made long-tailed

    python -m experiments.yolo.box_branch --data DIR --cache DIR/VisDrone-640      # once, before the windows of visdrone
    python -m experiments.yolo.windows --data DIR --cache DIR --set visdrone
    python -m experiments.yolo.budgets choose --set visdrone --data DIR --cache DIR --out FILE.jsonl
    python -m experiments.yolo.budgets final --set visdrone --data DIR --cache DIR --out FILE.jsonl

Mean (standard deviation) over seeds, in points, on val. "Then" halves the budget. Intel Xeon (family 6, model 207), one thread.
"""


def choose(runs: Runs, units: int, epochs: float, losses: Sequence[str], after: Sequence[str]) -> None:
    """The best rate of every way with this budget."""
    best: list[tuple[float, Point]] = []
    for loss in losses:
        tried = [Point(loss, rate, units=units, epochs=epochs) for rate in RATES]
        best.append(max(((runs.value(p, 0), p) for p in tried), key=lambda pair: pair[0]))
    for _, whole in sorted(best, key=lambda pair: -pair[0])[:2]:
        start = replace(whole, epochs=epochs / 2)
        runs.value(start, 0)
        for loss in after:
            for rate in RATES:
                runs.value(replace(start, loss=loss, rate=rate, start=start.loss), 0, start)
        runs.heads.clear()


def final(runs: Runs, units: int, epochs: float, seeds: Sequence[int]) -> None:
    """Every way at its best rate, on test."""
    whole = chosen(runs.file, runs.name, units, epochs)
    halves = chosen(runs.file, runs.name, units, epochs / 2)
    for seed in seeds:
        for (start, _), point in whole.items():
            if start is None:
                runs.value(point, seed)
        for (start, _), point in halves.items():
            if start is not None:
                runs.value(point, seed, replace(whole[None, start], epochs=epochs / 2))
        runs.heads.clear()


def page(file: Path) -> str:
    """The page of the runs on record: per head, a row per way and a column per budget."""
    parts = [INTRODUCTION]
    for (name, units), runs in grouped(load_runs(file, "final"), "set", "units").items():
        for metric in ("coco", "ap50", *(["rare"] if name in RAREST else [])):
            size = f"{units} units" if units else "a linear head"
            parts += [f"**{name}, {size}: {HEADINGS[metric]}**", "", _budgets_table(runs, metric), ""]
    return "\n".join(parts)


def _budgets_table(runs: Sequence[Run], metric: str) -> str:
    budgets, rows = sorted({_budget(run) for run in runs}), []
    for way, own in grouped(runs, "start", "loss").items():
        values = [[value(run, metric) for run in own if _budget(run) == b] for b in budgets]
        rows.append([label(*way), *map(mean_and_spread, values)])
    return table(["training", *(f"{b:g} epochs" for b in budgets)], rows)


def _budget(run: Run) -> float:
    """Epochs in all."""
    return float(run["epochs"] * (1 if run["start"] is None else 2))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["choose", "final"])
    parser.add_argument("--set", choices=list(SETS), required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--units", type=int, nargs="+", default=[0, 64])
    parser.add_argument("--epochs", type=float, nargs="+", default=list(EPOCHS))
    parser.add_argument("--losses", nargs="+", choices=CROSS_ENTROPIES, default=list(CROSS_ENTROPIES))
    parser.add_argument("--after", nargs="+", choices=list(OBJECTIVES), default=["coco", "voc12"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    of = SETS[options.set]
    trial = Trial(of, of.load(options.data, options.cache, test=options.what == "final"))
    runs = Runs(trial, options.out, options.set, options.what)
    for units in options.units:
        for epochs in options.epochs:
            if options.what == "choose":
                choose(runs, units, epochs, options.losses, options.after)
            else:
                final(runs, units, epochs, options.seeds)


if __name__ == "__main__":
    main()
