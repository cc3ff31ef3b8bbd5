"""The one place where a gradient worked out elsewhere meets autograd's tape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from stepgrad.errors import InputError
from stepgrad.plain_tensors import refuse_unreadable

PullBack = Callable[..., Tensor]


class _WithPullBack(torch.autograd.Function):
    """A value whose gradient is worked out elsewhere: pull_back maps d/dvalue, and what was saved, to d/dx."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, value: Tensor, pull_back: PullBack, *saved: Tensor) -> Tensor:
        ctx.pull_back = pull_back
        ctx.save_for_backward(*saved)  # torch frees them after the backward pass
        return value

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Any, ...]:
        saved = ctx.saved_tensors
        return ctx.pull_back(outer[0], *saved), None, None, *(None for _ in saved)


class _Once(torch.autograd.Function):
    """A gradient that says why it cannot be differentiated again."""

    @staticmethod
    def forward(ctx: Any, outer: Tensor, pull_back: PullBack) -> Tensor:
        return pull_back(outer)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Any:
        raise InputError(
            "Expected one backward pass, but a pseudogradient was differentiated again: as a function of x it is "
            "itself piecewise constant or worse. Leave create_graph=True out, or detach this part of the loss."
        )


def attach(x: Tensor, value: Tensor, pull_back: PullBack, *saved: Tensor) -> Tensor:
    """`value` as a differentiable function of x; pull_back(outer, *saved) is called by backward, if at all.

    >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> attach(x, torch.tensor(7.0), torch.mul, torch.tensor([0.5, -0.5])).backward()
    >>> x.grad.tolist()
    [0.5, -0.5]
    """
    refuse_unreadable(x, value)
    if not (torch.is_grad_enabled() and x.requires_grad):
        return value
    return _WithPullBack.apply(x, value, pull_back, *saved)


def once(pull_back: Callable[[Tensor], Tensor]) -> PullBack:
    """`pull_back`, of which torch cannot see the inside, refusing a second derivative."""
    return lambda outer: _Once.apply(outer, pull_back)


def scale_gradient(value: Tensor, factor: float) -> Tensor:
    """The same number with a gradient `factor` times as large.

    >>> x = torch.tensor(2.0, requires_grad=True)
    >>> scale_gradient(x, 3.0).backward()
    >>> x.grad.item()
    3.0
    """
    return attach(value, value.detach(), lambda outer: outer * factor)
