"""A plugin, `pytest -p tests.other_orders`: linear layers and convolutions add up in an order that depends on the batch's shape.

Libraries for matrices choose their kernels, and with them the order of sums, by the shapes they are given: which shapes give the
same bits differs from machine to machine. Here any two batch sizes are added up differently, and the same batch size always
alike, so that whoever takes two ways of computing a number for the same bits is found out on any machine. Children of tests
are as they are.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

_linear: Any = functional.linear
_conv2d: Any = functional.conv2d


@cache
def _order(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """A permutation of so many, and its inverse."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return order, order.argsort()


@torch.compiler.disable
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if x.dim() < 2 or not x.numel():
        return _linear(x, weight, bias)
    flat = x.reshape(-1, x.shape[-1])
    rows, back = _order(len(flat), len(flat))  # the order in which the weights' gradient is added up
    columns, _ = _order(flat.shape[1], len(flat))
    return _linear(flat[rows][:, columns], weight[:, columns], bias)[back].reshape(*x.shape[:-1], len(weight))


@torch.compiler.disable
def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    how = (stride, padding, dilation, groups)
    if x.dim() != 4 or not x.numel() or groups != 1:
        return _conv2d(x, weight, bias, *how)
    images, back = _order(len(x), len(x))
    channels, _ = _order(x.shape[1], len(x))
    return _conv2d(x[images][:, channels], weight[:, channels], bias, *how)[back]


def pytest_configure(config: pytest.Config) -> None:
    holder: Any = functional
    holder.linear, holder.conv2d = linear, conv2d
    # what the compiler says of a model that it has to leave half-way, as it does here
    config.addinivalue_line("filterwarnings", "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
