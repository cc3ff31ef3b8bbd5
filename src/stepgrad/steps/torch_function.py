"""Step functions on autograd's tape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from stepgrad.errors import InputError, one_of
from stepgrad.steps.autograd import attach, once
from stepgrad.steps.estimators import ESTIMATORS
from stepgrad.steps.evaluate import Function
from stepgrad.steps.nearest import check_search_options, pseudogradient, warn_if_incomplete

_PLAIN_OPTIONS = ("radius", "min_step", "vectorized")


def step_function(f: Callable[..., Any], estimator: str = "mee", **options: Any) -> Callable[[Tensor], Tensor]:
    """f as a differentiable torch function: the value is f's own, the gradient its pseudogradient.

    The options are those of `pseudogradient` (radius, min_step, vectorized, candidates, budget, ...), except that here
    `candidates` may be a function of x. Steps are searched for in the forward pass, and only if x needs a gradient. A search
    that runs out of budget warns, and unknown steps contribute nothing. Gradients come from `backward` or
    `torch.autograd.grad`; `torch.func` and `vmap` do not work with it.

    >>> accuracy = step_function(lambda s: ((s > 0.5) == torch.tensor([True, False])).double().mean(), candidates=0.5)
    >>> scores = torch.tensor([0.25, 0.0], requires_grad=True)
    >>> value = accuracy(scores)
    >>> value.backward()
    >>> value.item(), scores.grad.tolist()
    (0.5, [1.0, -0.5])
    """
    one_of("estimator", estimator, ESTIMATORS)
    check_search_options({name: given for name, given in options.items() if name not in _PLAIN_OPTIONS})

    def differentiable(x: Tensor) -> Tensor:
        if not isinstance(x, Tensor) or not x.is_floating_point():
            raise InputError(f"Expected a floating-point tensor but got {getattr(x, 'dtype', type(x).__name__)}.")
        if not (torch.is_grad_enabled() and x.requires_grad):
            return _value(f, x, bool(options.get("vectorized", False)))
        here = dict(options)
        if callable(here.get("candidates")):
            here["candidates"] = here["candidates"](x.detach())
        result = pseudogradient(f, x, estimator, full=True, **here)
        warn_if_incomplete(result.steps)
        return attach(x, result.value.to(x.dtype), once(lambda outer: _contract(outer, result.gradient)))

    return differentiable


def _value(f: Callable[..., Any], x: Tensor, vectorized: bool) -> Tensor:
    function = Function(f, x, vectorized, None)
    value: Tensor = function.restore(function.value, value=True)
    return value.to(x.dtype)


def _contract(outer: Tensor, jacobian: Tensor) -> Tensor:
    """sum over outputs of outer * jacobian."""
    return torch.tensordot(outer.to(jacobian.dtype), jacobian, dims=outer.ndim)
