"""Tables of `experiments.deployed.heads`, as Markdown: one per metric, a row per head.

python -m experiments.deployed.table FILE.jsonl [--write FILE.md]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from experiments.deployed.heads import LABELS, METRICS, START_RATE, Way, best_of, ways_on
from experiments.results import Run, load_runs, mean_and_spread
from stepgrad.files import write_whole

NAMES = {"voc": "VOC, YOLOv8n", "alexnet": "VOC, AlexNet", "visdrone": "VisDrone, YOLOv8n"}
TITLES = {
    "recall": "Recall at precision 0.9 on val, per cent, mean over classes",
    "deployed recall": "Recall on val at the thresholds that gave precision 0.9 on held-out images [and the precision there]",
    "cost": "Cost of 100 images of val, a false alarm 1, a miss 10, thresholds from held-out images",
}
COLUMNS = {"start": "cross-entropy", "more": "more of it", "map": "mAP", "metric": "the metric"}
SIZES = {0: "linear"}


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
    ways = chosen_ways(chosen, "cost" if measure == "cost" else "recall", labels)
    by_way = {name: values_of(final, way, measure) for name, way in ways.items()}
    cells = [mean_and_spread(list(values.values())) if values else "" for values in by_way.values()]
    if measure == "deployed recall":
        precise = [values_of(final, way, "deployed precision") for way in ways.values()]
        cells = [
            f"{cell} [{sum(p.values()) / len(p):.0f}]" if p else "" for cell, p in zip(cells, precise, strict=True)
        ]
    gains = [
        [by_way["metric"][s] - by_way[other][s] for s in by_way["metric"] if s in by_way[other]]
        for other in ("more", "map")
    ]
    return cells + [mean_and_spread(gain, signed=True) if gain else "" for gain in gains]


def table(file: Path, measure: str) -> list[str]:
    runs = {phase: load_runs(file, phase) for phase in ("choose", "final")}
    lines = [
        f"| features, head, labels | {' | '.join(COLUMNS.values())} | over more cross-entropy | over mAP |",
        f"|---|{'---|' * (len(COLUMNS) + 2)}",
    ]
    heads = {(list(NAMES).index(run["set"]), run["units"]) for run in runs["final"]}
    for name, units in ((list(NAMES)[n], units) for n, units in sorted(heads)):
        own = {phase: [r for r in found if (r["set"], r["units"]) == (name, units)] for phase, found in runs.items()}
        for labels in LABELS:
            cells = row(own["choose"], own["final"], labels, measure)
            lines.append(f"| {NAMES[name]}, {SIZES.get(units, f'{units} units')}, {labels} | {' | '.join(cells)} |")
    return lines


def render(file: Path) -> str:
    parts: list[str] = []
    for measure, title in TITLES.items():
        parts += [f"**{title}**", "", *table(file, measure), ""]
    return "\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args(arguments)
    text = render(options.file)
    if options.write:
        write_whole(options.write, f"# Heads trained for the metric they are deployed by\n\n{text}".encode())
    print(text)


if __name__ == "__main__":
    main()
