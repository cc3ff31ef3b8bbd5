"""Devices that are not the CPU: one that every machine has, and the one that STEPGRAD_DEVICE names, such as xla:0 or cuda.

A `FarTensor` says that it is on another device, and holds its numbers on the CPU. Nothing reads them by accident: NumPy cannot,
and an operation that mixes it with a tensor of the CPU is refused, as on a GPU.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

FAR = torch.device(
    "lazy", 0
)  # a device that torch knows by name, and that no build of it has; backward needs no thread for it
NAMED = os.environ.get("STEPGRAD_DEVICE", "xla:0")
if NAMED.startswith("xla") and importlib.util.find_spec("torch_xla"):
    import torch_xla

    torch_xla.device()  # before the first backward pass of the process: torch counts its devices then


class FarTensor(Tensor):
    """A tensor on the far device."""

    held: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: Tensor) -> FarTensor:
        layout = {"strides": held.stride(), "storage_offset": held.storage_offset()}
        return Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype, device=FAR, **layout)

    def __init__(self, held: Tensor) -> None:
        self.held = held

    def tolist(self) -> Any:
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func}: expected the far device to be switched on, by `with FarDevice():`")


class FarDevice(TorchDispatchMode):
    """While it is on, tensors can be moved to `FAR`, calculated with there, and moved back."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        far: dict[int, FarTensor] = {}
        near: list[Tensor] = []

        def inside(x: Any) -> Any:
            if isinstance(x, FarTensor):
                far[id(x.held)] = x
                return x.held
            if isinstance(x, Tensor):
                near.append(x)
            return torch.device("cpu") if x == FAR else x

        plain_args, plain_kwargs = tree_map(inside, args), tree_map(inside, kwargs)
        device = kwargs.get("device")
        there = bool(far) if device is None else device == FAR
        moves = func in (torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default)
        if far and not moves and any(x.ndim for x in near):
            raise RuntimeError(f"{func}: expected all tensors on one device but some are on {FAR} and some on the CPU")
        result = func(*plain_args, **plain_kwargs)
        if func is torch.ops.aten.copy_.default:
            return args[0]
        return tree_map(lambda x: _outside(x, far), result) if there else result


def _outside(x: Any, far: dict[int, FarTensor]) -> Any:
    """A result as a tensor of the far device; what was changed in place is the tensor that came in."""
    if not isinstance(x, Tensor):
        return x
    return far[id(x)] if id(x) in far else FarTensor(x)


def why_not(name: str) -> str:
    """Why this machine has no such device; empty if it has."""
    if name == "far":
        return ""
    kind = torch.device(name).type
    if kind == "xla":
        return "" if importlib.util.find_spec("torch_xla") else "needs torch_xla (.ci/xla)"
    try:
        there = torch.get_device_module(kind).is_available()
    except RuntimeError:
        there = False
    return "" if there else f"needs a device {name}"


@contextmanager
def switched_on(name: str) -> Iterator[torch.device]:
    """The device of a name; the test is skipped where there is none."""
    if why_not(name):
        pytest.skip(why_not(name))
    with FarDevice() if name == "far" else nullcontext():
        yield FAR if name == "far" else torch.device(name)


DEVICES = ["far", NAMED]
