"""What a run leaves on disk, and how to open it again."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from stepgrad.detector import FastRCNN, compressed
from stepgrad.detector.training.build import BEST_FILE, build_model, load_into
from stepgrad.detector.training.checkpoint import Checkpoint, checkpoint_step, list_checkpoints, load_checkpoint
from stepgrad.detector.training.config import TrainConfig, from_dict, to_dict
from stepgrad.detector.training.run_log import read_log
from stepgrad.errors import ConfigError, DataError
from stepgrad.files import write_whole
from stepgrad.weights_file import load_weights
from stepgrad.yaml_text import load_yaml

_CONFIG_BACK = "restore it from a copy, or write the config of the run again: `stepgrad train ... --print_config`"


class RunFolder:
    """The files of a run, by name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.yaml"
        self.log_file = path / "log.jsonl"
        self.events = path / "events"
        self.checkpoints = path / "checkpoints"
        self.best_file = path / BEST_FILE
        self.evaluation_file = path / "evaluation.json"

    def check_free(self) -> None:
        """Refuse a folder that holds a run."""
        if self.config_file.exists():
            raise ConfigError(
                f"{self.path}: already holds a run; continue it with `stepgrad train --resume {self.path}`, "
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
            content = load_yaml(self.config_file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise DataError(
                f"{self.path}: is not a run folder (it has no config.yaml); pass the --out of a training run"
            ) from None
        except OSError as error:
            raise DataError(f"{self.config_file}: cannot be read ({error.strerror}); {_CONFIG_BACK}") from error
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            reason = " ".join(str(error).split())
            raise DataError(f"{self.config_file}: is damaged ({reason}); {_CONFIG_BACK}") from error
        if not isinstance(content, Mapping):
            raise DataError(
                f"{self.config_file}: expected keys and values but got {type(content).__name__}; {_CONFIG_BACK}"
            )
        try:
            return from_dict(content)
        except ConfigError as error:
            raise ConfigError(f"{self.config_file}: {error}") from error

    def checkpoint(self, step: int | None = None) -> Checkpoint | None:
        """The newest checkpoint, or that of a step; None if the run was stopped before its first."""
        found = list_checkpoints(self.checkpoints)
        if step is None:
            return load_checkpoint(found[-1]) if found else None
        steps = [checkpoint_step(path) for path in found]
        if step not in steps:
            there = ", ".join(map(str, steps)) or "none"
            raise DataError(f"{self.checkpoints}: has no checkpoint of step {step}; there are: {there}")
        return load_checkpoint(found[steps.index(step)])

    def history(self) -> list[dict[str, Any]]:
        """The lines of the log; a warning, and none, if it cannot be read."""
        try:
            return read_log(self.log_file)
        except DataError as error:
            warnings.warn(f"{error}; continuing without it", stacklevel=2)
            return []


@dataclass
class State:
    """The counters of a run: with weights and momentum, all that a checkpoint needs."""

    step: int = 0
    """Steps taken."""
    seconds: float = 0.0
    """Spent in them."""
    validated: int = 0
    """The last step that was validated."""
    best_step: int = 0
    best_map: float = -1.0
    best_merit: float = -1.0
    """What the best step was chosen by: its mAP, or the metric of the run; larger is better."""
    class_names: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> State:
        """The counters in a checkpoint, or a DataError if it holds something else."""
        counters = {name: default for name, default in vars(cls()).items() if name != "step"}
        found = {name: value for name, value in checkpoint.state.items() if name != "log_length"}  # of older runs
        wrong = [name for name, value in found.items() if not _fits(value, counters.get(name))]
        if wrong:
            raise DataError(
                f"the checkpoint of step {checkpoint.step} has no valid {', '.join(wrong)}: another program or version "
                "wrote it; start the run again in a new folder"
            )
        first_kept = {"best_merit": found.get("best_map", -1.0)}  # by which older runs chose
        return cls(step=checkpoint.step, **{**first_kept, **found})


def _fits(value: Any, default: Any) -> bool:
    """Whether a value is of the kind of its default; whole numbers are numbers."""
    return isinstance(value, (int, float) if isinstance(default, float) else type(default)) and default is not None


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

    def compressed(self, fc6: int, fc7: int) -> Run:
        """The same run with a faster detector: fc6 and fc7 cut to so many singular values."""
        return replace(self, model=compressed(self.model, fc6, fc7))


def open_run(folder: str | Path, checkpoint: str | int = "best") -> Run:
    """The detector of a run, ready to use, on the GPU if there is one.

    Args:
        folder: the `--out` of the run.
        checkpoint: "best" (by validation mAP), "last", or a step that has a checkpoint.
    """
    run = RunFolder(Path(folder))
    config = run.config()
    tensors, facts = _best(run) if checkpoint == "best" else _of_step(run, checkpoint)
    names = tuple(facts["class_names"])
    model = build_model(config, len(names), weights=None)
    load_into(model, tensors, str(folder))
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    return Run(run.path, config, model.eval(), names, facts["step"], facts.get("thresholds") or {})


def _best(run: RunFolder) -> tuple[dict[str, Tensor], dict[str, Any]]:
    if not run.best_file.exists():
        raise DataError(f"{run.path}: has no best.safetensors: no validation has finished yet; pass --checkpoint last")
    try:
        tensors, metadata = load_weights(run.best_file)
    except DataError as error:
        raise DataError(f"{error}, or pass --checkpoint last") from error
    return tensors, _facts(run.best_file, metadata.get("stepgrad", ""))


def _of_step(run: RunFolder, which: str | int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    if which != "last" and not str(which).isdecimal():
        raise ConfigError(f"Expected the checkpoint to be best, last or a step but got {which!r}.")
    found = run.checkpoint(None if which == "last" else int(which))
    if found is None:
        raise DataError(
            f"{run.path}: has no checkpoint yet; continue training with `stepgrad train --resume {run.path}`"
        )
    return found.weights, _facts(run.checkpoints, json.dumps({**found.state, "step": found.step}))


def _facts(source: Path, text: str) -> dict[str, Any]:
    """What a file says of its run: class_names and step, and thresholds where it was validated."""
    try:
        facts = json.loads(text)
        names, thresholds = facts["class_names"], facts.get("thresholds") or {}
        sound = isinstance(names, list) and names and all(isinstance(name, str) for name in names)
        sound = sound and type(facts["step"]) is int
        sound = sound and all(isinstance(number, (int, float)) for number in thresholds.values())
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        sound = False
    if not sound:
        raise DataError(f"{source}: does not name its classes and its step; was it written by `stepgrad train`?")
    return dict(facts)
