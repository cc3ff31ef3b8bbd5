"""Devices and processes of a run, and the folder that they own together."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from stepgrad.detector.training.config import TrainConfig
from stepgrad.errors import ConfigError, StepgradError
from stepgrad.locks import only_writer

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def launch(config: TrainConfig) -> Fabric:
    """Devices, precision and processes; under `torchrun` the number of processes is its own."""
    from lightning_fabric import Fabric

    run = config.run
    by_torchrun = "TORCHELASTIC_RUN_ID" in os.environ
    devices = int(os.environ["LOCAL_WORLD_SIZE"]) if by_torchrun else run.devices
    nodes = int(os.environ["GROUP_WORLD_SIZE"]) if by_torchrun else 1
    strategy = "ddp" if devices * nodes > 1 else "auto"
    try:
        fabric = Fabric(
            accelerator=run.accelerator, strategy=strategy, devices=devices, num_nodes=nodes, precision=run.precision
        )
    except Exception as error:  # each kind of device has its own
        raise ConfigError(
            f"run.accelerator: cannot train on {run.accelerator!r} ({' '.join(str(error).split())}); "
            f"this machine has {_available()}; pass one of them, or auto."
        ) from error
    fabric.launch()
    return fabric


def _available() -> str:
    """The devices of this machine, by the names that `run.accelerator` takes."""
    found = ["cpu"]
    if torch.cuda.is_available():
        found.append(f"cuda with {torch.cuda.device_count()} devices")
    if torch.backends.mps.is_available():
        found.append("mps")
    return ", ".join(found)


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
