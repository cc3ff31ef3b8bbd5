"""Tensors whose numbers can be read: what every loss, layer and metric needs, since kernels outside of torch look at them."""

from __future__ import annotations

import torch
from torch import Tensor

from stepgrad.errors import InputError


def refuse_unreadable(*given: object) -> None:
    """Raise unless every tensor among the arguments is dense, somewhere, and of a type that torch calculates with.

    >>> refuse_unreadable(torch.zeros(2), None)
    >>> refuse_unreadable(torch.zeros(2, device="meta"))
    Traceback (most recent call last):
    stepgrad.errors.InputError: Expected a tensor with numbers but got one on the meta device, which has none.
    """
    for tensor in given:
        if not isinstance(tensor, Tensor):
            continue
        if tensor.is_meta:
            raise InputError("Expected a tensor with numbers but got one on the meta device, which has none.")
        if tensor.layout != torch.strided:
            raise InputError(f"Expected a dense tensor but got one of {tensor.layout}; call to_dense() first.")
        if tensor.is_floating_point() and tensor.element_size() == 1:
            raise InputError(
                f"Expected a tensor of at least 16 bits a number but got {tensor.dtype}; call float() first."
            )
