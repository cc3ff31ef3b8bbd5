"""Compile kernels before they are called, in several processes that share the cache on disk.

numba compiles one function at a time in a process, whatever the threads. Workers are processes that import the kernels and
nothing else of stepgrad; each asks for the next kernel when it is done with one. This process works beside them. What a worker
cannot do, because it could not be started or died, this process does, and what it does not do is compiled when called.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import numba

from stepgrad.kernels.cache import find_folder
from stepgrad.kernels.uses import Use, all_uses

_MOST_WORKERS = 7  # few kernels take long
_WORTH_A_WORKER = 3.0  # seconds of compilation: starting a worker takes one
_PROGRAM = (
    "import json, sys; first = json.loads(sys.stdin.readline()); sys.path[:] = first['path']; "
    "from stepgrad.kernels.warmup import work; work(first['folder'])"
)


def _nothing() -> None:
    """Nobody wants to know."""


def missing_uses(uses: Iterable[Use] | None = None) -> list[Use]:
    """Kernels that are neither compiled in this process nor kept on the disk; of all, or of some."""
    if numba.config.DISABLE_JIT:
        return []
    return [use for use in (all_uses() if uses is None else uses) if not use.is_ready()]


def warmup(tick: Callable[[], None] = _nothing, workers: int | None = None) -> list[str]:
    """Compile all kernels that are not on the disk yet; returns their names. `tick` is called after each.

    `workers`: processes beside this one, by default one for each further core.
    """
    missing = missing_uses()
    compile_together(missing, usual_workers() if workers is None else workers, tick)
    return [use.kernel for use in missing]


def prepare(needed_by: str) -> None:
    """Before the first call that needs these kernels: compile them in several processes, if that is quicker."""
    if find_folder()[0] is None:
        return
    missing = missing_uses(use for use in all_uses() if needed_by in use.needed_by)
    alone = max((use.seconds for use in missing), default=0.0)
    if sum(use.seconds for use in missing) - alone > _WORTH_A_WORKER:
        compile_together(missing, usual_workers(), _nothing)


def usual_workers() -> int:
    """One for each further core; none where several processes of one job compile the same, or where none can be started."""
    if int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > 1 or getattr(sys, "frozen", False) or not sys.executable:
        return 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores - 1, _MOST_WORKERS)


def compile_together(uses: list[Use], workers: int, tick: Callable[[], None]) -> None:
    """Compile all of these, the longest first, here and in workers."""
    waiting = deque(sorted(uses, key=lambda use: -use.seconds))
    first = [waiting.popleft()] if waiting else []  # the longest is done here, where no import is waited for
    crew = [_Worker(waiting, tick) for _ in range(min(workers, len(waiting)))] if find_folder()[0] else []
    try:
        _compile_here(deque(first), tick)
        _compile_here(waiting, tick)
        for worker in crew:
            worker.join()
        _compile_here(waiting, tick)  # what a worker that died gave back
    finally:
        for worker in crew:
            worker.stop()


def _compile_here(waiting: deque[Use], tick: Callable[[], None]) -> None:
    with suppress(IndexError):  # workers take from the same list
        while True:
            use = waiting.popleft()
            use.compile()
            tick()


class _Worker(threading.Thread):
    """Sends kernels to a process of its own, one by one."""

    def __init__(self, waiting: deque[Use], tick: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._waiting = waiting
        self._tick = tick
        self._process: subprocess.Popen[str] | None = None
        with suppress(OSError):  # no memory, no right to start processes: those that there are do the work
            self._process = _start_process()
        self.start()

    def run(self) -> None:
        while self._process is not None and self._waiting:
            try:
                use = self._waiting.popleft()
            except IndexError:
                return
            if not self._done(use):
                self._waiting.appendleft(use)
                return
            self._tick()

    def _done(self, use: Use) -> bool:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(f"{all_uses().index(use)}\n")
            self._process.stdin.flush()
            return self._process.stdout.readline() == "done\n"
        except (OSError, ValueError):  # it ended, or was stopped
            return False

    def stop(self) -> None:
        """End the process, if it has not ended."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


def _start_process() -> subprocess.Popen[str]:
    """A Python that knows where we found our modules, and none of the program that runs here."""
    pipe, none = subprocess.PIPE, subprocess.DEVNULL
    settings = {"NUMBA_CACHE_DIR": numba.config.CACHE_DIR} if numba.config.CACHE_DIR else {}
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        env={**os.environ, **settings},
        stdin=pipe,
        stdout=pipe,
        stderr=none,
        encoding="utf-8",
    )
    assert process.stdin is not None
    first: dict[str, Any] = {"path": sys.path, "folder": str(find_folder()[0])}
    process.stdin.write(json.dumps(first) + "\n")
    process.stdin.flush()
    return process


def work(folder: str) -> None:
    """In a worker: compile the kernels whose numbers come in, and say so."""
    if str(find_folder()[0]) != folder:  # what is compiled here would not be found there
        return
    for line in sys.stdin:
        all_uses()[int(line)].compile()
        print("done", flush=True)
