"""The few exchanges between the processes of a job: counted, bounded in time, and clear when they fail."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from stepgrad.errors import StepgradError

Bytes = NDArray[np.uint8]
Arrays = Mapping[str, NDArray[Any]]
DEFAULT_TIMEOUT = 50.0  # seconds; a dead peer is noticed at once, a silent one within the minute
_BUCKET = 2**23  # parameters whose gradients travel together


class RankError(StepgradError, RuntimeError):
    """Another process of the job ended, hangs or was given something that does not fit."""


@dataclass
class Traffic:
    """Bytes this process sent to and received from others."""

    sent: int = 0
    received: int = 0
    exchanges: int = 0


class Channel:
    """One process's end of a process group."""

    def __init__(self, group: dist.ProcessGroup | None, timeout: float, traffic: Traffic | None = None) -> None:
        self.group, self.timeout = group, timeout
        self.traffic = traffic if traffic is not None else Traffic()
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        self.device = _device_of(str(dist.get_backend(group)))

    def gather(self, row: NDArray[Any], what: str) -> NDArray[Any]:
        """(world, n): the row of n numbers of every process."""
        row_here = torch.from_numpy(row).to(self.device)
        rows = [torch.empty_like(row_here) for _ in range(self.world)]
        self._wait(lambda: dist.all_gather(rows, row_here, group=self.group, async_op=True), what)
        self._count((self.world - 1) * row.nbytes, (self.world - 1) * row.nbytes)
        return torch.stack(rows).cpu().numpy()

    def exchange(self, parts: Sequence[Arrays], what: str) -> list[Arrays]:
        """Send parts[r], named arrays, to process r; returns what each process sent here."""
        packed = [_packed(part) for part in parts]
        lengths = self.gather(
            np.array([len(part) for part in packed], dtype=np.int64), f"announcing the sizes for {what}"
        )
        sizes = lengths[:, self.rank].tolist()
        sent = torch.from_numpy(np.concatenate(packed)).to(self.device)
        taken = torch.empty(sum(sizes), dtype=torch.uint8, device=self.device)
        out = [len(part) for part in packed]
        self._wait(lambda: dist.all_to_all_single(taken, sent, sizes, out, group=self.group, async_op=True), what)
        self._count(sum(out) - out[self.rank], sum(sizes) - sizes[self.rank])
        return [_unpacked(part.numpy()) for part in taken.cpu().split(sizes)]

    def add_up(self, tensor: Tensor, what: str) -> None:
        """Replace a tensor, in place, by its sum over the processes."""
        there = tensor.to(self.device)
        self._wait(lambda: dist.all_reduce(there, group=self.group, async_op=True), what)
        tensor.copy_(there)

    def _wait(self, start: Callable[[], Any], what: str) -> None:
        began = time.monotonic()
        try:
            start().wait(timedelta(seconds=self.timeout))
        except RuntimeError as error:  # what torch.distributed raises when a peer is gone or silent
            seconds = time.monotonic() - began
            raise RankError(self._explain(what, seconds, error)) from error

    def _explain(self, what: str, seconds: float, error: RuntimeError) -> str:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        return (
            f"rank {self.rank} of {self.world}: {what} failed after {seconds:.0f} s ({reason}). Another process has ended "
            "or hangs: its own output says why. Start the job again from its last checkpoint "
            "(`stepgrad train --resume RUN`); if that process was only slow, allow more than "
            f"timeout={self.timeout:g} seconds."
        )

    def _count(self, sent: int, received: int) -> None:
        self.traffic.sent += sent
        self.traffic.received += received
        self.traffic.exchanges += 1


def _packed(arrays: Arrays) -> Bytes:
    """Named arrays as bytes: the length of a header, the header (names, types and shapes), then the arrays."""
    header = json.dumps([[name, str(array.dtype), array.shape] for name, array in arrays.items()]).encode()
    length = np.array([len(header)], dtype=np.int64)
    flat = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in (length, *arrays.values())]
    return np.concatenate([flat[0], np.frombuffer(header, dtype=np.uint8), *flat[1:]])


def _unpacked(packed: Bytes) -> Arrays:
    """Inverse of `_packed`."""
    at = 8 + int(packed[:8].copy().view(np.int64)[0])
    arrays = {}
    for name, dtype, shape in json.loads(packed[8:at].tobytes()):
        size = np.dtype(dtype).itemsize * math.prod(shape)
        arrays[name] = packed[at : at + size].copy().view(dtype).reshape(shape)
        at += size
    return arrays


def is_alone(group: dist.ProcessGroup | None) -> bool:
    """Whether there is no other process to speak to."""
    return not (dist.is_available() and dist.is_initialized()) or dist.get_world_size(group) == 1


def rank() -> int:
    """This process's number; 0 where it is the only one."""
    return 0 if is_alone(None) else dist.get_rank()


def world() -> int:
    """How many processes there are."""
    return 1 if is_alone(None) else dist.get_world_size()


def _device_of(backend: str) -> torch.device:
    """Where tensors must lie for a backend; NCCL and its like know only their own devices."""
    if "gloo" in backend or "mpi" in backend or not torch.accelerator.is_available():
        return torch.device("cpu")
    accelerator = torch.accelerator.current_accelerator()
    return torch.device("cpu") if accelerator is None else accelerator


def average_gradients(
    parameters: Iterable[Tensor], *, group: dist.ProcessGroup | None = None, timeout: float = DEFAULT_TIMEOUT
) -> None:
    """Replace every parameter's gradient by its mean over the processes, as DistributedDataParallel does.

    Called once after the backward pass. Processes may have run any number of backward passes, also none: a missing
    gradient counts as zero, and one that is missing everywhere stays missing.
    """
    if is_alone(group):
        return
    channel = Channel(group, timeout)
    trained = [p for p in parameters if p.requires_grad]
    there = torch.tensor([p.grad is not None for p in trained], dtype=torch.int64)
    channel.add_up(there, "agreeing on which gradients there are")
    moving = [p for p, count in zip(trained, there.tolist(), strict=True) if count]
    for bucket in _buckets(moving):
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).detach().flatten() for p in bucket])
        channel.add_up(flat, "adding up the gradients")
        flat /= channel.world
        for p, mean in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
            p.grad = mean.view_as(p).clone() if p.grad is None else p.grad.copy_(mean.view_as(p))


def _buckets(parameters: Sequence[Tensor]) -> list[list[Tensor]]:
    """Runs of parameters of one dtype and device and of bounded size."""
    found: list[list[Tensor]] = []
    size = 0
    for p in parameters:
        last = found[-1][-1] if found else None
        if last is None or (last.dtype, last.device) != (p.dtype, p.device) or size + p.numel() > _BUCKET:
            found.append([])
            size = 0
        found[-1].append(p)
        size += p.numel()
    return found


def sum_over_processes(numbers: Sequence[float], timeout: float = DEFAULT_TIMEOUT) -> list[float]:
    """Each number summed over all processes; the same where there is only one."""
    if is_alone(None):
        return [float(number) for number in numbers]
    total = torch.tensor(numbers, dtype=torch.float64)
    Channel(None, timeout).add_up(total, "adding up numbers of the step")
    return [float(number) for number in total]


def gather_objects(mine: Any) -> list[Any]:
    """What every process has, by rank."""
    if is_alone(None):
        return [mine]
    everyones: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, mine)
    return everyones
