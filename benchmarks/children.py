"""Measurements that need a process of their own: peak memory, another version of the package, a first call."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def run_child(module: str, *arguments: object, **environment: str) -> dict[str, Any]:
    """The JSON that `python -m benchmarks.MODULE` prints last in a fresh process; what it wrote to stderr is under "stderr"."""
    command = [sys.executable, "-m", f"benchmarks.{module}", *map(str, arguments)]
    variables = {**os.environ, **environment}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, encoding="utf-8", check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return {**json.loads(done.stdout.splitlines()[-1]), "stderr": done.stderr}


def peak(step: Callable[[], object]) -> dict[str, int]:
    """Peak resident bytes of this process during a step: beyond what it held before ("extra"), and all ("whole")."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # else memory freed a moment ago would be used again unseen
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the high-water mark starts again from here
    before = _status("VmRSS")
    step()
    return {"extra": _status("VmHWM") - before, "whole": _status("VmHWM")}


def _status(field: str) -> int:
    """Bytes of a field of /proc/self/status."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}; peak memory is measured on Linux only")


@contextmanager
def source_of(commit: str) -> Iterator[Path]:
    """The folder `src` of another version, taken from git."""
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", commit, "src"], cwd=ROOT, capture_output=True, check=True)
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        yield Path(folder, "src")


def with_source(source: Path) -> dict[str, str]:
    """The environment of a process that imports the package from this folder."""
    return {"PYTHONPATH": os.pathsep.join([str(source), str(ROOT)])}
