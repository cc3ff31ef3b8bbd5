"""`torch.distributed` among threads of one process: the same calls, answered in memory, for quick tests of what uses them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from stepgrad import processes

_SECONDS = 60.0  # a thread that waits longer for the others fails


class Done:
    """A finished exchange."""

    def wait(self, timeout: Any = None) -> None:
        pass


class ThreadedDist:
    """What `stepgrad.processes` uses of `torch.distributed`; threads are ranks."""

    def __init__(self, world: int) -> None:
        self.world = world
        self.table: list[Any] = [None] * world
        self.barrier = threading.Barrier(world)
        self.own = threading.local()

    def run(self, work: Callable[[int], Any]) -> list[Any]:
        """What `work(rank)` returns, or the exception it raises, by rank."""
        with ThreadPoolExecutor(self.world) as pool:
            return list(pool.map(lambda rank: self._as_rank(work, rank), range(self.world)))

    def _as_rank(self, work: Callable[[int], Any], rank: int) -> Any:
        self.own.rank = rank
        try:
            return work(rank)
        except Exception as error:
            self.barrier.abort()  # the others need not wait for this one
            return error

    def _everyones(self, value: Any) -> list[Any]:
        self.table[self.get_rank()] = value
        self.barrier.wait(_SECONDS)
        found = list(self.table)
        self.barrier.wait(_SECONDS)  # nobody writes the next value before all have read this one
        return found

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def get_rank(self, group: Any = None) -> int:
        rank: int = self.own.rank
        return rank

    def get_world_size(self, group: Any = None) -> int:
        return self.world

    def get_backend(self, group: Any = None) -> str:
        return "gloo"

    def all_gather(self, rows: list[Tensor], own: Tensor, group: Any = None, async_op: bool = False) -> Done:
        for row, value in zip(rows, self._everyones(own.clone()), strict=True):
            row.copy_(value)
        return Done()

    def all_gather_object(self, rows: list[Any], own: Any) -> None:
        rows[:] = self._everyones(own)

    def all_to_all_single(
        self, taken: Tensor, given: Tensor, sizes: list[int], out: list[int], group: Any = None, async_op: bool = False
    ) -> Done:
        parts = [parts[self.get_rank()] for parts in self._everyones(given.clone().split(out))]
        assert [len(part) for part in parts] == sizes
        taken.copy_(torch.cat(parts))
        return Done()

    def all_reduce(self, tensor: Tensor, group: Any = None, async_op: bool = False) -> Done:
        tensor.copy_(torch.stack(self._everyones(tensor.clone())).sum(dim=0))
        return Done()


def threads(world: int, monkeypatch: pytest.MonkeyPatch) -> ThreadedDist:
    """Threads for processes, for the rest of a test."""
    made = ThreadedDist(world)
    monkeypatch.setattr(processes, "dist", made)
    return made
