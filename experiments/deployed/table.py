"""The page of `experiments.deployed.heads`, from its runs: a table per metric, a row per head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from statistics import fmean

from experiments.deployed.heads import LABELS, METRICS, START_RATE, Way, best_of, ways_on
from experiments.records import Run, gain, grouped, load_runs, mean_and_spread, table

TITLE = "# Heads trained for the metric they are deployed by"
NAMES = {"voc": "VOC, YOLOv8n", "alexnet": "VOC, AlexNet", "visdrone": "VisDrone, YOLOv8n"}
TITLES = {
    "recall": "Recall at precision 0.9 on val, per cent, mean over classes",
    "deployed recall": "Recall on val at the thresholds that gave precision 0.9 on held-out images [and the precision there]",
    "cost": "Cost of 100 images of val, a false alarm 1, a miss 10, thresholds from held-out images",
}
COLUMNS = {"start": "cross-entropy", "more": "more of it", "map": "mAP", "metric": "the metric"}


def way_of(run: Run) -> Way:
    return Way(**{field.name: run[field.name] for field in fields(Way)})


def chosen_ways(runs: Sequence[Run], metric: str, labels: str) -> dict[str, Way]:
    """The best of each way on held-out images, as `heads.choose` finds them."""
    found = {way_of(run): run["found"] for run in runs}

    def best(ways: Sequence[Way], measure: str) -> Way:
        return best_of({way: found[way] for way in ways if way in found}, measure)

    start = Way(labels, START_RATE, runs[0]["units"])
    return {"start": start, **{name: best(ways, METRICS[metric]) for name, ways in ways_on(start, metric).items()}}


def values_of(runs: Sequence[Run], way: Way, measure: str) -> dict[int, float]:
    """By seed."""
    scale = 100.0 if measure == "cost" else 1.0
    return {run["seed"]: scale * run["found"][measure] for run in runs if way_of(run) == way}


def row(chosen: Sequence[Run], final: Sequence[Run], labels: str, measure: str) -> list[str]:
    """The cells of a head: each way, and the gain of the metric over more cross-entropy and over mAP."""
    ways = chosen_ways(chosen, "cost" if measure == "cost" else "recall", labels)
    by_way = {name: values_of(final, way, measure) for name, way in ways.items()}
    cells = [mean_and_spread(list(values.values())) for values in by_way.values()]
    if measure == "deployed recall":
        precise = [values_of(final, way, "deployed precision").values() for way in ways.values()]
        cells = [f"{cell} [{fmean(p):.0f}]" if p else "" for cell, p in zip(cells, precise, strict=True)]
    return cells + [gain(by_way["metric"], by_way[other]) for other in ("more", "map")]


def metric_table(file: Path, measure: str) -> str:
    chosen, final = (grouped(load_runs(file, phase), "set", "units") for phase in ("choose", "final"))
    rows = []
    for name, units in sorted(final, key=lambda head: (list(NAMES).index(head[0]), head[1])):
        for labels in LABELS:
            cells = row(chosen[name, units], final[name, units], labels, measure)
            rows.append([f"{NAMES[name]}, {f'{units} units' if units else 'linear'}, {labels}", *cells])
    return table(["features, head, labels", *COLUMNS.values(), "over more cross-entropy", "over mAP"], rows)


def page(file: Path) -> str:
    """The page of the runs on record."""
    tables = [f"**{title}**\n\n{metric_table(file, measure)}\n" for measure, title in TITLES.items()]
    return "\n".join([f"{TITLE}\n", *tables])
