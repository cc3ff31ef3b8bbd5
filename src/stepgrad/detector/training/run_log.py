"""The log of a run: JSON lines always, each on the disk when it is written, and TensorBoard events as well."""

from __future__ import annotations

import datetime
import json
import os
import platform
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import stepgrad
from stepgrad.errors import DataError
from stepgrad.files import WriteError, explain, write_whole
from stepgrad.names import visible

PACKAGES = ("torch", "torchvision", "numpy", "numba", "lightning-fabric")


def versions() -> dict[str, Any]:
    """When and with what a run began."""
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    found = {"python": platform.python_version(), "threads": torch.get_num_threads(), "stepgrad": stepgrad.__version__}
    return {"time": now, "versions": {**found, **{package: version(package) for package in PACKAGES}}}


class Log:
    """JSON lines on disk, each flushed when written, and their numbers as TensorBoard events."""

    def __init__(
        self, path: Path, lines: Iterable[Mapping[str, Any]] = (), events: Path | None = None, step: int = 0
    ) -> None:
        """Begin with `lines`, those of the `step` steps that will not be taken again; nothing else stays."""
        self.path = path
        write_whole(path, b"".join(_encoded(line) for line in lines))
        self._events: Any = _open_events(events, step) if events else None
        self._file = open(path, "ab")  # noqa: SIM115

    def write(self, line: Mapping[str, Any]) -> None:
        try:
            self._file.write(_encoded(line))
            self._file.flush()
        except OSError as error:
            raise WriteError(
                f"{self.path}: cannot be written ({error.strerror}); free some space and resume the run"
            ) from error
        for name, value in _scalars(line) if self._events else ():
            self._events.add_scalar(name, value, line["step"])

    def sync(self) -> None:
        """Put the lines on the disk itself."""
        if self._events:
            self._events.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        with suppress(OSError):  # of a line that is still to be written; `write` has told
            self._file.close()
        if self._events:
            self._events.close()


def _encoded(line: Mapping[str, Any]) -> bytes:
    return json.dumps(finite(line), allow_nan=False).encode() + b"\n"


def _open_events(folder: Path, step: int) -> Any:
    """TensorBoard's writer; None where it cannot name the folder: it knows UTF-8 alone, and the C locale does not."""
    from torch.utils.tensorboard import SummaryWriter

    try:
        str(folder).encode()
        return SummaryWriter(str(folder), purge_step=step + 1 if step else None)  # hides events of later steps
    except UnicodeEncodeError:
        warnings.warn(
            f"{visible(folder)}: TensorBoard cannot write there in this locale; log.jsonl has all numbers", stacklevel=3
        )
        return None
    except OSError as error:
        raise WriteError(explain(folder, error)) from error


def _scalars(line: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """TensorBoard's names and numbers of a line: train/loss, train/losses/nll, val/map/voc12, val/metrics/f1, ..."""
    if line["kind"] not in ("train", "val"):
        return
    for key, value in line.items():
        if isinstance(value, Mapping) and key in ("losses", "map", "metrics"):
            yield from ((f"{line['kind']}/{key}/{name}", float(entry)) for name, entry in value.items())
        elif isinstance(value, (int, float)) and key != "step":
            yield f"{line['kind']}/{key}", float(value)


def read_log(path: Path) -> list[dict[str, Any]]:
    """The lines of a log. Damaged ones are left out with one warning that numbers them.

    A last line without an end is left out silently: the run may be writing it just now.
    """
    try:
        ended = path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); move away what is there") from error
    lines = [_line(text) for text in ended]
    bad = [str(number) for number, line in enumerate(lines, 1) if line is None]
    if bad:
        few = ", ".join(bad[:5]) + (", ..." if len(bad) > 5 else "")
        warnings.warn(f"{path}: damaged lines are left out: {few} ({len(bad)} of {len(lines)})", stacklevel=2)
    return [line for line in lines if line is not None]


def _line(text: bytes) -> dict[str, Any] | None:
    """A line of a log; None if it is damaged. Every line has its kind and its step."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):  # not JSON, not UTF-8, or brackets without end
        return None
    return line if isinstance(line, dict) and "kind" in line and isinstance(line.get("step"), int) else None


def finite(value: Any) -> Any:
    """The same, with None for every number that JSON cannot hold.

    >>> finite({"a": float("nan"), "b": [1.0, float("inf")]})
    {'a': None, 'b': [1.0, None]}
    """
    if isinstance(value, Mapping):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(entry) for entry in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value
