"""Trains rows of the result tables: a head on frozen AlexNet features of real VOC 2012 windows.

    python -m experiments.run ROW --tune --data FOLDER --cache DIR       # the grid of rates, on held-out training images
    python -m experiments.run ROW --seed 0 1 2 --data FOLDER --cache DIR # at the rate chosen so; then val, once
    python -m experiments.run --table A --tune ...                       # all rows of a table
    python -m experiments.render tables                                  # the tables in experiments/results/tables.md

All 4000 training images; the last 500 are held out for tuning. Every run is one line of its table's JSONL file, with its
config, command, versions and commit (of the first table, where its row stands in several); a run that is on record is not
run again, so any of these can be stopped and started again, and two processes can share the work with `--share 0/2` and
`--share 1/2`.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy
import torch

import stepgrad
from experiments.cross_fit import CrossEntropyModels
from experiments.frozen_features import load_parts
from experiments.head_training import train_row
from experiments.records import Run, commit, load_runs, save_run
from experiments.rows import GRID, NLL_TUNING, ROWS, Row
from experiments.window_head import (
    NUM_CLASSES,
    Part,
    PerClassHead,
    ResidualHead,
    Tuning,
    WindowHead,
    evaluate,
    new_head,
)
from stepgrad.errors import one_of

RESULTS = Path(__file__).parent / "results"
HELD_OUT = 500


def run(
    row: Row,
    tuning: Tuning,
    models: CrossEntropyModels,
    tests: dict[str, Part],
    seed: int,
    ready: dict[str, Part] | None = None,
) -> dict[str, Any]:
    """Train one row and evaluate it; a run that turned non-finite is on record as such.

    `ready` are tests as well, with the outputs that the head corrects.
    """
    head, part, tests = prepare(row, models, tests, seed)
    tests |= ready or {}
    began = time.perf_counter()
    batch_map: list[float] = []
    failure = None
    try:
        train_row(head, part, row, tuning, seed + 1000, lambda _, metrics: batch_map.append(metrics.get("map", 0.0)))
    except stepgrad.errors.NonFiniteError as error:
        failure = str(error)
    trained = time.perf_counter()
    scored = (
        {name: evaluate(head, test, row.scores, row.protocols) for name, test in tests.items()}
        if failure is None
        else {}
    )
    return {
        "row": asdict(row),
        "tuning": asdict(tuning),
        "seed": seed,
        "map": scored,
        "failure": failure,
        "batch_map": [round(100 * value, 2) for value in batch_map],
        "train_seconds": round(trained - began, 1),
        "seconds": round(time.perf_counter() - began, 1),
        "commit": commit(),
        "command": command(sys.argv[1:]),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": numpy.__version__,
        },
    }


def command(arguments: Sequence[str]) -> str:
    """What was typed, without the paths of the machine it was typed on.

    >>> command(["radius", "--seed", "0", "--data", "/home/me/voc", "--cache", "/scratch", "--results", "/else"])
    'python -m experiments.run radius --seed 0 --data FOLDER --cache DIR'
    """
    line = " ".join(["python -m experiments.run", *arguments])
    return re.sub(
        r" --results \S+", "", re.sub(r"--cache \S+", "--cache DIR", re.sub(r"--data \S+", "--data FOLDER", line))
    )


def prepare(
    row: Row, models: CrossEntropyModels, tests: dict[str, Part], seed: int
) -> tuple[WindowHead, Part, dict[str, Part]]:
    """The head a row starts with, and its training and test images with the outputs it corrects, if it does so."""
    features = models.part.inputs(0).shape[1]
    if row.start == "scratch":
        return new_head(features, seed, hidden=row.hidden), models.part, tests
    if row.start == "nll":
        return models.model(), models.part, tests
    head = new_head(features + NUM_CLASSES + 1, seed, PerClassHead if row.per_class else ResidualHead, row.hidden)
    part = models.seen() if row.start == "seen" else models.fresh()
    corrected = models.mean if row.start == "mean" else models.scored
    return head, part, {name: corrected(name, test) for name, test in tests.items()}


def tune(row: Row, tuning: Tuning, train: Part, cache: Path, results: Path) -> None:
    """One point of the grid, with seed 0, on all but the held-out training images."""
    if all(known["tuning"] != asdict(tuning) for known in runs_of(row, "tune", results)):
        models = CrossEntropyModels(train[:-HELD_OUT], 0, cache, row.base_hidden)
        record("tune", results, run(row, tuning, models, {"heldout": train[-HELD_OUT:]}, 0))


def final(row: Row, seed: int, train: Part, val: Part, cache: Path, results: Path) -> None:
    """One seed at the chosen rate, on all training images, then val."""
    if all(known["seed"] != seed for known in runs_of(row, "final", results)):
        models = CrossEntropyModels(train, seed, cache, row.base_hidden)
        record("final", results, run(row, chosen_tuning(row, results), models, {"val": val}, seed))


def chosen_tuning(row: Row, results: Path) -> Tuning:
    """The grid point with the best held-out mAP (area AP), of this row or of the one it is tuned as."""
    if row.steps == 0 or row.tuned_as == "start":
        return NLL_TUNING
    runs = runs_of(ROWS[row.tuned_as or row.name], "tune", results)
    if not runs:
        raise SystemExit(f"{row.name}: no tuning on record; run `python -m experiments.run {row.name} --tune` first.")
    best = max(runs, key=lambda r: r["map"].get("heldout", {}).get("voc12", -1.0))
    return Tuning(**best["tuning"])


def runs_of(row: Row, phase: str, results: Path) -> list[Run]:
    """The runs of a row on record."""
    return [r for r in load_runs(table_file(row, results), phase) if r["row"]["name"] == row.name]


def table_file(row: Row, results: Path) -> Path:
    return results / f"table_{row.table[0]}.jsonl"


def record(phase: str, results: Path, result: Run) -> None:
    row = ROWS[result["row"]["name"]]
    save_run(table_file(row, results), phase, result)
    found = ", ".join(f"{where} {maps.get('voc12', float('nan')):.2f}" for where, maps in result["map"].items())
    what = f"{row.name}, {Tuning(**result['tuning'])}, seed {result['seed']}"
    print(f"{what}: {found or result['failure']} in {result['seconds']:.0f} s", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW")
    parser.add_argument("--table", nargs="*", default=[], help="all rows of these tables")
    parser.add_argument("--tune", action="store_true", help="choose optimiser and rate on held-out training images")
    parser.add_argument("--seed", type=int, nargs="+", default=[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("STEPGRAD_DATA"), help="folder with VOC2012-320")
    parser.add_argument("--cache", type=Path, required=True, help="folder for features and start weights (4 GB)")
    parser.add_argument("--train", type=int, default=4000, help="training images")
    parser.add_argument("--val", type=int, default=2000, help="val images")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--share", default="0/1", help="this process's share of the runs: 0/2 and 1/2")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    if options.data is None:
        parser.error("--data (or STEPGRAD_DATA) is needed")
    rows = chosen_rows(options.rows, options.table)
    torch.set_num_threads(options.threads)
    train, val = load_parts(options.data, options.cache, options.train, options.val)
    mine, of = (int(n) for n in options.share.split("/"))
    if options.tune:
        own = [(row, at) for row in rows if row.tuned_as is None and row.steps > 0 for at in GRID[row.grid]]
        for row, tuning in own[mine::of]:
            tune(row, tuning, train, options.cache, options.results)
        return
    plan = [(row, seed) for seed in options.seed for row in rows]
    for row, seed in plan[mine::of]:
        final(row, seed, train, val, options.cache, options.results)


def chosen_rows(names: Sequence[str], tables: Sequence[str]) -> list[Row]:
    for name in names:
        one_of("row", name, list(ROWS))
    return [row for row in ROWS.values() if row.name in names or any(table in row.table for table in tables)]


if __name__ == "__main__":
    main()
