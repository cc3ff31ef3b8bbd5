"""A detector trained by its stock loss to the end: fresh images of `shapes` at every step, the rate decayed to zero.

    python -m experiments.endless.train --family ssd --steps 15000 --out runs/endless/ssd

The same command goes on with a run that was stopped, and ends with the very weights of an unbroken one. The folder gets
log.jsonl (a line for each evaluation: step, mean loss since the last, mAP on held-out images, seconds of training),
config.json, checkpoints/, and at the end start.safetensors, which `load_start` of experiments/endless/run_files.py reads.
Step n trains on images 8 n to 8 n + 7 of the seed; "val" images are what is evaluated, and "test" images are not touched.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import torch
from torch import nn

from experiments.endless.families import FAMILIES
from experiments.endless.held_out import evaluate, held_out
from experiments.endless.run_files import Config, RunFiles, load_trunk
from experiments.records import add_line
from stepgrad.data import EndlessShapes, FreshImage
from stepgrad.detector.training.checkpoint import optimizer_tensors, restore_optimizer
from stepgrad.detector.training.progress import Progress, QuietProgress
from stepgrad.errors import NonFiniteError
from stepgrad.locks import only_writer
from stepgrad.progress import RichProgress


def train(config: Config, out: Path, progress: Progress | None = None, stop_after: int | None = None) -> None:
    """Train into the folder `out`, from where the run in it stands.

    Args:
        stop_after: leave after so many steps of the whole run, as if killed: what was not saved is lost.
    """
    with only_writer(out, "wait until it is done"):
        files = RunFiles(out)
        files.claim(config)
        if not files.start.is_file():
            _Training(config, files, progress or QuietProgress()).run(stop_after)


def rate(config: Config, step: int) -> float:
    """The rate of a step, counted from 0.

    >>> config = Config("ssd", steps=1000, rate=1.0, warmup=10)
    >>> [round(rate(config, step), 3) for step in (0, 9, 500, 999)]
    [0.1, 1.0, 0.5, 0.0]
    """
    rise = min(1.0, (step + 1) / config.warmup) if config.warmup else 1.0
    return config.rate * rise * 0.5 * (1.0 + math.cos(math.pi * step / config.steps))


class _Training:
    """One run, from its last checkpoint to its end."""

    def __init__(self, config: Config, files: RunFiles, progress: Progress) -> None:
        self.config = config
        self.files = files
        self.progress = progress
        self.family = FAMILIES[config.family]
        self.model = self.family.build(config.seed, config.labels).train()
        if config.trunk:
            load_trunk(self.model, files.folder.absolute().parent / config.trunk)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=config.rate, weight_decay=config.weight_decay)
        self.names: dict[torch.Tensor, str] = {p: name for name, p in self.model.named_parameters()}
        self.step = 0
        self.sums: dict[str, float] = {}  # of the losses since the last line of the log
        self.seconds = 0.0
        found = files.checkpoint()
        if found is not None:
            self.model.load_state_dict(found.weights)
            restore_optimizer(self.optimizer, self.names, found.optimizer)
            self.step, self.sums, self.seconds = found.step, found.state["sums"], found.state["seconds"]

    def run(self, stop_after: int | None = None) -> None:
        config = self.config
        self.progress.start(config.steps, self.step)
        batches = EndlessShapes(config.seed, task=self.family.task).batches(self.step, config.images)
        while self.step < config.steps:
            if self.step == stop_after:
                return
            began = time.monotonic()
            losses = self._take_step(next(batches))
            self.seconds += time.monotonic() - began
            self.progress.step({"step": self.step, "loss": sum(losses.values())})
            if self.step % config.evaluate_every == 0 or self.step == config.steps:
                self._evaluate()
            if self.step % config.save_every == 0 or self.step == config.steps:
                state = {"sums": self.sums, "seconds": self.seconds}
                self.files.save(self.step, self.model, optimizer_tensors(self.optimizer, self.names), state)
        self.files.finish(config, self.model)

    def _take_step(self, images: list[FreshImage]) -> dict[str, float]:
        """One update; returns the losses by name."""
        losses = self.family.losses(self.model, images, self.config.seed)
        shown = {name: float(loss.detach()) for name, loss in losses.items()}
        if not math.isfinite(sum(shown.values())):
            raise NonFiniteError(f"step {self.step + 1}: the losses are {shown}; lower --rate")
        self.optimizer.zero_grad()
        torch.stack([loss.float() for loss in losses.values()]).sum().backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.config.longest_gradient)
        for group in self.optimizer.param_groups:
            group["lr"] = rate(self.config, self.step)
        self.optimizer.step()
        self.step += 1
        for name, value in shown.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
        return shown

    def _evaluate(self) -> None:
        """A line of the log: the mean losses since the one before it, and mAP on held-out images."""
        config = self.config
        since = self.step % config.evaluate_every or config.evaluate_every
        losses = {name: value / since for name, value in self.sums.items()}
        line = {
            "step": self.step,
            "loss": sum(losses.values()),
            "losses": losses,
            "rate": rate(config, self.step),
            "map": evaluate(self.family, self.model, held_out("val", config.val_images, task=self.family.task)),
            "images": config.val_images,
            "seconds": round(self.seconds, 1),
        }
        add_line(self.files.log, line)
        self.progress.val({**line, "phase": config.family})
        self.sums = {}


def main(arguments: Sequence[str] | None = None) -> None:
    """Train; every field of the config is an option."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=list(FAMILIES), required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--labels", choices=["hard", "soft"], default="hard")
    for field in fields(Config):
        if field.name not in ("family", "steps", "labels"):
            kind = type(field.default)
            parser.add_argument(f"--{field.name.replace('_', '-')}", type=kind, default=field.default)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=1, help="of torch; with another number the last bits differ")
    given = vars(parser.parse_args(arguments))
    torch.set_num_threads(given.pop("threads"))
    out = given.pop("out")
    with RichProgress() as progress:
        train(Config(**given), out, progress)
        progress.say(f"{out / 'start.safetensors'} is there")


if __name__ == "__main__":
    main()
