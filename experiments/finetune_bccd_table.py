"""The page of `experiments.finetune_bccd`, from its runs."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from experiments import finetune_bccd
from experiments.finetune_bccd import HELD_OUT, PROTOCOLS
from experiments.records import Run, grouped, load_runs, mean_and_spread, table
from stepgrad.models.fine_tuning.result import STOCK

KEPT = "what was kept"
MACHINE = "One thread of an Intel Xeon that had other work too, so that seconds say little."


def of_way(run: Run, way: str, protocol: str) -> list[float]:
    """mAP on test images by seed of order; of what was kept, the head that `finetune` returned: the first seed's."""
    values: list[float] = run["ways"][run["chosen"] if way == KEPT else way]["test"][protocol]
    return values[:1] if way == KEPT else values


def cost(run: Run) -> tuple[float, float]:
    """By how much the head that is kept is better on test images than more of the usual loss, and the latter's spread."""
    control = of_way(run, STOCK, run["protocol"])
    (kept,) = of_way(run, KEPT, run["protocol"])
    return kept - statistics.mean(control), statistics.stdev(control)


def ways_table(runs: Sequence[Run]) -> str:
    """Mean (standard deviation) over the starts; the value of a start is the mean of its seeds of order."""
    rows = []
    for way in runs[0]["ways"]:
        cells = [mean_and_spread([statistics.mean(run["ways"][way]["val"]) for run in runs]), *_tests(runs, way)]
        rows.append([way, *cells, f"{statistics.mean(run['ways'][way]['seconds'] for run in runs):.0f}"])
    rows.append([f"**{KEPT}**", "", *_tests(runs, KEPT), ""])
    tests = [f"test {protocol}" for protocol in PROTOCOLS]
    return table(["training", f"held-out {runs[0]['protocol']}", *tests, "seconds"], rows)


def _tests(runs: Sequence[Run], way: str) -> list[str]:
    return [mean_and_spread([statistics.mean(of_way(run, way, p)) for run in runs]) for p in PROTOCOLS]


def seeds_table(runs: Sequence[Run]) -> str:
    """Start by start, test mAP by the protocol that was trained for."""
    ways, rows = list(runs[0]["ways"]), []
    for run in runs:
        cells = [mean_and_spread(of_way(run, way, run["protocol"])) for way in ways]
        rows.append([str(run["seed"]), *cells, run["chosen"], f"{cost(run)[0]:+.1f}"])
    return table(["seed", *ways, "kept", "kept less more of the usual loss"], rows)


def section(runs: Sequence[Run]) -> str:
    """The runs of one protocol and size, in words and numbers."""
    counted = ", ".join(f"{way} {count}" for way, count in Counter(run["chosen"] for run in runs).most_common())
    differences = [cost(run)[0] for run in runs]
    spread = statistics.mean(cost(run)[1] for run in runs)
    return "\n\n".join(
        [
            f"## `{runs[0]['protocol']}`, {runs[0]['images']} images held out",
            f"Kept, of {len(runs)} starts: {counted}. Against more of the usual loss the head that was kept brought "
            f"{mean_and_spread(differences, signed=True)} points of {runs[0]['protocol']} on test images, at worst "
            f"{min(differences):+.1f}. More of the usual loss itself varies by {spread:.1f} over the order of images.",
            ways_table(runs),
            "Start by start, on test images:",
            seeds_table(runs),
        ]
    )


def in_short(runs: Sequence[Run]) -> str:
    """Whether a head was ever kept that is worse than more of the usual loss."""
    below = sum(difference < -spread for difference, spread in map(cost, runs))
    worst, best = min(cost(run)[0] for run in runs), max(cost(run)[0] for run in runs)
    return (
        f"In {below} of {len(runs)} runs the head that was kept is below more of the usual loss on test images by more than "
        f"that one varies; the difference is {worst:+.1f} to {best:+.1f} points. Runs of one "
        "start share its trainings, so they are not independent. The rule of choice was written after the first start had been "
        "seen, test images too."
    )


def page(file: Path) -> str:
    """The page of the runs on record."""
    runs = load_runs(file, "final")
    title, about = (finetune_bccd.__doc__ or "").split("\n", 1)
    parts = [f"# {title}\n{about}{MACHINE} mAP in points, mean (standard deviation).", in_short(runs)]
    groups = grouped(runs, "protocol", "held_out")
    chosen = [groups[key] for key in product(PROTOCOLS, HELD_OUT) if key in groups]
    parts += [section(sorted(runs, key=lambda run: run["seed"])) for runs in chosen]
    return "\n\n".join(parts) + "\n"
