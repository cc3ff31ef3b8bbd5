"""From the steps of ranked lists to pseudogradients in the documents' scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from stepgrad.errors import one_of
from stepgrad.losses.ranking.linear import Moves
from stepgrad.losses.ranking.lists import NONE, Floats, Ints, Lists, target_positions
from stepgrad.steps.estimators import check_min_step, check_radius, mee, radius_difference, sde

ESTIMATORS = ["mee", "sde", "radius"]
BALANCES = ["none", "query"]


class RankingMetric(Protocol):
    """A metric of ranked lists that knows what one moving document changes."""

    @property
    def value(self) -> Floats:
        """(Q,) by query."""

    @property
    def defined(self) -> NDArray[np.bool_]:
        """(Q,) whether the metric has a meaning for the query."""

    def nearest(self) -> Moves:
        """The nearest steps by position."""

    def moved(self, target: Ints) -> Floats:
        """By position, the change of the metric if that document alone moves to the target position."""


@dataclass(frozen=True)
class RankingSteps:
    """The metric by query and, per score, its nearest steps, in the shape of the scores.

    up_at = +inf and down_at = -inf where there is no step; the value beyond is then the present one.
    """

    value: Tensor  # (Q,)
    up_at: Tensor
    up_value: Tensor
    down_at: Tensor
    down_value: Tensor


class Columns(NamedTuple):
    """What an estimator needs, by position."""

    score: Floats
    value: Floats
    up_at: Floats
    up_value: Floats
    down_at: Floats
    down_value: Floats


@dataclass(frozen=True)
class RankingMethod:
    """How a pseudogradient is taken."""

    estimator: str = "mee"
    radius: float = 1.0
    min_step: float = 0.1
    balance: str = "none"

    def __post_init__(self) -> None:
        one_of("estimator", self.estimator, ESTIMATORS)
        one_of("balance", self.balance, BALANCES)
        object.__setattr__(self, "min_step", check_min_step(self.min_step))
        object.__setattr__(self, "radius", check_radius(self.radius))


def step_columns(metric: RankingMetric, lists: Lists) -> Columns:
    """Nearest steps and the values just beyond them."""
    moves = metric.nearest()
    value = np.where(metric.defined, metric.value, 0.0)[lists.query]
    up_at = np.where(moves.up == NONE, np.inf, lists.score[moves.up])
    down_at = np.where(moves.down == NONE, -np.inf, lists.score[moves.down])
    return Columns(lists.score, value, up_at, value + moves.up_change, down_at, value + moves.down_change)


def pseudogradient_by_position(metric: RankingMetric, lists: Lists, method: RankingMethod) -> Floats:
    """d metric of the document's own query / d score, by position; 0 for queries without a meaning."""
    if method.estimator == "radius":
        raised, lowered = (
            metric.moved(target_positions(lists, lists.score + shift)) for shift in (method.radius, -method.radius)
        )
        found = radius_difference(raised, lowered, method.radius)
    else:
        estimate = mee if method.estimator == "mee" else sde
        found = estimate(*step_columns(metric, lists), min_step=method.min_step)
    found = np.where(metric.defined[lists.query], found, 0.0)
    return balanced(found, lists) if method.balance == "query" else found


def balanced(gradient: Floats, lists: Lists) -> Floats:
    """Scale each query's pushes up and down to the smaller of their totals: shifting all its scores changes nothing."""
    up, down = np.maximum(gradient, 0.0), np.maximum(-gradient, 0.0)
    rises, falls = lists.sums(up), lists.sums(down)
    smaller = np.minimum(rises, falls)
    grow = smaller / np.where(rises > 0.0, rises, 1.0)
    shrink = smaller / np.where(falls > 0.0, falls, 1.0)
    return up * grow[lists.query] - down * shrink[lists.query]
