"""Pseudo partial derivatives of a piecewise-constant function from its nearest steps (Henderson & Ferrari 2016, Sec. 4.3).

At x the function has the value f. Its nearest step above is at x+ >= x, with the value f+ just beyond it; its nearest step
below is at x- <= x, with f- just beyond. A missing step is at +-inf. Nothing here knows what the function is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from stepgrad.engine.slopes import each_slope
from stepgrad.errors import ConfigError, one_of, positive_number, real_number

ESTIMATORS = ["mee", "sde", "radius"]
Array = TypeVar("Array", NDArray[np.float64], torch.Tensor)


@dataclass(frozen=True)
class Steps:
    """The value of a piecewise-constant function and, per coordinate, its nearest steps.

    Arrays, tensors, or lists with one per image. up_at = +inf and down_at = -inf where there is no step; the value beyond
    is then the present one.
    """

    value: Any
    up_at: Any
    up_value: Any
    down_at: Any
    down_value: Any


def sde(
    x: Array, value: Array, up_at: Array, up_value: Array, down_at: Array, down_value: Array, min_step: float = 0.0
) -> Array:
    """Symmetric difference estimator: 1/2 [(f+ - f)/(x+ - x) + (f - f-)/(x - x-)], a missing side adding 0.

    Distances are bounded below by `min_step`; a zero distance without a bound adds 0. All arguments broadcast.

    >>> float(sde(torch.tensor(0.0), torch.tensor(0.5), torch.tensor(2.0), torch.tensor(1.0),
    ...           torch.tensor(-float("inf")), torch.tensor(0.5)))
    0.125
    """
    return _apply(True, (x, value, up_at, up_value, down_at, down_value), min_step)


def mee(
    x: Array, value: Array, up_at: Array, up_value: Array, down_at: Array, down_value: Array, min_step: float = 0.0
) -> Array:
    """Mean envelope estimator: the mean slope of the upper and the lower linear envelope of the steps.

    Between two steps that is (f+ - f-) / (2 (x+ - x-)), wherever x lies. With a step on one side only it is the SDE with
    distances bounded below by `min_step`; without any step it is 0.

    >>> float(mee(torch.tensor(0.0), torch.tensor(0.5), torch.tensor(1.0), torch.tensor(0.75),
    ...           torch.tensor(-3.0), torch.tensor(0.25)))
    0.0625
    """
    return _apply(False, (x, value, up_at, up_value, down_at, down_value), min_step)


def radius_difference(raised: Array, lowered: Array, radius: float) -> Array:
    """Radius estimator: (f(x + radius) - f(x - radius)) / (2 radius). It sees every step within the radius.

    >>> float(radius_difference(torch.tensor(0.75), torch.tensor(0.25), radius=2.0))
    0.125
    """
    return (raised - lowered) / (2.0 * check_radius(radius))


def check_min_step(min_step: float) -> float:
    """min_step as a plain float, which kernels take; raises ConfigError unless it is a finite number >= 0."""
    number = real_number("min_step", min_step)
    if not 0.0 <= number < np.inf:
        raise ConfigError(f"Expected min_step to be a finite number >= 0 but got {min_step!r}.")
    return number


def check_radius(radius: float) -> float:
    """radius as a plain float, which kernels take; raises ConfigError unless it is a finite number > 0."""
    return positive_number("radius", radius)


def _apply(symmetric: bool, arguments: tuple[Any, ...], min_step: float) -> Any:
    """SDE, if `symmetric`, or MEE in float64 of tensors or arrays; the result has the type, dtype and device of the first."""
    min_step = check_min_step(min_step)
    first = arguments[0]
    if not isinstance(first, torch.Tensor):
        columns = np.stack(np.broadcast_arrays(*(np.asarray(a, dtype=np.float64) for a in arguments)))
        return each_slope(columns.reshape(6, -1), min_step, symmetric).reshape(columns.shape[1:])
    plain = [torch.as_tensor(a).detach().to("cpu", torch.float64).numpy() for a in arguments]
    return torch.as_tensor(_apply(symmetric, tuple(plain), min_step), device=first.device).to(first.dtype)


@dataclass(frozen=True)
class Method:
    """How a pseudogradient is taken: the estimator and its one number, a radius or the least distance to a step."""

    estimator: str = "mee"
    radius: float = 1.0
    min_step: float = 0.0

    def __post_init__(self) -> None:
        one_of("estimator", self.estimator, ESTIMATORS)
        object.__setattr__(self, "radius", check_radius(self.radius))
        object.__setattr__(self, "min_step", check_min_step(self.min_step))

    def slope(self, x: Any, steps: Steps) -> Any:
        """The pseudo derivative at x, by MEE or SDE (the radius estimator needs the function itself)."""
        form = mee if self.estimator == "mee" else sde
        return form(
            x, steps.value, steps.up_at, steps.up_value, steps.down_at, steps.down_value, min_step=self.min_step
        )

    def __str__(self) -> str:
        how = f"radius={self.radius:g}" if self.estimator == "radius" else f"min_step={self.min_step:g}"
        return f"estimator={self.estimator!r}, {how}"
