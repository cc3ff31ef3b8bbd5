"""Processes that speak over gloo, for the tests."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from tests.patience import PATIENCE

Results = dict[str, Any]
Work = Callable[[int], Iterator[Results]]


def run_ranks(work: Work, world: int, folder: Path) -> list[Results]:
    """What `work(rank)` yields, merged, for every rank in a process of its own; what came before a process died counts."""
    spawned = [_start(work, rank, world, folder) for rank in range(world)]
    end = time.monotonic() + PATIENCE
    for process in spawned:
        process.join(max(0.0, end - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()
    return _results(folder, world)


def run_ranks_once(work: Work, world: int, factory: pytest.TempPathFactory) -> list[Results]:
    """`run_ranks` for all workers of a test run: the first to come starts the processes, the others wait for the results."""
    shared = os.environ.get("PYTEST_XDIST_WORKER") is not None
    folder = (factory.getbasetemp().parent if shared else factory.getbasetemp()) / work.__name__
    try:
        folder.mkdir()
    except FileExistsError:
        end = time.monotonic() + PATIENCE + 30
        while not (folder / "finished").exists() and time.monotonic() < end:
            time.sleep(0.2)
        return _results(folder, world)
    try:
        return run_ranks(work, world, folder)
    finally:
        (folder / "finished").touch()


def _results(folder: Path, world: int) -> list[Results]:
    files = [folder / f"result-{rank}.pt" for rank in range(world)]
    return [torch.load(file, weights_only=False) if file.is_file() else {} for file in files]


def _start(work: Work, rank: int, world: int, folder: Path) -> BaseProcess:
    process = mp.get_context("spawn").Process(target=_run, args=(work, rank, world, folder), daemon=True)
    process.start()
    return process


def _run(work: Work, rank: int, world: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world)
    results: Results = {}
    for found in work(rank):
        results |= found
        torch.save(results, folder / f"unfinished-{rank}.pt")
        os.replace(folder / f"unfinished-{rank}.pt", folder / f"result-{rank}.pt")
    dist.destroy_process_group()
