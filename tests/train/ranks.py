"""Processes that speak over gloo, for the tests."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

Results = dict[str, Any]
Work = Callable[[int], Iterator[Results]]


def run_ranks(work: Work, world: int, folder: Path, limit: float = 150.0) -> list[Results]:
    """What `work(rank)` yields, merged, for every rank in a process of its own; what came before a process died counts."""
    spawned = [_start(work, rank, world, folder) for rank in range(world)]
    end = time.monotonic() + limit
    for process in spawned:
        process.join(max(0.0, end - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()
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
