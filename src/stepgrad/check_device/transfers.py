"""Counts what is copied between the CPU and another device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True)
class Transfer:
    """One copy between devices."""

    down: bool
    """From the device to the CPU."""
    shape: tuple[int, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{'down' if self.down else 'up'} {self.shape} {str(self.dtype).removeprefix('torch.')}"


class CountTransfers(TorchDispatchMode):
    """While it is on, `seen` gets every copy that torch makes between the CPU and other devices, in their order.

    Also numbers that the program waits for (`item`, a condition on a tensor); such a one is a transfer without a shape.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Transfer] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func is torch.ops.aten.copy_.default:
            self._note(args[1], args[0])
        elif func is torch.ops.aten._local_scalar_dense.default:
            self._note(args[0], torch.zeros(()))
        elif isinstance(result, Tensor):
            sources = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
            if len(sources) == 1:
                self._note(sources[0], result)
        return result

    def _note(self, source: Tensor, made: Tensor) -> None:
        if source.device.type != made.device.type and "cpu" in (source.device.type, made.device.type):
            self.seen.append(Transfer(made.device.type == "cpu", tuple(source.shape), source.dtype))
