"""How a pseudogradient is taken, and the nearest steps it is taken from: the one record of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stepgrad.errors import one_of
from stepgrad.steps.estimators import check_min_step, check_radius, mee, sde

ESTIMATORS = ["mee", "sde", "radius"]


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
