"""The page of `experiments.endless.arms`, from its runs: `python -m experiments.endless.arms_table FILE.jsonl`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from experiments.endless import arms
from experiments.endless.held_out import PROTOCOLS
from experiments.results import Run, load_runs, mean_and_spread
from stepgrad.files import write_whole

Cells = list[str]
KEPT = {"kept, coco": "coco", "kept, voc12": "voc12"}
"""What `keep_best` ends with: of the start, `stock` and the arm of a protocol, the best by that protocol on val."""


def render(file: Path) -> str:
    """Write the page beside the file and return it."""
    final, choose = load_runs(file, "final"), load_runs(file, "choose")
    families = list(dict.fromkeys(run["family"] for run in [*final, *choose]))
    parts = [
        "# From a converged start: more of the stock loss, mAP beside it, or soft labels",
        (arms.__doc__ or "").split("\n", 1)[1].strip("\n"),
        "mAP in points on test images, mean (standard deviation) over seeds; gains are over `stock`, seed by seed. `kept, "
        "coco` is what a user of `keep_best` ends with: of the start, `stock` and `coco`, the weights that are best by "
        "COCO's AP on val; `kept, voc12` likewise. The starts differ in length (steps in their config.json): the rate of each "
        "ended at zero, but those of 3000 or 6000 steps (FCOS, Faster R-CNN, RetinaNet) would learn more from more.",
        table([HEADER, *(row for family in families for row in rows_of(family, final))]),
        "## What was tried",
        "On val, one seed: the sum of both metrics decides.",
        table([CHOOSE_HEADER, *map(choose_row, choose)]),
        "## Trials",
        "On val, one seed, of no weight in any choice: other settings of mAP. `share`: the length of its gradient at the class "
        "logits, next to the stock classification loss's.",
        table([TRIAL_HEADER, *map(trial_row, load_runs(file, "trial"))]),
    ]
    text = "\n\n".join(parts) + "\n"
    write_whole(file.with_suffix(".md"), text.encode())
    return text


HEADER = [
    "family",
    "arm",
    "rate",
    "trains",
    *(f"{name}{what}" for name in PROTOCOLS for what in ("", " gain")),
    "seeds",
]
CHOOSE_HEADER = ["family", "arm", "rate", "trains", *PROTOCOLS, "seconds"]


TRIAL_HEADER = ["family", "arm", "rate", "trains", "mode", "share", "steps", "images", *PROTOCOLS]


def rows_of(family: str, final: Sequence[Run]) -> list[Cells]:
    """The rows of one family: the start, its arms, and what `keep_best` would have kept."""
    by_arm: dict[str, dict[int, Run]] = {}
    for run in final:
        if run["family"] == family:
            by_arm.setdefault(run["arm"], {})[run["seed"]] = run
    stock = by_arm.get("stock", {})
    for name, protocol in KEPT.items():
        by_arm[name] = kept(by_arm, protocol)
    return [_row(family, name, runs, stock) for name, runs in by_arm.items() if runs]


def kept(by_arm: dict[str, dict[int, Run]], protocol: str) -> dict[int, Run]:
    """By seed, the run with the best val of the start, the stock loss and the mAP of a protocol; of equals the first."""
    start, stock, with_map = (by_arm.get(name, {}) for name in ("start", "stock", protocol))
    if not start:
        return {}
    both = [seed for seed in stock if seed in with_map]
    return {
        seed: max([start[0], stock[seed], with_map[seed]], key=lambda run: float(run["val"][protocol])) for seed in both
    }


def _row(family: str, name: str, runs: dict[int, Run], stock: dict[int, Run]) -> Cells:
    point = [""] * 2 if name in KEPT or name == "start" else _point(next(iter(runs.values())))
    cells = [family, name, *point]
    for protocol in PROTOCOLS:
        cells.append(mean_and_spread([run["test"][protocol] for run in runs.values()]))
        gains = [run["test"][protocol] - stock[seed]["test"][protocol] for seed, run in runs.items() if seed in stock]
        cells.append(mean_and_spread(gains, signed=True) if gains and name != "stock" else "")
    return [*cells, "" if name == "start" else str(len(runs))]


def choose_row(run: Run) -> Cells:
    scores = [f"{run['val'][protocol]:.1f}" for protocol in PROTOCOLS]
    return [run["family"], run["arm"], *_point(run), *scores, f"{run['seconds']:.0f}"]


def trial_row(run: Run) -> Cells:
    options = [run["mode"], f"{run['share']:g}"] if run["arm"] in ("coco", "voc12") else ["", ""]
    scores = [f"{run['val'][protocol]:.1f}" for protocol in PROTOCOLS]
    return [run["family"], run["arm"], *_point(run), *options, str(run["steps"]), str(run["images"]), *scores]


def _point(run: Run) -> Cells:
    return [f"{run['rate']:g}", run["trains"]]


def table(rows: Sequence[Cells]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [rows[0], ["---"] * len(rows[0]), *rows[1:]])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    print(render(parser.parse_args(arguments).file))


if __name__ == "__main__":
    main()
