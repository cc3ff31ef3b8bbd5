"""Tables of `experiments.masks.trial`, as Markdown.

python -m experiments.masks.table FILE.jsonl
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.masks.arms import ARMS, METRICS
from experiments.results import load_runs, mean_and_spread

BOUNDS = {
    "own": "the detector's own scores",
    "mask": "bound: true mask IoU as score",
    "box": "bound: true box IoU as score",
}
SETTINGS = ("rate", "steps", "weight_decay", "hit", "alpha", "radius", "pull")


class Page:
    """The runs of one treatment of void pixels."""

    def __init__(self, file: Path, void: str) -> None:
        self.file, self.void = file, void

    def runs(self, phase: str, **facts: Any) -> list[dict[str, Any]]:
        return [run for run in load_runs(self.file, phase) if {"void": self.void, **facts}.items() <= run.items()]

    def values(self, metric: str, **facts: Any) -> str:
        """Mean (spread over seeds) on val."""
        return mean_and_spread([run["found"][metric] for run in self.runs("final", **facts)])

    def gain(self, metric: str, **facts: Any) -> str:
        """The gain and its interval over images."""
        found = self.runs("interval", **facts)
        return "{1:+.1f} [{0:+.1f}, {2:+.1f}]".format(*found[-1]["gain"][metric]) if found else ""

    def arms(self) -> list[str]:
        """Every arm with all training images; gains are over the detector's own scores."""
        heading = ["scores", *(text for m in METRICS for text in (m, "gain")), "mask AP over mask scoring"]
        rows = [heading, ["---"] * len(heading)]
        rows += [
            [BOUNDS[run["arm"]], *(text for m in METRICS for text in (f"{run['found'][m]:.1f}", "")), ""]
            for run in self.runs("bounds", part="val")
        ]
        for arm in dict.fromkeys(run["arm"] for run in self.runs("final", images=None)):
            own = {"arm": arm, "images": None}
            cells = [(self.values(m, **own), self.gain(m, over="own", **own)) for m in METRICS]
            rows.append([ARMS[arm].says, *sum(cells, ()), self.gain("mask AP", over="scoring", **own)])
        return lines(rows)

    def curve(self) -> list[str]:
        """Mask AP by the number of training images."""
        counts = [*sorted({run["images"] for run in self.runs("final")} - {None}), None]
        rows = [["mask AP by training images", *(str(n or "all") for n in counts)], ["---"] * (len(counts) + 1)]
        rows += [
            [ARMS[arm].says, *(self.values("mask AP", arm=arm, images=n) for n in counts)]
            for arm in ("scoring", "exact")
        ]
        rows += [
            [f"{arm}, gain over {over}", *(self.gain("mask AP", arm=arm, images=n, over=over) for n in counts)]
            for arm, over in (("scoring", "own"), ("exact", "own"), ("exact", "scoring"))
        ]
        return lines(rows) if len(counts) > 1 else []

    def settings(self) -> list[str]:
        """What was chosen, and seconds of CPU per training."""
        heading = ["arm", "images", *SETTINGS, "CPU seconds"]
        rows = [heading, ["---"] * len(heading)]
        for run in self.runs("final", seed=0):
            numbers = [f"{run[name]:g}" for name in (*SETTINGS, "cpu_s")]
            rows.append([run["arm"], str(run["images"] or "all"), *numbers])
        return lines(rows)


def lines(rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in rows] + [""]


def render(file: Path) -> str:
    parts = []
    for void in dict.fromkeys(run["void"] for run in load_runs(file, "final")):
        page = Page(file, void)
        parts += [f"**Void pixels: {void}**", "", *page.arms(), *page.curve(), *page.settings()]
    return "\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    print(render(parser.parse_args(arguments).file))


if __name__ == "__main__":
    main()
