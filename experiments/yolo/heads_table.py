"""The page of `experiments.yolo.heads`, from its runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from experiments.records import Run, gain, grouped, load_runs, mean_and_spread, table
from experiments.yolo.heads import OBJECTIVES

RAREST = {"visdrone": (7, 6, 8), "voc_tail": (12, 18, 10, 5)}
"""Numbers of the classes with the fewest training objects: awning-tricycle, tricycle, bus; horse, train, diningtable, bus."""
INTRODUCTION = """# New class heads on the frozen YOLOv8n

    python -m experiments.yolo.windows --data DIR --cache DIR --set voc            # and bccd
    python -m experiments.yolo.heads choose --set voc --data DIR --cache DIR --out FILE.jsonl
    python -m experiments.yolo.heads final --set voc --data DIR --cache DIR --out FILE.jsonl

Mean (standard deviation) in points, val of VOC 2012 and test of BCCD; gains are over more of the same cross-entropy, seed by
seed. A row has as many seeds as its runs in the file. Intel Xeon (family 6, model 207), one thread; seconds of a machine busy
with other work.
"""
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


def ways_table(runs: Sequence[Run], metrics: Sequence[str]) -> str:
    """One row per way; gains are seed by seed, over more of the cross-entropy that it goes on from."""
    by_way, rows = grouped(runs, "start", "loss"), []
    for (start, loss), own in by_way.items():
        more, cells = by_way.get((start, str(start)), []), [label(start, loss)]
        for metric in metrics:
            values, control = ({run["seed"]: value(run, metric) for run in some} for some in (own, more))
            cells += [mean_and_spread(list(values.values())), gain(values, control) if loss != start else ""]
        rows.append([*cells, f"{fmean(run['s'] for run in own):.0f}"])
    return table(["training", *(text for metric in metrics for text in (HEADINGS[metric], "gain")), "seconds"], rows)


def page(file: Path) -> str:
    """The page of the runs on record: a table for each set and kind of head."""
    parts = [INTRODUCTION]
    for key, runs in grouped(load_runs(file, "final"), "set", "units", "images", "average").items():
        name, units, images, average = key
        metrics = ["coco", "ap50", "rare"] if name in RAREST else ["coco", "voc12"]
        size = f"{units} units" if units else "linear"
        few = f", {images} training images" if images else ""
        mean = f", running mean {average}" if average else ""
        seeds = len({run["seed"] for run in runs})
        parts += [f"**{name}, {size}{few}{mean}, {seeds} seeds**", "", ways_table(runs, metrics), ""]
    return "\n".join(parts)
