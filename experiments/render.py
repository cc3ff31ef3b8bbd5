"""Writes docs/results.md: the page's prose from results_page.md, its tables and figure from the runs on record.

python -m experiments.render
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from experiments.results import Run, load_runs, mean_and_spread
from experiments.rows import GRID, ROWS, Row
from experiments.window_head import Tuning
from stepgrad.files import write_whole

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "results.md"
RUNS = HERE / "results"
CONTROL = "nll-more"  # what gains are measured against
CONTROLS = {"S": "scratch-nll", "P": "paper-start", "W": "w-nll-more"}  # and in these tables


def main() -> None:
    finals, tunes = read_runs("final"), read_runs("tune")
    text = (HERE / "results_page.md").read_text(encoding="utf-8")
    for table in sorted({letter for row in ROWS.values() for letter in row.table}):
        text = text.replace(f"{{table {table}}}", table_of(table, finals))
    for grid in GRID:
        text = text.replace(f"{{tuning {grid}}}", tuning_table(tunes, grid))
    write_whole(PAGE, text.encode())
    print(f"wrote {PAGE}")


def read_runs(phase: str) -> dict[str, list[Run]]:
    """Runs of all tables by row, in order of seed."""
    found: dict[str, list[Run]] = {}
    for run in [run for file in sorted(RUNS.glob("table_*.jsonl")) for run in load_runs(file, phase)]:
        found.setdefault(run["row"]["name"], []).append(run)
    return {name: sorted(runs, key=lambda run: run["seed"]) for name, runs in found.items()}


def table_of(letter: str, finals: dict[str, list[Run]]) -> str:
    """One table: its rows in the order of rows.py, those without a run yet left out."""
    rows = [row for row in ROWS.values() if letter in row.table and row.name in finals]
    further = [protocol for protocol, table in (("voc07", "A"), ("coco", "D")) if letter == table]
    control = CONTROLS.get(letter, CONTROL)
    head = ["row", "training", "optimiser", "voc12", f"against `{control}`", *further, "seconds", "seeds"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return "\n".join(lines + [line_of(row, finals, control, further) for row in rows])


def line_of(row: Row, finals: dict[str, list[Run]], control: str, further: Sequence[str] = ()) -> str:
    runs = finals[row.name]
    cells = [f"`{row.name}`", row.says, str(Tuning(**runs[0]["tuning"])), spread_of(runs, "voc12")]
    cells += [gain_of(runs, finals.get(control, [])), *(spread_of(runs, protocol) for protocol in further)]
    cells += [f"{statistics.mean(run['train_seconds'] for run in runs):.0f}", str(len(runs))]
    return "| " + " | ".join(cells) + " |"


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
    """Mean (standard deviation) of the difference to the control of the same seed."""
    base = {run["seed"]: run["map"]["val"]["voc12"] for run in control if run["map"].get("val")}
    gains = [r["map"]["val"]["voc12"] - base[r["seed"]] for r in runs if r["map"].get("val") and r["seed"] in base]
    if not gains or len(gains) < len(runs):
        return "-"
    return mean_and_spread(gains, signed=True)


def tuning_table(tunes: dict[str, list[Run]], name_of_grid: str) -> str:
    """Held-out mAP of every tuned row at every point of its grid."""
    grid = GRID[name_of_grid]
    lines = ["| row | " + " | ".join(map(str, grid)) + " |", "|---" * (len(grid) + 1) + "|"]
    for name in (row.name for row in ROWS.values() if row.name in tunes and row.grid == name_of_grid):
        found = {str(Tuning(**run["tuning"])): run for run in tunes[name]}
        lines.append(f"| `{name}` | " + " | ".join(_held_out(found.get(str(point))) for point in grid) + " |")
    return "\n".join(lines)


def _held_out(run: Run | None) -> str:
    if run is None:
        return "-"
    return f"{run['map']['heldout']['voc12']:.1f}" if run["map"].get("heldout") else "failed"


if __name__ == "__main__":
    main()
