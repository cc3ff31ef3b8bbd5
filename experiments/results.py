"""Runs of the experiments on record: one JSONL file per table, one line per run, only ever added to.

A line holds the phase that the run belongs to ("tune", "choose", "final", ...) and all that is known of the run. Several
processes may add runs to a file at the same time, and a process that is killed while it does costs its own line only.
"""

from __future__ import annotations

import fcntl
import json
import os
import statistics
import subprocess
from pathlib import Path
from typing import Any, BinaryIO

from stepgrad.errors import DataError
from stepgrad.files import WriteError

Run = dict[str, Any]


def load_runs(file: Path, phase: str) -> list[Run]:
    """The runs of one phase so far, in the order in which they were added."""
    *lines, last = file.read_bytes().split(b"\n") if file.is_file() else [b""]
    runs = [_parse(line) for line in lines]
    if None in runs:
        number = runs.index(None) + 1
        raise DataError(f"{file}: expected a run on line {number} but got {lines[number - 1][:40]!r}; take it from git")
    runs.append(_parse(last))  # empty, or cut short: its writer was killed, or is writing just now
    return [run for run in runs if run is not None and run["phase"] == phase]


def save_runs(file: Path, phase: str, run: Run) -> None:
    """Add one run; when this returns, it is on the disk."""
    line = json.dumps({"phase": phase, **run}).encode() + b"\n"
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
    return run if isinstance(run, dict) and "phase" in run else None


def commit() -> str:
    """The commit the code is at, short."""
    return subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, encoding="utf-8").stdout.strip()


def mean_and_spread(values: list[float], signed: bool = False) -> str:
    """Mean (standard deviation), as the tables have it.

    >>> mean_and_spread([30.0, 32.0]), mean_and_spread([2.0], signed=True)
    ('31.0 (1.4)', '+2.0')
    """
    spread = f" ({statistics.stdev(values):.1f})" if len(values) > 1 else ""
    return f"{statistics.mean(values):{'+' if signed else ''}.1f}{spread}"
