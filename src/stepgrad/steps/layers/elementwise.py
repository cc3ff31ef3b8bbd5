"""Step functions of one number: stairs, thresholds, signs and quantisers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from stepgrad.errors import ConfigError
from stepgrad.steps.layers.base import ElementwiseLayer, FourTensors


class Staircase(ElementwiseLayer):
    """Any step function of one variable, applied to each number: levels[k] from locations[k - 1] up to locations[k].

    At a location the upper level holds.

    >>> stairs = Staircase(locations=[0.0, 1.0], levels=[-1.0, 0.0, 1.0])
    >>> x = torch.tensor([-2.0, 0.0, 0.25, 1.0], requires_grad=True)
    >>> y = stairs(x)
    >>> y.sum().backward()
    >>> y.tolist(), x.grad.tolist()
    ([-1.0, 0.0, 0.0, 1.0], [0.25, 1.0, 1.0, 0.0])
    """

    locations: Tensor
    levels: Tensor

    def __init__(
        self,
        locations: Sequence[float] | Tensor,
        levels: Sequence[float] | Tensor,
        estimator: str = "mee",
        radius: float = 1.0,
        min_step: float = 0.0,
    ) -> None:
        super().__init__(estimator, radius, min_step)
        at, level = (torch.as_tensor(a, dtype=torch.float64).reshape(-1) for a in (locations, levels))
        if len(level) != len(at) + 1 or not bool(at.isfinite().all() & level.isfinite().all()):
            raise ConfigError(
                f"Expected finite locations and one more level than locations but got {at.tolist()} and {level.tolist()}."
            )
        if bool((at.diff() <= 0).any()):
            raise ConfigError(f"Expected increasing locations but got {at.tolist()}.")
        real = level.diff() != 0  # between equal levels there is no step
        self.register_buffer("locations", at[real])
        self.register_buffer("levels", torch.cat([level[:1], level[1:][real]]))

    def _index(self, x: Tensor) -> Tensor:
        return torch.searchsorted(self.locations, x.contiguous(), right=True)

    def values(self, x: Tensor) -> Tensor:
        return self.levels.double()[self._index(x)]

    def steps(self, x: Tensor) -> FourTensors:
        k, last = self._index(x), len(self.levels) - 1
        end = self.locations.new_full((1,), torch.inf)
        walls = torch.cat([-end, self.locations, end]).double()  # walls[k] <= x < walls[k + 1]
        levels = self.levels.double()
        return walls[k + 1], levels[(k + 1).clamp(max=last)], walls[k], levels[(k - 1).clamp(min=0)]


class Threshold(Staircase):
    """1 where x reaches the threshold (x >= at), else 0.

    >>> x = torch.tensor([0.0, 0.75], requires_grad=True)
    >>> y = Threshold(at=0.5)(x)
    >>> y.sum().backward()
    >>> y.tolist(), x.grad.tolist()
    ([0.0, 1.0], [1.0, 2.0])
    """

    def __init__(self, at: float = 0.0, estimator: str = "mee", radius: float = 1.0, min_step: float = 0.0) -> None:
        super().__init__([at], [0.0, 1.0], estimator, radius, min_step)


class Sign(Staircase):
    """-1, 0 or 1. At zero, x is on the step itself: it has a step on either side at distance zero, which `min_step` makes longer.

    >>> x = torch.tensor([-0.5, 0.0, 4.0], requires_grad=True)
    >>> y = Sign(min_step=0.5)(x)
    >>> y.sum().backward()
    >>> y.tolist(), x.grad.tolist()
    ([-1.0, 0.0, 1.0], [2.0, 2.0, 0.25])
    """

    def __init__(self, estimator: str = "mee", radius: float = 1.0, min_step: float = 0.0) -> None:
        super().__init__([0.0], [-1.0, 1.0], estimator, radius, min_step)

    def values(self, x: Tensor) -> Tensor:
        return x.sign()

    def steps(self, x: Tensor) -> FourTensors:
        up_at, up_value, down_at, down_value = super().steps(x)
        return torch.where(x == 0, x, up_at), up_value, down_at, down_value


class UniformQuantizer(ElementwiseLayer):
    """The nearest multiple of `step` between `low` and `high`; halfway the even one, as torch.round does.

    Between steps on both sides MEE is exactly 1, the straight-through estimator; beyond the range it decays.

    >>> x = torch.tensor([0.3, 0.6, 3.0], requires_grad=True)
    >>> y = UniformQuantizer(step=0.5, low=0.0, high=1.0)(x)
    >>> y.sum().backward()
    >>> y.tolist(), x.grad.tolist()
    ([0.5, 0.5, 1.0], [1.0, 1.0, 0.1111111119389534])
    """

    def __init__(
        self,
        step: float,
        low: float = -math.inf,
        high: float = math.inf,
        estimator: str = "mee",
        radius: float = 1.0,
        min_step: float = 0.0,
    ) -> None:
        super().__init__(estimator, radius, min_step)
        if not (math.isfinite(step) and step > 0.0):
            raise ConfigError(f"Expected step to be a finite number > 0 but got {step!r}.")
        if not low <= high:
            raise ConfigError(f"Expected low <= high but got {low!r} and {high!r}.")
        self.step = float(step)
        self.least, self.most = (a if math.isinf(a) else float(round(a / step)) for a in (low, high))

    def _index(self, x: Tensor) -> Tensor:
        return (x / self.step).round().clamp(self.least, self.most)

    def values(self, x: Tensor) -> Tensor:
        return self._index(x) * self.step

    def steps(self, x: Tensor) -> FourTensors:
        k = self._index(x)
        up_at = torch.where(k < self.most, torch.maximum(x, (k + 0.5) * self.step), torch.inf)
        down_at = torch.where(k > self.least, torch.minimum(x, (k - 0.5) * self.step), -torch.inf)
        up, down = (k + 1).clamp(max=self.most), (k - 1).clamp(min=self.least)
        return up_at, up * self.step, down_at, down * self.step

    def extra_repr(self) -> str:
        return f"step={self.step:g}, {super().extra_repr()}"


class Round(UniformQuantizer):
    """The nearest integer, halfway the even one."""

    def __init__(self, estimator: str = "mee", radius: float = 1.0, min_step: float = 0.0) -> None:
        super().__init__(1.0, estimator=estimator, radius=radius, min_step=min_step)
