"""Tensors whose numbers can be read: the one door to every loss, layer and metric.

Steps are found by kernels outside of torch that read plain numbers. Inside one of torch's function transforms (torch.func,
vmap, forward-mode derivatives) a tensor stands for others that do not exist yet, and has none to read.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from stepgrad.errors import InputError, UnsupportedTransformError

F = TypeVar("F", bound=Callable[..., Any])
_NUMPY_FLOATS = {torch.float32: np.float32, torch.float64: np.float64}
_WIDE_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)


def refuse_unreadable(*given: object) -> None:
    """Raise unless every tensor among the arguments is dense, holds plain numbers, and is of a type torch calculates with.

    >>> refuse_unreadable(torch.zeros(2), None)
    >>> refuse_unreadable(torch.zeros(2, device="meta"))
    Traceback (most recent call last):
    stepgrad.errors.InputError: Expected a tensor with numbers but got one on the meta device, which has none.
    """
    if torch.compiler.is_compiling():  # the compiler's own stand-ins are no transform, and cannot be asked
        return
    for tensor in given:
        if isinstance(tensor, Tensor):
            _refuse_transforms(tensor)
            _refuse_kinds(tensor)


def tensor_of(given: object, image: object, name: str) -> Tensor:
    """What a user handed in for an image as a tensor of real numbers; raises InputError that names both.

    >>> tensor_of([1, 2], image=7, name="targets['labels']")
    tensor([1, 2])
    >>> tensor_of("cat", image=7, name="targets['labels']")
    Traceback (most recent call last):
    stepgrad.errors.InputError: image 7: expected targets['labels'] to be a tensor, or numbers for one, but got str.
    """
    if not isinstance(given, Tensor):
        try:
            given = torch.as_tensor(given)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise InputError(
                f"image {image}: expected {name} to be a tensor, or numbers for one, but got {type(given).__name__}."
            ) from error
    if given.is_complex():
        raise InputError(f"image {image}: expected {name} to be of a real dtype but got {given.dtype}.")
    try:
        refuse_unreadable(given)
        return widened(given)
    except InputError as error:
        raise InputError(f"image {image}: {name}: {error}") from None


def widened(tensor: Tensor) -> Tensor:
    """The same numbers; those of torch's wide unsigned types, which it cannot join with any other integers, as int64.

    >>> widened(torch.tensor([7], dtype=torch.uint16)).dtype
    torch.int64
    """
    if tensor.dtype not in _WIDE_UNSIGNED:
        return tensor
    signed = tensor.to(torch.int64)
    if bool((signed < 0).any()):
        raise InputError("Expected whole numbers below 2**63 but got larger ones in a tensor of torch.uint64.")
    return signed


def _refuse_transforms(tensor: Tensor) -> None:
    if _is_wrapped(tensor) or forward_ad.unpack_dual(tensor).tangent is not None:
        raise UnsupportedTransformError(
            "Expected a tensor of plain numbers but got one inside torch.func.grad, vmap, jvp or another transform of "
            "torch.func, or a dual number of forward-mode derivatives: steps are found by kernels outside of torch, "
            "which a transform cannot follow. Call loss.backward() or torch.autograd.grad instead of torch.func.grad, "
            "and loop over examples instead of vmap; there are no forward-mode or second derivatives."
        )


def _is_wrapped(tensor: Tensor) -> bool:
    """Whether a transform of torch.func, or the vmap behind `is_grads_batched`, is at work. Torch says so in private only."""
    ask = torch._C._functorch
    return bool(ask.is_functorch_wrapped_tensor(tensor) or ask.is_legacy_batchedtensor(tensor))


def _refuse_kinds(tensor: Tensor) -> None:
    if tensor.is_meta:
        raise InputError("Expected a tensor with numbers but got one on the meta device, which has none.")
    if tensor.layout != torch.strided or tensor.is_nested:
        kind = "nested tensors" if tensor.is_nested else tensor.layout
        raise InputError(f"Expected a dense tensor but got one of {kind}; call to_dense() first.")
    if tensor.is_floating_point() and tensor.element_size() == 1:
        raise InputError(
            f"Expected a tensor of at least 16 bits per number but got {tensor.dtype}; call float() first."
        )


def narrowed(gradient: Tensor, dtype: torch.dtype) -> Tensor:
    """The gradient in a dtype; what that cannot hold becomes its largest number.

    >>> narrowed(torch.tensor([1e6, -0.5], dtype=torch.float64), torch.float16).tolist()
    [65504.0, -0.5]
    """
    bound = torch.finfo(dtype).max
    if not (_numpy_can(gradient) and dtype in _NUMPY_FLOATS):
        return gradient.clamp(-bound, bound).to(dtype).contiguous()
    with np.errstate(over="ignore"):  # clipped below
        narrow = gradient.numpy().astype(_NUMPY_FLOATS[dtype], order="C")
    return torch.from_numpy(np.clip(narrow, -bound, bound, out=narrow))


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """`torch.cat`, by one thread where that can be: threads of torch's wait for each other, which takes long on a busy machine.

    >>> joined([torch.tensor([1.0, 2.0]), torch.tensor([3.0])])
    tensor([1., 2., 3.])
    """
    if torch.compiler.is_compiling() or not all(_numpy_can(t) for t in tensors):
        return torch.cat(list(tensors))
    joint: Tensor = _Join.apply(*tensors)
    return joint


def times(tensor: Tensor, factor: Tensor) -> Tensor:
    """tensor * factor, a number, in the tensor's dtype; by one thread where that can be, as in `joined`."""
    factor = factor.to(tensor.dtype)
    if not (_numpy_can(tensor) and _numpy_can(factor)) or factor.requires_grad:
        return tensor * factor
    return torch.from_numpy(tensor.numpy() * factor.numpy())


def _numpy_can(tensor: Tensor) -> bool:
    """Whether NumPy can calculate with it instead of torch."""
    plain = type(tensor) in (Tensor, nn.Parameter) and tensor.is_cpu and tensor.dtype in _NUMPY_FLOATS
    return plain and not _is_wrapped(tensor)


class _Join(torch.autograd.Function):
    """`torch.cat` along the first dimension."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> Tensor:
        ctx.lengths = [len(t) for t in tensors]
        return torch.from_numpy(np.concatenate([t.detach().numpy() for t in tensors]))

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, ...]:
        return outer[0].split(ctx.lengths)


def outside_graphs(forward: F) -> F:
    """A method that compiled models call as it is: the compiler cannot look into kernels.

    torch's own decorator for this imports the compiler, a second of work that nobody should wait for who compiles nothing. So it
    is used where the compiler is there already, and otherwise when a graph is being made.
    """
    if "torch._dynamo" in sys.modules:
        return torch.compiler.disable(forward)

    @wraps(forward)
    def call(*args: Any, **named: Any) -> Any:
        if torch.compiler.is_compiling():
            return torch.compiler.disable(forward)(*args, **named)
        return forward(*args, **named)

    return call  # type: ignore[return-value]
