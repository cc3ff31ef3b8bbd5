"""Real `stepgrad` commands in processes made to be killed: `python -m tests.kills.server`.

A process start costs seconds of imports. This one imports everything once; for each request it reads from its input it
forks a child that runs the console script's own entry, and answers with the child's number; when the child is gone, with
how it ended.
"""

from __future__ import annotations

import json
import mmap
import os
import select
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from signal import SIGKILL
from typing import Any

NEVER = float("inf")


@dataclass(frozen=True)
class End:
    """How a command ended: with an exit code, or killed by us."""

    code: int | None
    said: str
    seconds: float
    writes: int
    """Calls that changed the disk."""

    @property
    def killed(self) -> bool:
        return self.code is None


class Server:
    """Runs commands, one at a time."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        self.process = process
        self.output = folder / "output.txt"

    def run(
        self,
        words: Sequence[str],
        kill_after: float = NEVER,
        kill_at_write: int | None = None,
        largest_file: int | None = None,
    ) -> End:
        """Run `stepgrad WORDS`, `train_new_head FOLDER`, which is no command, or what the server's own module runs.

        Args:
            kill_after: kill it after so many seconds.
            kill_at_write: kill it when it is about to flush, place or remove a file for the n-th time; a file that it was
                about to flush is then half there.
            largest_file: files cannot grow beyond so many bytes, as on a full disk.
        """
        began = time.monotonic()
        self._ask(
            words=list(words), output=str(self.output), kill_at_write=kill_at_write or 0, largest_file=largest_file
        )
        child = int(self._answer())
        if not self._ends_within(kill_after):
            with suppress(ProcessLookupError):  # it may have come to its end just now
                os.kill(child, SIGKILL)
        how, writes = map(int, self._answer().split())
        said = self.output.read_text(errors="replace")
        assert how >= 0 or how == -SIGKILL, f"{words}: died of signal {-how}\n{said}"
        return End(None if how < 0 else how, said, time.monotonic() - began, writes)

    def _ends_within(self, seconds: float) -> bool:
        wait = None if seconds == NEVER else seconds
        return bool(select.select([self.process.stdout], [], [], wait)[0])

    def _ask(self, **request: Any) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(request).encode() + b"\n")

    def _answer(self) -> bytes:
        assert self.process.stdout
        return self.process.stdout.readline()


@contextmanager
def server(folder: Path, module: str = "stepgrad.cli") -> Iterator[Server]:
    """Commands run as `run` of the module."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-W", "ignore", "-m", "tests.kills.server", module]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        try:
            yield Server(process, folder)
        finally:
            process.kill()


def _import_all() -> None:
    """Whatever the commands import on their way; children then start at once."""
    import cv2
    import torch

    for name in (
        *("lightning_fabric", "matplotlib.figure", "tensorboard", "torch.utils.tensorboard", "stepgrad.report"),
        *("stepgrad.cli.train", "stepgrad.cli.propose", "stepgrad.cli.evaluate", "stepgrad.cli.judged"),
        *("stepgrad.evaluation.plots", "stepgrad.detector.training.engine", "stepgrad.models.fine_tuning.report"),
        *("stepgrad.models.torchvision.frozen", "tests.models.tiny", "tests.kills.new_head"),
    ):
        import_module(name)
    torch.set_num_threads(1)  # a pool of threads does not survive a fork
    cv2.setNumThreads(0)


def _is_in_the_making(handle: int) -> bool:
    """Whether nothing of a file was promised yet; logs and folders are flushed too."""
    try:
        return os.readlink(f"/proc/self/fd/{handle}").endswith(".tmp")
    except OSError:  # a system that does not tell names
        return False


class _Writes:
    """Counts the calls by which files get to their place, and may die before one."""

    def __init__(self, kill_at: int) -> None:
        self.calls = mmap.mmap(-1, 8)  # shared with the parent, who reads it when the child is dead
        self.kill_at = kill_at

    def count(self) -> int:
        return int.from_bytes(self.calls[:8], "little")

    def patch(self) -> None:
        for name in ("fsync", "replace", "unlink"):
            setattr(os, name, self._counted(getattr(os, name), name == "fsync"))

    def _counted(self, real: Callable[..., Any], flushes: bool) -> Callable[..., Any]:
        def call(*words: Any, **options: Any) -> Any:
            count = self.count() + 1
            self.calls[:8] = count.to_bytes(8, "little")
            if count == self.kill_at:
                if flushes and _is_in_the_making(words[0]):
                    os.ftruncate(words[0], os.fstat(words[0]).st_size // 2)
                os.kill(os.getpid(), SIGKILL)
            return real(*words, **options)

        return call


def _be_child(module: Any, request: dict[str, Any], writes: _Writes) -> None:
    output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdin.close()
    if request["largest_file"] is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (request["largest_file"], resource.RLIM_INFINITY))
    sys.argv = ["stepgrad", *request["words"]]
    writes.patch()
    code = 1  # for what the console script would show a traceback
    try:
        if request["words"][0] == "train_new_head":  # a function and no command
            code = import_module("tests.kills.new_head").call(request["words"][1])
        else:
            module.run()
    except SystemExit as stop:
        code = int(stop.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _main() -> None:
    _import_all()
    module = import_module(sys.argv[1])
    if hasattr(module, "import_early"):
        module.import_early()
    for line in sys.stdin:
        request = json.loads(line)
        writes = _Writes(request["kill_at_write"])
        child = os.fork()
        if child == 0:
            _be_child(module, request, writes)
        print(child, flush=True)
        how = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])  # negative: the signal
        print(how, writes.count(), flush=True)


if __name__ == "__main__":
    _main()
