"""The table of the balance trial, from its runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.results import load_runs, mean_and_spread
from stepgrad.files import write_whole

INTRODUCTION = """# Balance: which form lets training for mAP work?

A 512-unit head on frozen ImageNet AlexNet features of VOC 2012 windows (700 training and 700 val images, selective
search, 512 principal components), Adam, 100 steps of 32 images x 300 windows, area AP after NMS at 0.3, no clip, no L4.
"scratch" trains raw outputs from random weights; "nll" goes on from 600 steps of cross-entropy, on log-probabilities.
The estimator "nll" is the control: cross-entropy on as many images (400 steps of 8). Each arm took its learning rate
from the grid of its start by mAP on held-out training images; val was evaluated once, at the end. Means over seeds, with
the standard deviation; rows without val mAP were compared on held-out images only, with one seed.

`python -m experiments.balance choose --data FOLDER --cache DIR`, then `final`.
"""


def render(file: Path, page: Path) -> str:
    """Write the page and return it."""
    held = {(r["arm"], r["rate"]): r["heldout"] for r in load_runs(file, "choose")}
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in load_runs(file, "final"):
        groups.setdefault(row["arm"], []).append(row)
    waiting = [r for r in best_runs(load_runs(file, "choose")) if r["arm"] not in groups]
    header = ["start", "estimator", "balance", "through NMS", "rate", "held-out mAP", "train mAP", "val mAP", "seeds"]
    lines = [_line(header), _line(["---"] * len(header)), *[_row(rows, held) for rows in groups.values()]]
    lines += [_row_without_val(run) for run in waiting]
    text = INTRODUCTION + "\n" + "\n".join(lines) + "\n"
    write_whole(page, text.encode())
    return text


def _row(rows: list[dict[str, Any]], held: dict[tuple[str, float], float]) -> str:
    first = rows[0]
    chosen = held.get((first["arm"], first["rate"]))
    return _line(
        [
            *(str(first[key]) for key in ("start", "estimator", "balance", "through_nms")),
            f"{first['rate']:g}",
            "-" if chosen is None else f"{chosen:.1f}",
            mean_and_spread([r["train"] for r in rows]),
            mean_and_spread([r["val"] for r in rows]),
            str(len(rows)),
        ]
    )


def best_runs(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of every arm, the run with the best held-out mAP."""
    best: dict[str, dict[str, Any]] = {}
    for run in runs:
        if run["arm"] not in best or run["heldout"] > best[run["arm"]]["heldout"]:
            best[run["arm"]] = run
    return list(best.values())


def _row_without_val(run: dict[str, Any]) -> str:
    """An arm that was only compared on held-out training images; its training mAP is of the images it was trained on."""
    names = [str(run[key]) for key in ("start", "estimator", "balance", "through_nms")]
    return _line([*names, f"{run['rate']:g}", f"{run['heldout']:.1f}", f"{run['train']:.1f}", "-", "-"])


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
