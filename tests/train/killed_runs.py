"""A process that trains in forked children made to be killed: `python -m tests.train.killed_runs`.

For each folder it reads from its input it forks a child that starts the run there, or goes on with it, and answers with
the child's number; when the child is gone, with how it ended.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from signal import SIGKILL
from time import sleep

import torch

import stepgrad.report  # noqa: F401  so that children need not import it
import stepgrad.train.engine as engine
from stepgrad.train.config import TrainConfig
from tests.train.test_engine import small_config


def config() -> TrainConfig:
    """Saves at every step, so that most of a run's time after the first second is spent near a save."""
    return small_config(
        data={"val_images": 1}, nll={"steps": 15}, map={"steps": 15}, run={"save_every": 1, "eval_every": 10, "keep": 2}
    )


class Trainer:
    """Runs children, one at a time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def run(self, folder: Path, kill_after: random.Random | None, longest: float) -> bool:
        """Let a child train; kill it at a random moment once it has begun. Whether it came to the end of the run."""
        assert self.process.stdin
        assert self.process.stdout
        print(folder, file=self.process.stdin, flush=True)
        child = int(self.process.stdout.readline())
        if kill_after is not None:
            sleep(kill_after.uniform(0, longest))
            with suppress(ProcessLookupError):  # it may have come to its end
                os.kill(child, SIGKILL)
        how = int(self.process.stdout.readline())
        assert how in (0, SIGKILL), f"the child ended with {how}"
        return how == 0


@contextmanager
def trainer() -> Iterator[Trainer]:
    command = [sys.executable, "-W", "ignore", "-m", "tests.train.killed_runs"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Trainer(process)
        finally:
            process.kill()


def _train(folder: Path) -> None:
    if (folder / "config.yaml").exists():
        engine.resume(folder)
    else:
        engine.train(config(), folder)


def _main() -> None:
    torch.set_num_threads(1)  # a pool of threads does not survive a fork
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                _train(Path(line.strip()))
            except BaseException as error:
                print(error, file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        print(child, flush=True)
        status = os.waitpid(child, 0)[1]
        print(os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status), flush=True)


if __name__ == "__main__":
    _main()
