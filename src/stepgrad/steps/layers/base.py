"""Base classes of piecewise-constant layers. A new layer gives its values and the places of its steps."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from stepgrad.errors import InputError, NonFiniteError
from stepgrad.plain_tensors import narrowed, refuse_unreadable
from stepgrad.steps.autograd import attach, once
from stepgrad.steps.estimators import Method, Steps
from stepgrad.steps.nearest import pseudogradient

FourTensors = tuple[Tensor, Tensor, Tensor, Tensor]


def check_numbers(x: Any, least_dimensions: int) -> None:
    """Raise unless x is a tensor of finite floating-point numbers."""
    refuse_unreadable(x)
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.ndim < least_dimensions:
        came = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        shape = "(..., n)" if least_dimensions else "any shape"
        raise InputError(f"Expected a floating-point tensor of {shape} but got {came}.")
    bad = (~x.detach().isfinite()).nonzero()
    if len(bad):
        index = tuple(bad[0].tolist())
        raise NonFiniteError(f"Expected finite numbers but got {x[index].item()} at index {index}.")


class StepLayer(nn.Module):
    """A layer that maps each row, the last dimension of x, by a piecewise-constant function.

    A subclass defines `values`, and in `candidates` the places where they can step. Without candidates the steps are searched
    for (see `find_steps` for what a search may miss), which evaluates each row many times, one row after the other. A
    subclass that has a faster way defines `pull_back`.

    Args:
        estimator: "mee", "sde" or "radius".
        radius: for the radius estimator, in units of x.
        min_step: lower bound on the distance to a step, as for `sde` and `mee`.

    >>> class Majority(StepLayer):                     # 1 if at least half of the row is above zero
    ...     def values(self, rows):
    ...         return (rows > 0).double().mean(dim=1, keepdim=True).ge(0.5).double()
    ...     def candidates(self, row):
    ...         return 0.0
    >>> x = torch.tensor([[-2.0, -1.0, 1.0, -4.0]], requires_grad=True)
    >>> Majority()(x).sum().backward()
    >>> x.grad.tolist()
    [[0.25, 0.5, 0.0, 0.125]]
    """

    least_dimensions = 1

    def __init__(self, estimator: str = "mee", radius: float = 1.0, min_step: float = 0.0) -> None:
        super().__init__()
        self.method = Method(estimator, radius, min_step)

    def values(self, rows: Tensor) -> Tensor:
        """(R, n) float64 -> (R, m)."""
        raise NotImplementedError(f"{type(self).__name__} needs a method values(rows).")

    def candidates(self, row: Tensor) -> Any:
        """Where the values of a row (n,) can step: numbers for all its coordinates or one array for each; None: unknown."""
        return None

    def pull_back(self, rows: Tensor, outer: Tensor) -> Tensor:
        """The vector-Jacobian product: d/drows (R, n) from d/dvalues (R, m), both float64."""
        gradient = torch.zeros_like(rows)
        for r, row in enumerate(rows):
            jacobian = pseudogradient(
                self.values, row, **asdict(self.method), vectorized=True, candidates=self.candidates(row)
            )
            gradient[r] = outer[r] @ jacobian
        return gradient

    def forward(self, x: Tensor) -> Tensor:
        """The values, in the dtype of x."""
        check_numbers(x, self.least_dimensions)
        lead, n = (x.shape[:-1], x.shape[-1]) if x.ndim else (x.shape, 1)
        rows = x.detach().double().reshape(math.prod(lead), n)
        out = self.values(rows)
        shape = (*lead, out.shape[-1]) if x.ndim else lead

        def pull_back(outer: Tensor) -> Tensor:
            return narrowed(self.pull_back(rows, outer.double().reshape(out.shape)), x.dtype).reshape(x.shape)

        return attach(x, out.to(x.dtype).reshape(shape), once(pull_back))

    def extra_repr(self) -> str:
        return str(self.method)


class ElementwiseLayer(StepLayer):
    """A layer that maps each number by a step function of one variable. A subclass defines `values` and `steps`.

    >>> class Floor(ElementwiseLayer):
    ...     def values(self, x):
    ...         return x.floor()
    ...     def steps(self, x):
    ...         k = x.floor()
    ...         return k + 1, k + 1, k, k - 1
    >>> x = torch.tensor([0.25, 7.5], requires_grad=True)
    >>> Floor(estimator="sde")(x).sum().backward()
    >>> x.grad.tolist()
    [2.6666667461395264, 2.0]
    """

    least_dimensions = 0

    def steps(self, x: Tensor) -> FourTensors:
        """up_at, up_value, down_at, down_value of each number; up_at = +inf and down_at = -inf where there is no step."""
        raise NotImplementedError(f"{type(self).__name__} needs a method steps(x).")

    def slope(self, x: Tensor) -> Tensor:
        """The pseudo derivative of each number."""
        if self.method.estimator == "radius":
            radius = self.method.radius
            return (self.values(x + radius) - self.values(x - radius)) / (2.0 * radius)
        return self.method.slope(x, Steps(self.values(x), *self.steps(x)))

    def pull_back(self, rows: Tensor, outer: Tensor) -> Tensor:
        """The Jacobian is diagonal."""
        return self.slope(rows) * outer
