"""The page of `experiments.endless.arms`, from its runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.endless import arms
from experiments.endless.held_out import PROTOCOLS
from experiments.records import Run, about, gain, grouped, load_runs, mean_and_spread, table

KEPT = {"kept, coco": "coco", "kept, voc12": "voc12"}
"""What `keep_best` ends with: of the start, `stock` and the arm of a protocol, the best by that protocol on val."""
HEADER = ["family", "arm", "rate", "trains"]


def page(file: Path) -> str:
    """The page of the runs on record."""
    final, choose = load_runs(file, "final"), load_runs(file, "choose")
    families = list(dict.fromkeys(run["family"] for run in [*final, *choose]))
    gains = [f"{name}{what}" for name in PROTOCOLS for what in ("", " gain")]
    parts = [
        "# From a converged start: more of the stock loss, mAP beside it, or soft labels",
        about(arms.__doc__).strip("\n"),
        "mAP in points on test images, mean (standard deviation) over seeds; gains are over `stock`, seed by seed. `kept, "
        "coco` is what a user of `keep_best` ends with: of the start, `stock` and `coco`, the weights that are best by "
        "COCO's AP on val; `kept, voc12` likewise. The starts differ in length (steps in their config.json): the rate of each "
        "ended at zero, but those of 3000 or 6000 steps (FCOS, Faster R-CNN, RetinaNet) would learn more from more.",
        table([*HEADER, *gains, "seeds"], [row for family in families for row in rows_of(family, final)]),
        "## What was tried",
        "On val, one seed: the sum of both metrics decides.",
        table([*HEADER, *PROTOCOLS, "seconds"], [[*_point(r), *_val(r), f"{r['seconds']:.0f}"] for r in choose]),
        "## Trials",
        "On val, one seed, of no weight in any choice: other settings of mAP. `share`: the length of its gradient at the class "
        "logits, next to the stock classification loss's.",
        table(
            [*HEADER, "mode", "share", "steps", "images", *PROTOCOLS], list(map(trial_row, load_runs(file, "trial")))
        ),
    ]
    return "\n\n".join(parts) + "\n"


def rows_of(family: str, final: Sequence[Run]) -> list[list[str]]:
    """The rows of one family: the start, its arms, and what `keep_best` would have kept."""
    by_arm = {
        arm: {run["seed"]: run for run in runs}
        for (of, arm), runs in grouped(final, "family", "arm").items()
        if of == family
    }
    by_arm |= {name: kept(by_arm, protocol) for name, protocol in KEPT.items()}
    return [_row(family, name, runs, by_arm.get("stock", {})) for name, runs in by_arm.items() if runs]


def kept(by_arm: dict[str, dict[int, Run]], protocol: str) -> dict[int, Run]:
    """By seed, the run with the best val of the start, the stock loss and the mAP of a protocol; of equals the first."""
    start, stock, with_map = (by_arm.get(name, {}) for name in ("start", "stock", protocol))
    if not start:
        return {}
    both = [seed for seed in stock if seed in with_map]
    return {
        seed: max([start[0], stock[seed], with_map[seed]], key=lambda run: float(run["val"][protocol])) for seed in both
    }


def _row(family: str, name: str, runs: dict[int, Run], stock: dict[int, Run]) -> list[str]:
    cells = [family, name, "", ""] if name in KEPT or name == "start" else _point(next(iter(runs.values())))
    for protocol in PROTOCOLS:
        values, control = ({seed: run["test"][protocol] for seed, run in own.items()} for own in (runs, stock))
        cells += [mean_and_spread(list(values.values())), gain(values, control) if name != "stock" else ""]
    return [*cells, "" if name == "start" else str(len(runs))]


def trial_row(run: Run) -> list[str]:
    options = [run["mode"], f"{run['share']:g}"] if run["arm"] in ("coco", "voc12") else ["", ""]
    return [*_point(run), *options, str(run["steps"]), str(run["images"]), *_val(run)]


def _point(run: Run) -> list[str]:
    return [run["family"], run["arm"], f"{run['rate']:g}", run["trains"]]


def _val(run: Run) -> list[str]:
    return [f"{run['val'][protocol]:.1f}" for protocol in PROTOCOLS]
