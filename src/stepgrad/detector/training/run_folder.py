"""What a run leaves on disk, and how to open it again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import yaml

from stepgrad.detector.training.checkpoint import Checkpoint, checkpoint_step, list_checkpoints, load_checkpoint
from stepgrad.detector.training.config import TrainConfig, from_dict, to_dict
from stepgrad.detector.training.run_log import read_log
from stepgrad.errors import ConfigError, DataError
from stepgrad.files import write_whole
from stepgrad.weights_file import load_weights
from stepgrad.yaml_text import load_yaml

if TYPE_CHECKING:
    from stepgrad.detector import FastRCNN


_CONFIG_BACK = "restore it from a copy, or write the config of the run again: `stepgrad train ... --print_config`"


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
        wanted = [path for path in found if checkpoint_step(path) == step]
        if not wanted:
            steps = ", ".join(str(checkpoint_step(path)) for path in found) or "none"
            raise DataError(f"{self.checkpoints}: has no checkpoint of step {step}; there are: {steps}")
        return load_checkpoint(wanted[0])

    def history(self) -> list[dict[str, Any]]:
        """The lines of the log."""
        return read_log(self.log_file)


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
        from stepgrad.detector import compressed

        return replace(self, model=compressed(self.model, fc6, fc7))


def open_run(folder: str | Path, checkpoint: str | int = "best") -> Run:
    """The detector of a run, ready to use, on the GPU if there is one.

    Args:
        folder: the `--out` of the run.
        checkpoint: "best" (by validation mAP), "last", or a step that has a checkpoint.
    """
    from stepgrad.detector.training.build import build_model

    run = RunFolder(Path(folder))
    config = run.config()
    if checkpoint == "best":
        tensors, facts = _best(run)
    else:
        tensors, facts = _of_step(run, checkpoint)
    names = tuple(facts["class_names"])
    thresholds = facts.get("thresholds") or {}
    model = build_model(config, len(names), weights=None)
    load_into(model, tensors, str(folder))
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    return Run(run.path, config, model.eval(), names, facts["step"], thresholds)


def _best(run: RunFolder) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    if not run.best_file.exists():
        raise DataError(f"{run.path}: has no best.safetensors: no validation has finished yet; pass --checkpoint last")
    try:
        tensors, metadata = load_weights(run.best_file)
    except DataError as error:
        raise DataError(f"{error}, or pass --checkpoint last") from error
    return tensors, _facts(run.best_file, metadata.get("stepgrad", ""))


def _of_step(run: RunFolder, which: str | int) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
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


def load_into(model: torch.nn.Module, tensors: Mapping[str, torch.Tensor], source: str) -> None:
    """Put weights into a model that must fit them."""
    try:
        model.load_state_dict(dict(tensors))
    except RuntimeError as error:
        raise DataError(
            f"{source}: the weights do not fit the model ({error}); backbone, hidden, score, box_regression and the number of "
            "classes must be those it was trained with"
        ) from error
