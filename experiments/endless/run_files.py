"""The folder of a run: its config, its log, its last checkpoints, and at the end the weights others start from."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from experiments.endless.families import FAMILIES
from experiments.records import Run, read_lines
from stepgrad.detector.training.checkpoint import Checkpoint, list_checkpoints, load_checkpoint, save_checkpoint
from stepgrad.errors import ConfigError, DataError
from stepgrad.files import write_whole
from stepgrad.weights_file import load_weights, save_weights

KEPT_CHECKPOINTS = 2


@dataclass(frozen=True)
class Config:
    """All that decides the weights a run ends with."""

    family: str
    steps: int
    images: int = 8
    """Fresh ones at every step."""
    rate: float = 1e-3
    """Of AdamW after `warmup` steps; a cosine takes it to zero."""
    warmup: int = 100
    weight_decay: float = 0.01
    longest_gradient: float = 10.0
    labels: str = "hard"
    """"soft": IoU-aware, where the family can."""
    seed: int = 0
    """Of the weights, of the images and of the draws of windows."""
    trunk: str = ""
    """The folder, beside the run's own, of a finished run whose trunk it begins with: a DETR takes long from nothing."""
    val_images: int = 500
    evaluations: int = 32

    def __post_init__(self) -> None:
        if self.labels == "soft" and not FAMILIES[self.family].soft_labels:
            able = [name for name, family in FAMILIES.items() if family.soft_labels]
            raise ConfigError(f"Expected a family with soft labels ({', '.join(able)}) but got {self.family}.")
        for name in ("steps", "images", "val_images", "evaluations"):
            if getattr(self, name) < 1:
                raise ConfigError(f"Expected {name} to be at least 1 but got {getattr(self, name)}.")

    @property
    def evaluate_every(self) -> int:
        return max(1, self.steps // self.evaluations)

    @property
    def save_every(self) -> int:
        """At least four checkpoints between two evaluations of a long run: little is lost when it is killed."""
        return max(1, self.evaluate_every // 4)


class RunFiles:
    """The files of one run; the caller sees to it that nobody else writes to the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log.jsonl"
        self.start = folder / "start.safetensors"
        self._config = folder / "config.json"
        self._checkpoints = folder / "checkpoints"

    def claim(self, config: Config) -> None:
        """Write the config down, or see that the run which is there has the same."""
        if not self._config.is_file():
            write_whole(self._config, (json.dumps(asdict(config), indent=1) + "\n").encode())
            return
        there = json.loads(self._config.read_bytes())
        wanted = asdict(config)
        known = {field.name: field.default for field in fields(Config)} | there  # it may be older than a field
        other = [f"{name} {known[name]!r}, not {wanted[name]!r}" for name in wanted if known[name] != wanted[name]]
        if other:
            raise ConfigError(
                f"{self.folder}: holds a run with {'; '.join(other)}; give its own settings to go on with it, "
                "or another folder"
            )

    def checkpoint(self) -> Checkpoint | None:
        """The newest, if there is one; the log loses the lines after it, which are about to be written again."""
        saved = list_checkpoints(self._checkpoints)
        found = load_checkpoint(saved[-1]) if saved else None
        kept = [line for line in self.lines() if found is not None and line["step"] <= found.step]
        write_whole(self.log, "".join(json.dumps(line) + "\n" for line in kept).encode())
        return found

    def save(self, step: int, model: nn.Module, optimizer: dict[str, Tensor], state: dict[str, Any]) -> None:
        save_checkpoint(self._checkpoints, Checkpoint(step, weights_of(model), optimizer, state), KEPT_CHECKPOINTS)

    def lines(self) -> list[Run]:
        """The log so far; a last line that was cut short does not count."""
        return read_lines(self.log)

    def finish(self, config: Config, model: nn.Module) -> None:
        """Write the weights that later training starts from."""
        save_weights(self.start, weights_of(model), {"endless": json.dumps(asdict(config))})


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().cpu() for name, value in model.state_dict().items()}


def load_trunk(model: nn.Module, run: Path) -> None:
    """Give a detector the trunk of a finished run, of whatever family: stem and stages, not the pyramid on top."""
    tensors, _ = load_weights(run / "start.safetensors")
    shared = re.compile(r".*backbone\.(?:model\.)?((?:stem|stages)\..*)")
    theirs = {found[1]: value for name, value in tensors.items() if (found := shared.fullmatch(name))}
    ours = {name: found[1] for name in model.state_dict() if (found := shared.fullmatch(name))}
    if not ours or set(ours.values()) != set(theirs):
        raise DataError(f"{run}: expected a trunk like the model's, {len(ours)} tensors, but got {len(theirs)} others.")
    model.load_state_dict({name: theirs[place] for name, place in ours.items()}, strict=False)


def load_start(path: str | Path, labels: str | None = None) -> tuple[Config, nn.Module]:
    """The config and the trained detector of a finished run, by its folder or its file `start.safetensors`.

    `FAMILIES[config.family]` has its stock losses and its detections. Of the images of its seed it has seen those with
    numbers below `config.steps * config.images`.

    Args:
        labels: "hard" or "soft", the labels it learns from next; None: those it has learnt from.
    """
    path = Path(path)
    tensors, facts = load_weights(path / "start.safetensors" if path.is_dir() else path)
    if "endless" not in facts:
        raise DataError(f"{path}: holds no start; make one with `python -m experiments.endless.train`")
    config = Config(**json.loads(facts["endless"]))
    model = FAMILIES[config.family].build(config.seed, labels or config.labels)
    model.load_state_dict(tensors)
    return config, model
