"""Runs of the experiments on record, and what all their tables are made of.

Runs are lines of JSONL files that are only ever added to; most files hold runs of several phases ("choose", "final", ...).
Several processes may add runs to a file at the same time, and a process that is killed while it does costs its own line only.
"""

from __future__ import annotations

import fcntl
import json
import os
import statistics
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from stepgrad.errors import DataError
from stepgrad.files import WriteError

Run = dict[str, Any]


def load_runs(file: Path, phase: str) -> list[Run]:
    """The runs of one phase so far, in the order in which they were added."""
    return [run for run in read_lines(file) if run["phase"] == phase]


def read_lines(file: Path) -> list[Run]:
    """All lines of a file; a last one that was cut short does not count."""
    *lines, last = file.read_bytes().split(b"\n") if file.is_file() else [b""]
    runs = [_parse(line) for line in lines]
    if None in runs:
        number = runs.index(None) + 1
        raise DataError(f"{file}: expected a run on line {number} but got {lines[number - 1][:40]!r}; take it from git")
    runs.append(_parse(last))  # empty, or cut short: its writer was killed, or is writing just now
    return [run for run in runs if run is not None]


def once(file: Path, phase: str, facts: Run, make: Callable[[], Run]) -> Run:
    """The run with these facts; if none is on record, it is made, put on record and printed."""
    known = find_run(file, phase, facts)
    if known is None:
        known = {**facts, **make(), "commit": commit()}
        save_run(file, phase, known)
        print(phase, json.dumps(known)[:300], flush=True)
    return known


def find_run(file: Path, phase: str, facts: Run) -> Run | None:
    """The first run of a phase with these facts."""
    return next((run for run in load_runs(file, phase) if facts.items() <= run.items()), None)


def save_run(file: Path, phase: str, run: Run) -> None:
    """Add one run of a phase; when this returns, it is on the disk."""
    add_line(file, {"phase": phase, **run})


def add_line(file: Path, run: Run) -> None:
    """Add one line; when this returns, it is on the disk."""
    line = json.dumps(run).encode() + b"\n"
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "a+b", buffering=0) as handle:  # not buffered: one line, one call of the system
        fcntl.flock(handle, fcntl.LOCK_EX)  # until the file is closed, however this process ends
        _end_last_line(handle)
        written = handle.write(line)
        if written != len(line):
            raise WriteError(
                f"{file}: only {written} of {len(line)} bytes could be written; make room and run it again"
            )
        os.fsync(handle.fileno())


def _end_last_line(handle: BinaryIO) -> None:
    """See to it that the next line starts on a line of its own: nobody else writes now, so a half line stays one."""
    handle.seek(0)
    content = handle.read()
    whole = content.rfind(b"\n") + 1
    if _parse(content[whole:]) is not None:  # only its end is missing
        handle.write(b"\n")
    else:
        handle.truncate(whole)


def _parse(line: bytes) -> Run | None:
    """The run of a line; None if it is none. A run that was cut short is never one: its last brace is gone."""
    try:
        run = json.loads(line)
    except ValueError:
        return None
    return run if isinstance(run, dict) else None


def commit() -> str:
    """The commit the code is at, short."""
    return subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, encoding="utf-8").stdout.strip()


def about(docstring: str | None) -> str:
    """A module's docstring without its first line, which is for the page's title."""
    return (docstring or "").split("\n", 1)[1]


def grouped(runs: Sequence[Run], *names: str) -> dict[tuple[Any, ...], list[Run]]:
    """Runs by their values of these names, in the order in which these come first.

    >>> list(grouped([{"arm": "a", "seed": 0}, {"arm": "b", "seed": 0}, {"arm": "a", "seed": 1}], "arm"))
    [('a',), ('b',)]
    """
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(tuple(run[name] for name in names), []).append(run)
    return groups


def mean_and_spread(values: Sequence[float], signed: bool = False) -> str:
    """Mean (standard deviation), as the tables have it; nothing of no values.

    >>> mean_and_spread([30.0, 32.0]), mean_and_spread([2.0], signed=True), mean_and_spread([])
    ('31.0 (1.4)', '+2.0', '')
    """
    if not values:
        return ""
    spread = f" ({statistics.stdev(values):.1f})" if len(values) > 1 else ""
    return f"{statistics.mean(values):{'+' if signed else ''}.1f}{spread}"


def gain(values: Mapping[int, float], control: Mapping[int, float]) -> str:
    """Mean and spread of the differences to the control, seed by seed; of seeds that both have.

    >>> gain({0: 31.0, 1: 23.0, 2: 9.0}, {0: 30.0, 1: 20.0})
    '+2.0 (1.4)'
    """
    return mean_and_spread([value - control[seed] for seed, value in values.items() if seed in control], signed=True)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown.

    >>> print(table(["way", "mAP"], [["more", "31.0"]]))
    | way | mAP |
    |---|---|
    | more | 31.0 |
    """
    return "\n".join(["| " + " | ".join(header) + " |", "|---" * len(header) + "|", *map(_row, rows)])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
