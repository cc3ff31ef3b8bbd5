"""Tables of `experiments.yolo.heads`, as Markdown.

python -m experiments.yolo.heads_table FILE.jsonl
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from experiments.results import load_runs, mean_and_spread
from experiments.yolo.heads import OBJECTIVES

Run = dict[str, Any]
RAREST = {"visdrone": (7, 6, 8), "voc_tail": (12, 18, 10, 5)}
"""Numbers of the classes with the fewest training objects: awning-tricycle, tricycle, bus; horse, train, diningtable, bus."""
HEADINGS = {"coco": "COCO AP", "ap50": "AP50", "voc12": "area mAP", "rare": "rarest classes, AP50"}


def value(run: Run, metric: str) -> float:
    """In points; the mean over classes comes first in a list."""
    if metric != "rare":
        return float(run["found"][metric][0])
    of_class = run["found"]["ap50"][1:]
    return fmean(of_class[c] for c in RAREST[run["set"]] if not math.isnan(of_class[c]))


def label(start: str | None, loss: str) -> str:
    if start is None:
        return f"cross-entropy, {loss} labels" if loss in ("hard", "soft", "aligned") else loss
    if loss == start:
        return f"{start}, then more of it"
    return f"{start}, then mAP `{loss}`" if loss in OBJECTIVES else f"{start}, then {loss}"


def table(runs: Sequence[Run], metrics: Sequence[str]) -> list[str]:
    """One row per way; gains are seed by seed, over more of the cross-entropy that it goes on from."""
    headings = [text for metric in metrics for text in (HEADINGS[metric], "gain")]
    lines = [f"| training | {' | '.join(headings)} | seconds |", f"|---|{'---|' * len(headings)}---|"]
    ways = dict.fromkeys((run["start"], run["loss"]) for run in runs)
    by_way = {way: {run["seed"]: run for run in runs if (run["start"], run["loss"]) == way} for way in ways}
    for (start, loss), own in by_way.items():
        more = by_way.get((start, str(start)), {})
        cells = [label(start, loss)]
        for metric in metrics:
            cells += [
                mean_and_spread([value(run, metric) for run in own.values()]),
                _gain(own, more, metric, loss != start),
            ]
        cells.append(f"{fmean(run['s'] for run in own.values()):.0f}")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _gain(own: dict[int, Run], more: dict[int, Run], metric: str, shown: bool) -> str:
    gains = [value(own[seed], metric) - value(more[seed], metric) for seed in own if seed in more]
    return mean_and_spread(gains, signed=True) if gains and shown else ""


def _table_of(run: Run) -> tuple[Any, ...]:
    return (run["set"], run["units"], run["images"], run["average"])


def render(file: Path) -> str:
    parts: list[str] = []
    runs = load_runs(file, "final")
    for name, units, images, average in dict.fromkeys(map(_table_of, runs)):
        own = [run for run in runs if _table_of(run) == (name, units, images, average)]
        metrics = ["coco", "ap50", "rare"] if name in RAREST else ["coco", "voc12"]
        size = f"{units} units" if units else "linear"
        few = f", {images} training images" if images else ""
        mean = f", running mean {average}" if average else ""
        seeds = len({run["seed"] for run in own})
        parts += [f"**{name}, {size}{few}{mean}, {seeds} seeds**", "", *table(own, metrics), ""]
    return "\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    print(render(parser.parse_args(arguments).file))


if __name__ == "__main__":
    main()
