"""Tests in a child process that sees one file of the package changed.

What every mutant needs (torch, numba, pytest) is imported once; a child is forked, imports stepgrad with the fault in it,
and runs tests. A fault in a kernel is run as Python: seconds instead of a compilation. A fault may make code write anywhere,
so a child works in a folder of its own that is removed afterwards, and may change nothing outside it (`_stay_inside`). A
child that waits for ever, or whose processes do, is stopped.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

import psutil

from tests.mutation.concerned import TOO_SLOW_AS_PYTHON

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/stepgrad"
OUT_OF_TIME = -1
"""Where the exit code would stand."""
NEVER_IMPORTED = 9
IDLE_SECONDS = 120
"""How long a child may use no CPU, which on a busy machine is a long time."""
SECONDS_TO_IMPORT = 60
"""CPU time of a child with a fault until a plugin says how long a test may take."""
MEMORY = 6 << 30
"""Address space that a child with a fault may take on top of what it has."""
YOLO = "ultralytics"


@dataclass(frozen=True)
class Outcome:
    """What became of the tests."""

    code: int  # pytest's: 0 all passed, 1 some failed, others: could not even be run
    cpu_seconds: float
    output: str


def warm_up() -> None:
    """Import what all children share; stepgrad itself must not be among it."""
    os.environ.setdefault("YOLO_CONFIG_DIR", tempfile.gettempdir())
    os.environ.setdefault("YOLO_OFFLINE", "true")
    wanted = ["torch", "torch._dynamo", "torchvision", "numba", "numba.extending", "hypothesis", "scipy", "matplotlib"]
    wanted += ["pytest", "transformers", "torchmetrics", "coverage", YOLO]
    for name in wanted:
        if importlib.util.find_spec(name.split(".")[0]):
            importlib.import_module(name)
    assert not any(name == "stepgrad" or name.startswith("stepgrad.") for name in sys.modules)


def run_tests(
    tests: Sequence[str],
    fault: tuple[str, str] | None,
    compiled: bool,
    log: Path,
    plugin: Any = None,
) -> Outcome:
    """Run tests, stopping at the first failure, or when nothing happens any more.

    Args:
        tests: what pytest is given.
        fault: a file below src/stepgrad, and what to take for its source.
        compiled: whether kernels are compiled (from the cache) or run as Python.
        log: where the output goes.
        plugin: makes a plugin of pytest, called in the child.
    """
    folder = Path(tempfile.mkdtemp(prefix="mutant-")).resolve()
    log = log.resolve()
    child = os.fork()
    if child == 0:
        _child(tests, fault, compiled, log, folder, plugin)
    ended = 0
    watch = _Watch(child)
    try:
        while not ended:
            ended, status, used = os.wait4(child, os.WNOHANG)
            if not ended and watch.idle():
                watch.stop()
            time.sleep(0.0 if ended else 0.05)
    finally:
        watch.stop()  # also processes that tests started, and the child itself if the run was stopped
        shutil.rmtree(folder, ignore_errors=True)
    code = os.waitstatus_to_exitcode(status)
    output = log.read_text(errors="replace")
    return Outcome(OUT_OF_TIME if code < 0 else code, used.ru_utime + used.ru_stime, output)


class _Watch:
    """A child and the processes it started: whether they still work."""

    def __init__(self, child: int) -> None:
        self.child = psutil.Process(child)
        self.seen: dict[int, psutil.Process] = {child: self.child}
        self.used = -1.0
        self.since = self.looked = time.monotonic()

    def idle(self) -> bool:
        now = time.monotonic()
        if now - self.looked > 1.0:
            self.looked = now
            used = self._cpu_seconds()
            if used > self.used + 0.01 * IDLE_SECONDS:  # more than a loop that waits and looks
                self.used = used
                self.since = now
        return now - self.since > IDLE_SECONDS

    def _cpu_seconds(self) -> float:
        with suppress(psutil.Error):
            self.seen |= {process.pid: process for process in self.child.children(recursive=True)}
        used = 0.0
        for process in self.seen.values():
            with suppress(psutil.Error):
                times = process.cpu_times()
                used += times.user + times.system
        return used

    def stop(self) -> None:
        with suppress(psutil.Error):
            self.seen |= {process.pid: process for process in self.child.children(recursive=True)}
        for process in self.seen.values():
            with suppress(psutil.Error):
                process.kill()


def _child(
    tests: Sequence[str],
    fault: tuple[str, str] | None,
    compiled: bool,
    log: Path,
    folder: Path,
    plugin: Any,
) -> None:
    code = 3
    try:
        os.setpgid(0, 0)
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        if fault:
            _limit()
        os.chdir(folder)
        # The lines of this tree are counted and changed, so they are what runs, also where another copy is installed.
        sys.path.insert(0, str(PACKAGE.parent))
        tempfile.tempdir = os.environ["TMPDIR"] = str(folder)
        finder = _Fault(*fault) if fault else None
        plugins = [one for one in (finder, plugin and plugin()) if one]
        import numba
        import pytest
        import torch

        left_out: list[str] = []
        if not compiled:
            left_out = [f"--deselect={test}" for test in TOO_SLOW_AS_PYTHON]
            os.environ["NUMBA_DISABLE_JIT"] = "1"
            numba.config.DISABLE_JIT = 1
        torch.set_num_threads(1)
        options = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--no-header", "--tb=line"]
        early = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # hypothesis is imported before pytest looks at it
        places = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), "--basetemp", str(folder / "pytest")]
        _stay_inside((folder, log.parent, log.parent / "clean", _kernel_cache()))
        code = int(
            pytest.main([*options, *early, *places, *left_out, *(str(ROOT / test) for test in tests)], plugins=plugins)
        )
        if code == 0 and finder and not finder.imported():
            code = NEVER_IMPORTED
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _limit() -> None:
    """Let a fault that loops for ever, or asks for all memory there is, end the process."""
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS_TO_IMPORT, resource.RLIM_INFINITY))
    most = psutil.Process().memory_info().vms + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))


def _kernel_cache() -> Path:
    """Where compiled kernels are, which faults in files without kernels do not change."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("NUMBA_CACHE_DIR") or home / "stepgrad")


_CHANGES = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.truncate", "os.link", "os.symlink", "shutil.rmtree")


def _stay_inside(allowed: Iterable[Path]) -> None:
    """From now on this process cannot make, change or remove files anywhere else, as far as Python sees it."""
    inside = tuple(os.path.realpath(path) for path in allowed)

    def outside(path: Any) -> bool:
        if not isinstance(path, (str, bytes, os.PathLike)):
            return False  # an open file
        full = os.path.realpath(os.path.dirname(os.path.abspath(os.fsdecode(path))))
        name = os.path.join(full, os.path.basename(os.fsdecode(path)))
        return not (name.startswith(inside) or full.startswith(("/dev", "/proc")) or "__pycache__" in name)

    def look(event: str, given: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = given
            writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
            paths = (path,) if writes else ()
        elif event in _CHANGES:
            paths = (
                given[:2] if event in ("os.rename", "os.link") else given[1:2] if event == "os.symlink" else given[:1]
            )
        else:
            return
        for path in paths:
            if outside(path):
                raise PermissionError(f"a fault would {event} {path!r}, outside its folder")

    sys.addaudithook(look)


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
