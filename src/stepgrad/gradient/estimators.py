"""Pseudo partial derivatives of a piecewise-constant function from its nearest steps (Henderson & Ferrari 2016, Sec. 4.3).

At x the function has the value f. Its nearest step above is at x+ >= x, with the value f+ just beyond it; its nearest step
below is at x- <= x, with f- just beyond. A missing step is at +-inf. Nothing here knows what the function is.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from stepgrad.errors import ConfigError

Array = TypeVar("Array", NDArray[np.float64], torch.Tensor)
_TINY = float(np.finfo(np.float64).tiny)
_HUGE = float(np.finfo(np.float64).max)


def _slope(rise: NDArray[np.float64], run: NDArray[np.float64], min_step: float) -> NDArray[np.float64]:
    """rise / max(run, min_step); 0 where the run is infinite or, with no bound, zero. Never inf or nan."""
    run = np.maximum(run, min_step)
    usable = np.isfinite(run) & (run > 0.0)
    with np.errstate(over="ignore"):
        slope = np.where(usable, rise, 0.0) / np.where(usable, np.maximum(run, _TINY), 1.0)
    return np.clip(slope, -_HUGE, _HUGE)


def _sde(
    x: NDArray[np.float64],
    value: NDArray[np.float64],
    up_at: NDArray[np.float64],
    up_value: NDArray[np.float64],
    down_at: NDArray[np.float64],
    down_value: NDArray[np.float64],
    min_step: float,
) -> NDArray[np.float64]:
    return 0.5 * _slope(up_value - value, up_at - x, min_step) + 0.5 * _slope(value - down_value, x - down_at, min_step)


def _mee(
    x: NDArray[np.float64],
    value: NDArray[np.float64],
    up_at: NDArray[np.float64],
    up_value: NDArray[np.float64],
    down_at: NDArray[np.float64],
    down_value: NDArray[np.float64],
    min_step: float,
) -> NDArray[np.float64]:
    between = np.isfinite(up_at) & np.isfinite(down_at)
    width = np.where(between, up_at, 0.0) - np.where(between, down_at, 0.0)
    # tied on both sides: the width is zero and only the bound can give it a length
    inside = 0.5 * _slope(up_value - down_value, np.where(width > 0.0, width, min_step), 0.0)
    outside = _sde(x, value, up_at, up_value, down_at, down_value, min_step)
    return np.where(between, inside, outside)


def sde(
    x: Array, value: Array, up_at: Array, up_value: Array, down_at: Array, down_value: Array, min_step: float = 0.0
) -> Array:
    """Symmetric difference estimator: 1/2 [(f+ - f)/(x+ - x) + (f - f-)/(x - x-)], a missing side adding 0.

    Distances are bounded below by `min_step`; a zero distance without a bound adds 0. All arguments broadcast.

    >>> float(sde(torch.tensor(0.0), torch.tensor(0.5), torch.tensor(2.0), torch.tensor(1.0),
    ...           torch.tensor(-float("inf")), torch.tensor(0.5)))
    0.125
    """
    return _apply(_sde, (x, value, up_at, up_value, down_at, down_value), min_step)


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
    return _apply(_mee, (x, value, up_at, up_value, down_at, down_value), min_step)


def radius_difference(raised: Array, lowered: Array, radius: float) -> Array:
    """Radius estimator: (f(x + radius) - f(x - radius)) / (2 radius). It sees every step within the radius.

    >>> float(radius_difference(torch.tensor(0.75), torch.tensor(0.25), radius=2.0))
    0.125
    """
    if not (np.isfinite(radius) and radius > 0.0):
        raise ConfigError(f"Expected radius to be a finite number > 0 but got {radius!r}.")
    return (raised - lowered) / (2.0 * radius)


def check_min_step(min_step: float) -> None:
    """Raise ConfigError unless min_step is a finite number >= 0."""
    if not (np.isfinite(min_step) and min_step >= 0.0):
        raise ConfigError(f"Expected min_step to be a finite number >= 0 but got {min_step!r}.")


def _apply(formula, arguments, min_step: float):  # type: ignore[no-untyped-def]  # tensors in, tensor out; else arrays
    """Run a NumPy formula in float64 on tensors or arrays; the result has the type, dtype and device of the first."""
    check_min_step(min_step)
    first = arguments[0]
    if not isinstance(first, torch.Tensor):
        return formula(*(np.asarray(a, dtype=np.float64) for a in arguments), min_step)
    plain = [torch.as_tensor(a).detach().to("cpu", torch.float64).numpy() for a in arguments]
    return torch.as_tensor(formula(*plain, min_step), device=first.device).to(first.dtype)
