"""Runs of seconds on the built-in set, in this process and in others, and what to compare of them."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from stepgrad.detector.training.checkpoint import list_checkpoints, load_checkpoint
from stepgrad.detector.training.config import TrainConfig, from_dict, to_dict
from stepgrad.detector.training.progress import QuietProgress
from stepgrad.detector.training.run_log import read_log
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[3]
PHASE = {"steps": 6, "images": 2, "windows": 24, "foreground": 0.5, "background_overlap": 0.0, "lr": 0.01}


def small_config(**changes: Any) -> TrainConfig:
    """A run of seconds: tiny network, few images, two phases of six steps."""
    content: dict[str, Any] = {
        "data": {"path": "shapes", "train_images": 6, "val_images": 4, "max_windows": 60},
        "model": {"backbone": "tiny", "weights": None, "hidden": 32, "shortest_side": None, "longest_side": None},
        "nll": PHASE,
        "map": {**PHASE, "images": 3, "windows": None, "foreground": None, "ground_truth": False},
        "map_loss": {},
        "run": {"eval_every": 5, "save_every": 2, "keep": 20, "log_every": 1, "report": False, "accelerator": "cpu"},
    }
    for key, value in changes.items():
        content[key] = {**content[key], **value} if isinstance(value, dict) else value
    return from_dict(content)


def fingerprint(path: Path) -> str:
    """Of weights, momentum and counters of a checkpoint."""
    found = load_checkpoint(path)
    digest = hashlib.sha256(str(found.step).encode())
    for tensors in (found.weights, found.optimizer):
        for name in sorted(tensors):
            digest.update(name.encode() + tensors[name].numpy().tobytes())
    return digest.hexdigest()


def last(folder: Path) -> str:
    return fingerprint(list_checkpoints(folder / "checkpoints")[-1])


def without_times(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    hidden = ("seconds", "loss_share", "time", "eval_seconds")
    return [{key: value for key, value in line.items() if key not in hidden} for line in lines]


def log_of(folder: Path) -> list[dict[str, Any]]:
    return without_times(read_log(folder / "log.jsonl"))


class StopAt(QuietProgress):
    """Presses Ctrl-C after a step."""

    def __init__(self, step: int) -> None:
        self.at = step

    def step(self, line: Mapping[str, Any]) -> None:
        if line["step"] == self.at:
            os.kill(os.getpid(), signal.SIGINT)


def write_config(folder: Path, **changes: object) -> str:
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(to_dict(small_config(**changes))))
    return str(path)


def start(
    words: list[str], processes: int, folder: Path, program: tuple[str, ...] = ("stepgrad.cli",)
) -> subprocess.Popen[str]:
    """`stepgrad train WORDS`, alone or under torchrun."""
    launcher = (
        [] if processes == 1 else ["torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", "-m"]
    )
    paths = [str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-m", *launcher, *program, "train", *words]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def wait_for(happened: Callable[[], bool], *jobs: subprocess.Popen[str]) -> None:
    """Until something has happened while the jobs run."""
    end = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < end
        for job in jobs:
            assert job.poll() is None, job.communicate()[0]
        time.sleep(0.05)
