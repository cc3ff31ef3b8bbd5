"""The page results/tables.md: its prose from tables_page.md, its tables from the runs of `experiments.run`."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from experiments.records import Run, gain, grouped, load_runs, mean_and_spread, table
from experiments.rows import GRID, ROWS, Row
from experiments.window_head import Tuning

PROSE = Path(__file__).parent / "tables_page.md"
CONTROL = "nll-more"  # what gains are measured against
CONTROLS = {"S": "scratch-nll", "P": "paper-start", "W": "w-nll-more"}  # and in these tables


def page(file: Path) -> str:
    """The page of all tables; `file` is table.jsonl, beside which each table has a file of its own."""
    finals, tunes = read_runs(file, "final"), read_runs(file, "tune")
    text = PROSE.read_text(encoding="utf-8")
    for letter in sorted({letter for row in ROWS.values() for letter in row.table}):
        text = text.replace(f"{{table {letter}}}", table_of(letter, finals))
    for grid in GRID:
        text = text.replace(f"{{tuning {grid}}}", tuning_table(tunes, grid))
    return text


def read_runs(file: Path, phase: str) -> dict[str, list[Run]]:
    """Runs of all tables by row, in order of seed."""
    files = sorted(file.parent.glob(f"{file.stem}_*.jsonl"))
    runs = [{**run, "name": run["row"]["name"]} for one in files for run in load_runs(one, phase)]
    return {name: sorted(own, key=lambda run: run["seed"]) for (name,), own in grouped(runs, "name").items()}


def table_of(letter: str, finals: dict[str, list[Run]]) -> str:
    """One table: its rows in the order of rows.py, those without a run yet left out."""
    rows = [row for row in ROWS.values() if letter in row.table and row.name in finals]
    further = [protocol for protocol, table in (("voc07", "A"), ("coco", "D")) if letter == table]
    control = CONTROLS.get(letter, CONTROL)
    header = ["row", "training", "optimiser", "voc12", f"against `{control}`", *further, "seconds", "seeds"]
    return table(header, [cells_of(row, finals, control, further) for row in rows])


def cells_of(row: Row, finals: dict[str, list[Run]], control: str, further: Sequence[str] = ()) -> list[str]:
    runs = finals[row.name]
    cells = [f"`{row.name}`", row.says, str(Tuning(**runs[0]["tuning"])), spread_of(runs, "voc12")]
    cells += [gain_of(runs, finals.get(control, [])), *(spread_of(runs, protocol) for protocol in further)]
    return [*cells, f"{statistics.mean(run['train_seconds'] for run in runs):.0f}", str(len(runs))]


def spread_of(runs: list[Run], protocol: str) -> str:
    """Mean (standard deviation) over seeds; a failed seed makes the cell say so.

    >>> spread_of([{"map": {"val": {"voc12": 30.0}}}, {"map": {"val": {"voc12": 32.0}}}], "voc12")
    '31.0 (1.4)'
    >>> spread_of([{"map": {}, "failure": "NaN"}], "voc12")
    'failed in 1 of 1'
    """
    if any(run["map"].get("val") and protocol not in run["map"]["val"] for run in runs):
        return "-"
    values = [run["map"]["val"][protocol] for run in runs if run["map"].get("val")]
    if len(values) < len(runs):
        return f"failed in {len(runs) - len(values)} of {len(runs)}"
    return mean_and_spread(values)


def gain_of(runs: list[Run], control: list[Run]) -> str:
    """Mean (standard deviation) of the difference to the control, seed by seed; only where every seed has one."""
    values, base = (
        {run["seed"]: run["map"]["val"]["voc12"] for run in own if run["map"].get("val")} for own in (runs, control)
    )
    return gain(values, base) if len(values) == len(runs) and values.keys() <= base.keys() else "-"


def tuning_table(tunes: dict[str, list[Run]], name_of_grid: str) -> str:
    """Held-out mAP of every tuned row at every point of its grid."""
    grid, rows = GRID[name_of_grid], []
    for name in (row.name for row in ROWS.values() if row.name in tunes and row.grid == name_of_grid):
        found = {str(Tuning(**run["tuning"])): run for run in tunes[name]}
        rows.append([f"`{name}`", *(_held_out(found.get(str(point))) for point in grid)])
    return table(["row", *map(str, grid)], rows)


def _held_out(run: Run | None) -> str:
    if run is None:
        return "-"
    return f"{run['map']['heldout']['voc12']:.1f}" if run["map"].get("heldout") else "failed"
