"""One case: its files are written, read by stepgrad, and everything around them is looked at afterwards."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from types import FrameType
from typing import Literal

from stepgrad.errors import StepgradError
from tests.fuzz.damage_bytes import Files
from tests.fuzz.nasty import GUARD

SECONDS = 20
"""Longest time of a case; a healthy one takes milliseconds, and a busy machine many times as long."""
MEMORY = 3 << 30
"""Address space a case may take on top of what the process has."""
TEXTS = (".json", ".jsonl", ".yaml", ".xml", ".txt")
STATM = Path("/proc/self/statm")
"""Where Linux says how much memory a process has; elsewhere memory is not limited."""
OUT = "out"
"""The one folder of a case that may change."""

Kind = Literal["answer", "refused", "escape"]


@dataclass(frozen=True)
class Outcome:
    """What came of a case; `report` says what went wrong if it was an escape."""

    kind: Kind
    report: str = ""


class TooSlowError(BaseException):
    """Not an Exception, so that no handler takes it for a decoder's complaint."""


def run_case(guard: Path, files: Files, call: Callable[[Path], object], limited: bool = True) -> Outcome:
    """Write the files into a folder inside `guard`, call with that folder, and look whether anything else changed.

    Unless `limited`, it may take any time: the first call of all compiles kernels.
    """
    folder = _write(guard, files)
    before = _snapshot(guard)
    with _in_folder(guard / "here"):
        outcome = _judge(call, folder, limited)
    changed = _difference(before, _snapshot(guard))
    if changed:
        shutil.rmtree(guard)
        return Outcome("escape", f"changed {changed}\n{outcome.report}")
    return outcome


def _judge(call: Callable[[Path], object], folder: Path, limited: bool) -> Outcome:
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", UserWarning)  # is an answer
            with _limits() if limited else nullcontext():
                call(folder)
    except StepgradError as error:
        return _judge_message(error)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return Outcome("escape", traceback.format_exc(limit=-12))
    return Outcome("answer")


def _judge_message(error: StepgradError) -> Outcome:
    """A message is for reading: it can be printed, and does not bury what it says."""
    text = str(error)
    if not text.strip():
        return Outcome("escape", f"{type(error).__name__} without a message")
    return Outcome("refused", text)


def _write(guard: Path, files: Files) -> Path:
    """A fresh folder of the files, with something to lose beside it."""
    folder = guard / "case"
    if folder.exists():
        shutil.rmtree(folder)
    for name in ("here", "sibling", f"case/{OUT}"):
        (guard / name).mkdir(parents=True, exist_ok=True)
    for name in ("canary.txt", "canary"):
        (guard / "sibling" / name).write_bytes(b"sing\n")
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if data is None:
            path.mkdir(exist_ok=True)
        else:
            path.write_bytes(data.replace(GUARD.encode(), str(guard).encode()) if path.suffix in TEXTS else data)
    return folder


def _snapshot(guard: Path) -> dict[str, bytes | None]:
    """Every file with its content, every folder, except in the folder that may change."""
    found: dict[str, bytes | None] = {}
    for place, folders, names in os.walk(guard):
        if place == str(guard / "case"):
            folders.remove(OUT) if OUT in folders else None
        found[place] = None
        for name in names:
            with open(os.path.join(place, name), "rb") as handle:
                found[os.path.join(place, name)] = handle.read()
    return found


def _difference(before: dict[str, bytes | None], after: dict[str, bytes | None]) -> list[str]:
    return sorted(path for path in before.keys() | after.keys() if before.get(path, b"-") != after.get(path, b"-"))


@contextmanager
def _in_folder(folder: Path) -> Iterator[None]:
    old = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(old)


@contextmanager
def _limits() -> Iterator[None]:
    """A time and a memory that no honest reading of a small file needs."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooSlowError(f"still running after {SECONDS} s")

    old_handler = signal.signal(signal.SIGALRM, stop)
    old_limit = resource.getrlimit(resource.RLIMIT_AS)
    if STATM.exists():
        taken = int(STATM.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, old_limit[1]))
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, old_limit)
        signal.signal(signal.SIGALRM, old_handler)
