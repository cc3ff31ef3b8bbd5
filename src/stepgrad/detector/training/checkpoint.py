"""Checkpoints of a run: all that is needed to continue as if nothing had happened, one safetensors file per step.

A folder of checkpoints has one writer. Whenever it is killed, every checkpoint that `save_checkpoint` returned from
and that is within the `keep` newest is there, whole.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from stepgrad.detector.training.optimizer_state import optimizer_tensors, restore_optimizer
from stepgrad.errors import DataError, InputError
from stepgrad.files import WriteError, remove_leftovers
from stepgrad.weights_file import load_weights, read_tensors, save_weights, write_tensors

__all__ = [
    "Checkpoint",
    "checkpoint_path",
    "checkpoint_step",
    "list_checkpoints",
    "load_checkpoint",
    "load_weights",
    "optimizer_tensors",
    "restore_optimizer",
    "save_checkpoint",
    "save_weights",
]

_NAME = re.compile(r"step-(\d{8,})\.safetensors")


@dataclass(frozen=True)
class Checkpoint:
    """A run after `step` steps: `state` is whatever else it needs, as JSON can hold it (tuples come back as lists)."""

    step: int
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)


def checkpoint_path(folder: str | Path, step: int) -> Path:
    """
    >>> checkpoint_path("run/checkpoints", 123).name
    'step-00000123.safetensors'
    """
    return Path(folder) / f"step-{step:08d}.safetensors"


def checkpoint_step(path: str | Path) -> int:
    """The step in a checkpoint's name.

    >>> checkpoint_step("run/checkpoints/step-00000123.safetensors")
    123
    """
    match = _NAME.fullmatch(Path(path).name)
    if not match:
        raise DataError(f"{path}: expected a checkpoint with a name like {checkpoint_path('', 123)}")
    return int(match[1])


def list_checkpoints(folder: str | Path) -> list[Path]:
    """The checkpoints in a folder by ascending step; they are whole unless the disk damaged them."""
    try:
        names = os.listdir(
            folder
        )  # a glob finds nothing in a folder that cannot be read, and the run would start again
    except FileNotFoundError:
        return []
    except OSError as error:
        raise DataError(
            f"{folder}: cannot be read ({error.strerror}); make it a folder that you can read, or start a new run"
        ) from error
    return sorted((Path(folder) / name for name in names if _NAME.fullmatch(name)), key=checkpoint_step)


def save_checkpoint(folder: str | Path, checkpoint: Checkpoint, keep: int, pinned: Collection[int] = ()) -> Path:
    """Write a checkpoint, and once it is safely there remove old ones.

    The `keep` newest stay, and also those of the `pinned` steps. Checkpoints of later steps go too: the run was
    resumed before them. A WriteError leaves all of them as they were.
    """
    folder = Path(folder)
    path = checkpoint_path(folder, checkpoint.step)
    remove_leftovers(folder, "step-*")
    tensors = {f"weights/{name}": tensor for name, tensor in checkpoint.weights.items()}
    tensors |= {f"optimizer/{name}": tensor for name, tensor in checkpoint.optimizer.items()}
    try:
        write_tensors(path, tensors, {"step": str(checkpoint.step), "state": _to_json(checkpoint.state)})
    except WriteError as error:
        raise WriteError(f"{error}{_way_on(folder)}") from error
    _thin_out(folder, checkpoint.step, keep, pinned)
    return path


def load_checkpoint(path: str | Path) -> Checkpoint:
    """Read a checkpoint; if it is damaged, a DataError says how and offers the newest earlier one that is whole."""
    path = Path(path)
    try:
        tensors, metadata = read_tensors(path)
    except DataError as error:
        raise DataError(f"{error}; {_offer(path)}") from error
    if not {"step", "state"} <= set(metadata):
        raise DataError(f"{path}: holds weights only; expected a checkpoint, from the folder checkpoints/")
    try:
        return _checkpoint(tensors, metadata)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DataError(f"{path}: is not a checkpoint of stepgrad ({error!r}); {_offer(path)}") from error


def _checkpoint(tensors: dict[str, Tensor], metadata: dict[str, str]) -> Checkpoint:
    parts: dict[str, dict[str, Tensor]] = {"weights": {}, "optimizer": {}}
    for name, tensor in tensors.items():
        part, _, rest = name.partition("/")
        parts[part][rest] = tensor
    state = json.loads(metadata["state"])
    if not isinstance(state, dict):
        raise TypeError(f"a state of {type(state).__name__}")
    return Checkpoint(int(metadata["step"]), state=state, **parts)


def _to_json(state: dict[str, Any]) -> str:
    try:
        return json.dumps(state)
    except (TypeError, ValueError) as error:
        raise InputError(f"Expected a state that JSON can hold but got one that it cannot: {error}.") from error


def _thin_out(folder: Path, step: int, keep: int, pinned: Collection[int]) -> None:
    others = {checkpoint_step(path): path for path in list_checkpoints(folder)}
    del others[step]
    loose = sorted(other for other in others if other not in pinned)
    earlier = [other for other in loose if other < step]
    room = max(keep - (step not in pinned), 0)
    stay = earlier[len(earlier) - min(room, len(earlier)) :]
    for other in loose:
        if other not in stay:
            with suppress(OSError):  # one too many does no harm
                others[other].unlink()


def _offer(path: Path) -> str:
    """What to do: continue from the newest earlier checkpoint that is undamaged."""
    limit = checkpoint_step(path) if _NAME.fullmatch(path.name) else None
    for other in reversed(list_checkpoints(path.parent)):
        step = checkpoint_step(other)
        if other != path and (limit is None or step < limit) and _is_whole(other):
            return f"step {step} is undamaged: continue from it with `{_resume(path.parent)} --step {step}`"
    return "there is no undamaged earlier checkpoint: start the run again in a new folder"


def _is_whole(path: Path) -> bool:
    try:
        return "state" in read_tensors(path)[1]
    except DataError:
        return False


def _way_on(folder: Path) -> str:
    saved = list_checkpoints(folder)
    if not saved:
        return ""
    return f" (step {checkpoint_step(saved[-1])} is saved: continue from it with `{_resume(folder)}`)"


def _resume(folder: Path) -> str:
    run = folder.parent if folder.name == "checkpoints" else folder
    return f"stepgrad train --resume {shlex.quote(str(run))}"
