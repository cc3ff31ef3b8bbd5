"""Checkpoints of a run: all that is needed to continue as if nothing had happened, one safetensors file per step.

A folder of checkpoints has one writer. Whenever it is killed, every checkpoint that `save_checkpoint` returned from
and that is within the `keep` newest is there, whole.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.optim import SGD, Optimizer

from stepgrad.errors import DataError
from stepgrad.files import WriteError, remove_leftovers
from stepgrad.weights_file import read_tensors, write_tensors

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
        # a glob finds nothing in a folder that cannot be read, and the run would start again
        names = os.listdir(folder)
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
        write_tensors(path, tensors, {"step": str(checkpoint.step), "state": json.dumps(checkpoint.state)})
    except WriteError as error:
        saved = list_checkpoints(folder)
        step = (
            f" (step {checkpoint_step(saved[-1])} is saved: continue from it with `{_resume(path)}`)" if saved else ""
        )
        raise WriteError(f"{error}{step}") from error
    loose = [other for other in list_checkpoints(folder) if checkpoint_step(other) not in pinned]
    newest = [other for other in loose if checkpoint_step(other) <= checkpoint.step][-keep:]
    for other in loose:
        if other not in newest:
            with suppress(OSError):  # one too many does no harm
                other.unlink()
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
        parts: dict[str, dict[str, Tensor]] = {"weights": {}, "optimizer": {}}
        for name, tensor in tensors.items():
            part, _, rest = name.partition("/")
            parts[part][rest] = tensor
        return Checkpoint(int(metadata["step"]), state=dict(json.loads(metadata["state"])), **parts)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DataError(f"{path}: is not a checkpoint of stepgrad ({error!r}); {_offer(path)}") from error


def _offer(path: Path) -> str:
    """What to do: continue from the newest earlier checkpoint that is undamaged."""
    limit = checkpoint_step(path) if _NAME.fullmatch(path.name) else math.inf
    for other in reversed(list_checkpoints(path.parent)):
        step = checkpoint_step(other)
        if step < limit and _is_whole(other):
            return f"step {step} is undamaged: continue from it with `{_resume(path)} --step {step}`"
    return "there is no undamaged earlier checkpoint: start the run again in a new folder"


def _is_whole(path: Path) -> bool:
    try:
        return "state" in read_tensors(path)[1]
    except DataError:
        return False


def _resume(path: Path) -> str:
    return f"stepgrad train --resume {shlex.quote(str(path.parent.parent))}"


def optimizer_tensors(optimizer: Optimizer, names: Mapping[Tensor, str]) -> dict[str, Tensor]:
    """What an optimiser remembers (momentum and the like) of each parameter, as `name/key`.

    Learning rates and other settings are not part of it: they follow from the config and the step.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.ones(2))
    >>> optimizer = SGD([weight], lr=0.1, momentum=0.9)
    >>> weight.sum().backward(); optimizer.step()
    >>> optimizer_tensors(optimizer, {weight: "weight"})
    {'weight/momentum_buffer': tensor([1., 1.])}
    """
    remembered = ((names[p], key, value) for p, state in optimizer.state.items() for key, value in state.items())
    return {f"{name}/{key}": value.detach() for name, key, value in remembered if value is not None}


def restore_optimizer(optimizer: Optimizer, names: Mapping[Tensor, str], tensors: Mapping[str, Tensor]) -> None:
    """Give each parameter the state saved under its name, exactly; DataError, and no change, if one does not fit.

    A parameter without any has not had a step yet.
    """
    parameters = [(parameter, group) for group in optimizer.param_groups for parameter in group["params"]]
    numbers = {names[parameter]: i for i, (parameter, _) in enumerate(parameters)}
    states: dict[int, dict[str, Tensor]] = {}
    for path, tensor in tensors.items():
        name, _, key = path.rpartition("/")
        if name not in numbers:
            raise DataError(f"the saved optimiser has state for {name}, which this one does not train")
        if key != "nothing":  # the mark of older files for a parameter without any
            states.setdefault(numbers[name], {})[key] = tensor.clone()
    for i, state in states.items():
        parameter, group = parameters[i]
        given = {key: tuple(value.shape) for key, value in state.items()}
        needed = {key: () if key == "step" else tuple(parameter.shape) for key in _slots(optimizer, group)}
        if given != needed:
            raise DataError(
                f"the saved optimiser has {given} for {names[parameter]} but this one needs {needed}; use the model and "
                "the optimiser that the run began with"
            )
    optimizer.load_state_dict({**optimizer.state_dict(), "state": states})


def _slots(optimizer: Optimizer, group: Mapping[str, Any]) -> set[str]:
    """What SGD or AdamW remembers of a parameter."""
    if isinstance(optimizer, SGD):
        return {"momentum_buffer"} if group["momentum"] else set()
    return {"step", "exp_avg", "exp_avg_sq"}
