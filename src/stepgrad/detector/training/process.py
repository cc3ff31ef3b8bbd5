"""The processes of a run: devices, the folder they own together, Ctrl-C, and memory that goes back to the system."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from stepgrad.errors import ConfigError, StepgradError
from stepgrad.locks import only_writer

if TYPE_CHECKING:  # torch and Fabric take seconds to import, for which `stepgrad --help` does not wait
    from lightning_fabric import Fabric

    from stepgrad.detector.training.config import RunConfig

_MMAP_THRESHOLD = -3  # mallopt's name for it
_LARGE = 4 << 20


def launch(run: RunConfig) -> Fabric:
    """Devices, precision and processes; under `torchrun` the number of processes is its own."""
    import torch
    from lightning_fabric import Fabric

    by_torchrun = "TORCHELASTIC_RUN_ID" in os.environ
    devices = int(os.environ["LOCAL_WORLD_SIZE"]) if by_torchrun else run.devices
    nodes = int(os.environ["GROUP_WORLD_SIZE"]) if by_torchrun else 1
    strategy = "ddp" if devices * nodes > 1 else "auto"
    try:
        fabric = Fabric(
            accelerator=run.accelerator, strategy=strategy, devices=devices, num_nodes=nodes, precision=run.precision
        )
    except Exception as error:  # each kind of device has its own
        other = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        there = f"cpu and {torch.accelerator.device_count()} x {other.type}" if other else "cpu"
        raise ConfigError(
            f"run.accelerator: cannot train on {run.accelerator!r} ({' '.join(str(error).split())}); "
            f"this machine has {there}; pass one of them, or auto."
        ) from error
    fabric.launch()
    return fabric


@contextmanager
def owning(folder: Path, fabric: Fabric) -> Iterator[None]:
    """Hold a run folder: the first process for all processes of the job. What is in the way is raised in each of them."""
    with ExitStack() as held:
        trouble: StepgradError | None = None
        if fabric.is_global_zero:
            try:
                held.enter_context(
                    only_writer(folder, "wait until it ends or stop it, or train into another folder (--out)")
                )
            except StepgradError as error:
                trouble = error
        trouble = fabric.broadcast(trouble)
        if trouble is not None:
            raise trouble
        yield


class RunInterrupted(StepgradError):
    """The run was asked to stop; its checkpoint is saved, and the message says how to continue."""


class Interrupts:
    """Whether the process was asked to stop."""

    asked = False

    def agree(self, timeout: float) -> None:
        """What one process was asked, all were."""
        from stepgrad.processes import sum_over_processes

        self.asked = sum_over_processes([float(self.asked)], timeout)[0] > 0

    def check(self) -> None:
        """Raise RunInterrupted if asked to stop; also leaves work that may be cut short, such as a validation."""
        if self.asked:
            raise RunInterrupted


@contextmanager
def noted_interrupts() -> Iterator[Interrupts]:
    """Note SIGINT and SIGTERM instead of ending the process: a run stops at its next step. A second one acts at once."""
    interrupts = Interrupts()
    before: dict[int, Any] = {}

    def note(number: int, frame: FrameType | None) -> None:
        interrupts.asked = True
        restore()

    def restore() -> None:
        while before:
            signal.signal(*before.popitem())

    if threading.current_thread() is threading.main_thread():  # others may not set handlers
        before |= {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupts
    finally:
        restore()


def return_large_blocks() -> bool:
    """Have the C library return blocks of 4 MB and more to the system as soon as they are freed; False if it is not glibc.

    Its default learns from what is freed and soon keeps blocks of up to 32 MB for reuse. Activations of images of all
    sizes, with small results kept between them, leave so many gaps that a pass over some thousand images took 15 GB.
    """
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018 - only glibc has it, and knows the option by this number
        return bool(library.mallopt(_MMAP_THRESHOLD, _LARGE))
    except (AttributeError, OSError, TypeError):
        return False
