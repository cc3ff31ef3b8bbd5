"""Tests in a child process that sees one file of the package changed.

What every mutant needs (torch, numba, pytest) is imported once; a child is forked, imports stepgrad with the fault in it,
and runs tests. Nothing on disk is ever changed. A fault in a kernel is run as Python: seconds instead of a compilation.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/stepgrad"
OUT_OF_TIME = -1
"""Where the exit code would stand."""
NEVER_IMPORTED = 9
_SECONDS_PER_CPU_SECOND = 20  # on a busy machine; a child that waits for ever is stopped all the same


@dataclass(frozen=True)
class Outcome:
    """What became of the tests."""

    code: int  # pytest's: 0 all passed, 1 some failed, others: could not even be run
    cpu_seconds: float
    output: str


def warm_up() -> None:
    """Import what all children share; stepgrad itself must not be among it."""
    wanted = ("torch", "torch._dynamo", "torchvision", "numba", "numba.extending", "hypothesis", "scipy", "matplotlib")
    for name in (*wanted, "pytest"):
        importlib.import_module(name)
    assert not any(name == "stepgrad" or name.startswith("stepgrad.") for name in sys.modules)


def run_tests(
    tests: Sequence[str], fault: tuple[str, str] | None, compiled: bool, cpu_seconds: float, log: Path
) -> Outcome:
    """Run tests, stopping at the first failure or once the time is used up.

    Args:
        tests: what pytest is given.
        fault: a file below src/stepgrad, and what to take for its source.
        compiled: whether kernels are compiled (from the cache) or run as Python.
        cpu_seconds: how much time there is.
        log: where the output goes.
    """
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        _child(tests, fault, compiled, cpu_seconds, log)
    ended = 0
    try:
        while not ended:
            ended, status, used = os.wait4(child, os.WNOHANG)
            if not ended and time.monotonic() - began > _SECONDS_PER_CPU_SECOND * cpu_seconds:
                os.killpg(child, signal.SIGKILL)
            time.sleep(0.0 if ended else 0.05)
    finally:
        if not ended:  # the run was stopped: the child must not go on and write into the log of the next run
            os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(status)
    output = log.read_text(errors="replace")
    return Outcome(OUT_OF_TIME if code < 0 else code, used.ru_utime + used.ru_stime, output)


def _child(tests: Sequence[str], fault: tuple[str, str] | None, compiled: bool, cpu_seconds: float, log: Path) -> None:
    code = 3
    try:
        os.setpgid(0, 0)
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_seconds) + 1, int(cpu_seconds) + 2))
        finder = _Fault(*fault) if fault else None
        import numba
        import pytest
        import torch

        if not compiled:
            os.environ["NUMBA_DISABLE_JIT"] = "1"
            numba.config.DISABLE_JIT = 1
        torch.set_num_threads(1)
        options = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--no-header", "--tb=line"]
        early = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # hypothesis is imported before pytest looks at it
        code = int(pytest.main([*options, *early, *tests], plugins=[finder] if finder else []))
        if code == 0 and finder and not finder.imported():
            code = NEVER_IMPORTED
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class _Fault(importlib.abc.MetaPathFinder):
    """Finds one module of stepgrad in memory; as a plugin of pytest it stays before pytest's own finder."""

    def __init__(self, file: str, source: str) -> None:
        self.path = PACKAGE / file
        parts = ["stepgrad", *Path(file).with_suffix("").parts]
        self.name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        self.source = source
        sys.meta_path.insert(0, self)

    def pytest_configure(self) -> None:
        sys.meta_path.remove(self)
        sys.meta_path.insert(0, self)

    def imported(self) -> bool:
        return isinstance(getattr(sys.modules.get(self.name), "__loader__", None), _Loader)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name != self.name:
            return None
        loader = _Loader(name, str(self.path))
        loader.changed = compile(self.source, str(self.path), "exec", dont_inherit=True)
        return importlib.util.spec_from_file_location(name, self.path, loader=loader)


class _Loader(importlib.machinery.SourceFileLoader):
    changed: CodeType

    def get_code(self, fullname: str) -> CodeType:
        return self.changed
