"""Runs of an experiment in one JSON file, added one at a time; the file on disk is always whole."""

from __future__ import annotations

import fcntl
import json
import os
import statistics
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stepgrad.files import write_whole


def load_runs(file: Path, phase: str) -> list[dict[str, Any]]:
    """The runs of one phase so far."""
    return list(_load(file).get(phase, []))


def save_runs(file: Path, phase: str, row: dict[str, Any]) -> None:
    """Add one run; other processes may add theirs at the same time."""
    with _alone(file.parent):
        content = _load(file)
        content.setdefault(phase, []).append(row)
        write_whole(file, (json.dumps(content, indent=1) + "\n").encode())


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder's lock."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _load(file: Path) -> dict[str, list[dict[str, Any]]]:
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


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
