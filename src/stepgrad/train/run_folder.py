"""What a run leaves on disk, and how to open it again."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import yaml

from stepgrad.data.files import WriteError, write_whole
from stepgrad.errors import ConfigError, DataError
from stepgrad.train.checkpoint import Checkpoint, checkpoint_step, list_checkpoints, load_checkpoint
from stepgrad.train.config import TrainConfig, from_dict, to_dict
from stepgrad.train.weights_file import load_weights

if TYPE_CHECKING:
    from stepgrad.detector import FastRCNN


@dataclass(frozen=True)
class RunFolder:
    """The files of a run, by name."""

    path: Path

    @property
    def config_file(self) -> Path:
        return self.path / "config.yaml"

    @property
    def log_file(self) -> Path:
        return self.path / "log.jsonl"

    @property
    def events(self) -> Path:
        return self.path / "events"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def best_file(self) -> Path:
        return self.path / "best.safetensors"

    @property
    def evaluation_file(self) -> Path:
        return self.path / "evaluation.json"

    def check_free(self) -> None:
        """Refuse a folder that holds a run."""
        if self.config_file.exists():
            raise ConfigError(
                f"{self.path}: already holds a run; go on with it by `stepgrad train --resume {self.path}`, "
                "or choose another --out"
            )

    def create(self, config: TrainConfig) -> None:
        """Start a run here, or find it begun."""
        text = yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True)
        if not self.config_file.exists():
            write_whole(self.config_file, text.encode())

    def config(self) -> TrainConfig:
        """The config of the run, as resolved when it began."""
        try:
            content = yaml.safe_load(self.config_file.read_text())
        except FileNotFoundError:
            raise DataError(
                f"{self.path}: is no run folder (it has no config.yaml); pass the --out of a training run"
            ) from None
        except yaml.YAMLError as error:
            raise DataError(f"{self.config_file}: is damaged ({error}); restore it from a copy") from error
        if not isinstance(content, Mapping):
            raise DataError(f"{self.config_file}: expected keys and values but got {type(content).__name__}")
        return from_dict(content)

    def checkpoint(self, step: int | None = None) -> Checkpoint | None:
        """The newest checkpoint, or that of a step; None if the run was stopped before its first."""
        found = list_checkpoints(self.checkpoints)
        if step is None:
            return load_checkpoint(found[-1]) if found else None
        wanted = [path for path in found if checkpoint_step(path) == step]
        if not wanted:
            steps = ", ".join(str(checkpoint_step(path)) for path in found) or "none"
            raise DataError(f"{self.checkpoints}: has no checkpoint of step {step}; there are: {steps}")
        return load_checkpoint(wanted[0])

    def history(self) -> list[dict[str, Any]]:
        """The lines of the log."""
        return read_log(self.log_file)


class Log:
    """JSON lines on disk, each flushed when written."""

    def __init__(self, path: Path, length: int = 0) -> None:
        """Go on after `length` bytes; what stands behind belongs to steps that will be taken again."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file = open(path, "ab")  # noqa: SIM115
        self._file.truncate(min(length, self._file.tell()))

    def write(self, line: Mapping[str, Any]) -> None:
        try:
            self._file.write(json.dumps(finite(line), allow_nan=False).encode() + b"\n")
            self._file.flush()
        except OSError as error:
            raise WriteError(
                f"{self.path}: cannot be written ({error.strerror}); make room and resume the run"
            ) from error

    def sync(self) -> int:
        """Put the lines on the disk itself; returns the length in bytes."""
        os.fsync(self._file.fileno())
        return os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        with suppress(OSError):  # of a line that is still to be written; `write` has told
            self._file.close()


def read_log(path: Path) -> list[dict[str, Any]]:
    """The lines of a log; one cut short by a crash is left out."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


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


@dataclass(frozen=True)
class Run:
    """A trained detector and where it comes from."""

    folder: Path
    config: TrainConfig
    model: FastRCNN
    class_names: tuple[str, ...]
    step: int
    thresholds: dict[str, float]
    """By class, the score at which validation's F1 was best; empty if the run had no validation."""


def open_run(folder: str | Path, checkpoint: str | int = "best") -> Run:
    """The detector of a run, ready to use, on the GPU if there is one.

    Args:
        folder: the `--out` of the run.
        checkpoint: "best" (by validation mAP), "last", or a step that has a checkpoint.
    """
    from stepgrad.train.build import build_model

    run = RunFolder(Path(folder))
    config = run.config()
    if checkpoint == "best":
        tensors, facts = _best(run)
    else:
        tensors, facts = _of_step(run, checkpoint)
    names = tuple(facts["class_names"])
    model = build_model(config, len(names), weights=None)
    load_into(model, tensors, str(folder))
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    return Run(run.path, config, model.eval(), names, int(facts["step"]), facts.get("thresholds") or {})


def _best(run: RunFolder) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    if not run.best_file.exists():
        raise DataError(f"{run.path}: has no best.safetensors: no validation was reached; pass --checkpoint last")
    try:
        tensors, metadata = load_weights(run.best_file)
    except DataError as error:
        raise DataError(f"{error}, or pass --checkpoint last") from error
    return tensors, json.loads(metadata["stepgrad"])


def _of_step(run: RunFolder, which: str | int) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    if which != "last" and not str(which).isdecimal():
        raise ConfigError(f"Expected the checkpoint to be best, last or a step but got {which!r}.")
    found = run.checkpoint(None if which == "last" else int(which))
    if found is None:
        raise DataError(f"{run.path}: has no checkpoint yet; train on with `stepgrad train --resume {run.path}`")
    return found.weights, {**found.state, "step": found.step}


def load_into(model: torch.nn.Module, tensors: Mapping[str, torch.Tensor], source: str) -> None:
    """Put weights into a model that must fit them."""
    try:
        model.load_state_dict(dict(tensors))
    except RuntimeError as error:
        raise DataError(
            f"{source}: the weights do not fit the model ({error}); backbone, hidden, score and the number of classes must "
            "be those it was trained with"
        ) from error
