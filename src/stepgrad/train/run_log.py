"""The log of a run: JSON lines always, TensorBoard events beside them."""

from __future__ import annotations

import datetime
import platform
import warnings
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from stepgrad.files import WriteError, explain
from stepgrad.names import visible
from stepgrad.train.log_file import Log
from stepgrad.train.run_folder import RunFolder
from stepgrad.train.state import State

PACKAGES = ("stepgrad", "torch", "torchvision", "numpy", "numba", "lightning-fabric")


def versions() -> dict[str, Any]:
    """When and with what a run began."""
    found: dict[str, Any] = {"python": platform.python_version(), "threads": torch.get_num_threads()}
    found.update({package: _version(package) for package in PACKAGES})
    return {"time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), "versions": found}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


class RunLog:
    """Writes each line to log.jsonl and its numbers to TensorBoard."""

    def __init__(self, folder: RunFolder, length: int, step: int) -> None:
        self.lines = Log(folder.log_file, length)
        purge = step + 1 if step else None  # events of steps that will be taken again are hidden
        try:
            self.events = _open_events(folder.events, purge)
        except OSError as error:
            self.lines.close()
            raise WriteError(explain(folder.events, error)) from error

    def write(self, line: Mapping[str, Any]) -> None:
        self.lines.write(line)
        for name, value in _scalars(line) if self.events else ():
            self.events.add_scalar(name, value, line["step"])

    def sync(self) -> int:
        """Length of log.jsonl in bytes, all of it on the disk."""
        if self.events:
            self.events.flush()
        return self.lines.sync()

    def __enter__(self) -> RunLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.lines.close()
        if self.events:
            self.events.close()


def _open_events(folder: Path, purge: int | None) -> Any:
    """TensorBoard's writer; None where it cannot name the folder: it knows UTF-8 alone, and the C locale does not."""
    from torch.utils.tensorboard import SummaryWriter

    try:
        str(folder).encode()
    except UnicodeEncodeError:
        warnings.warn(
            f"{visible(folder)}: TensorBoard cannot write there in this locale; log.jsonl has it all", stacklevel=2
        )
        return None
    return SummaryWriter(str(folder), purge_step=purge)


class NoLog(RunLog):
    """Of the processes that do not write."""

    def __init__(self) -> None: ...
    def write(self, line: Mapping[str, Any]) -> None: ...
    def sync(self) -> int:
        return 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None: ...


def open_log(folder: RunFolder, state: State, writes: bool) -> RunLog:
    """The log of a run, going on where its state says."""
    return RunLog(folder, state.log_length, state.step) if writes else NoLog()


def _scalars(line: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """TensorBoard's names and numbers of a line: train/loss, train/losses/nll, val/map/voc12, ..."""
    if line["kind"] not in ("train", "val"):
        return
    for key, value in line.items():
        if isinstance(value, Mapping) and key in ("losses", "map"):
            yield from ((f"{line['kind']}/{key}/{name}", float(entry)) for name, entry in value.items())
        elif isinstance(value, (int, float)) and key != "step":
            yield f"{line['kind']}/{key}", float(value)
