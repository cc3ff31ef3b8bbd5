"""A process that saves checkpoints without end, in children made to be killed; and the content they save.

It imports torch once and forks a child for each folder it reads from its input, so that hundreds of kills take seconds.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGKILL
from time import sleep

import numpy as np
import torch

from stepgrad.detector.training.checkpoint import Checkpoint, list_checkpoints, save_checkpoint

SIZE = 200_000
BYTES = 8 * SIZE  # of a checkpoint: weights and momentum; large enough that most of a child's life goes into writing


def content(step: int) -> Checkpoint:
    """The one right checkpoint of a step; made by NumPy, as torch's threads wait for each other on a busy machine."""
    weights = np.arange(step, SIZE + step, dtype=np.int32)
    optimizer = {"layer/momentum_buffer": torch.from_numpy(-weights)}
    return Checkpoint(step, {"layer": torch.from_numpy(weights)}, optimizer, {"step_doubled": 2 * step})


def same(one: Checkpoint, other: Checkpoint) -> bool:
    parts = [(one.weights, other.weights), (one.optimizer, other.optimizer)]
    return (one.step, one.state) == (other.step, other.state) and all(
        list(a) == list(b) and all(np.array_equal(a[name], b[name]) for name in a) for a, b in parts
    )


def last_promised(folder: Path) -> int:
    """The last step of which `save_checkpoint` said that it is saved; 0 if none."""
    promises = folder.parent / "promises"
    return int(promises.read_text().split()[-1]) if promises.exists() and promises.stat().st_size else 0


class Killer:
    """Starts children that save checkpoints in a folder, and kills them."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def kill_after(self, seconds: float, folder: Path) -> None:
        assert self.process.stdin
        assert self.process.stdout
        print(folder, file=self.process.stdin, flush=True)
        child = int(self.process.stdout.readline())
        sleep(seconds)
        os.kill(child, SIGKILL)
        assert self.process.stdout.readline() == f"{SIGKILL:d}\n"  # it died of this, not of an error


@contextmanager
def killer() -> Iterator[Killer]:
    command = [sys.executable, "-m", "tests.detector.training.killing"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Killer(process)
        finally:
            process.kill()


def _save_without_end(folder: Path) -> None:
    saved = list_checkpoints(folder)
    step = int(saved[-1].stem.removeprefix("step-")) if saved else 0
    with open(folder.parent / "promises", "a") as promises:
        while True:
            step += 1
            save_checkpoint(folder, content(step), keep=2)
            print(step, file=promises, flush=True)


def _main() -> None:
    torch.set_num_threads(1)  # a pool of threads does not survive a fork
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _save_without_end(Path(line.strip()))
        print(child, flush=True)
        print(os.WTERMSIG(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    _main()
