"""From the steps of ranked lists to pseudogradients in the documents' scores."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stepgrad.losses.ranking.linear import Moves
from stepgrad.losses.ranking.lists import NONE, Floats, Ints, Lists, target_positions
from stepgrad.steps.estimators import Method, Steps, radius_difference

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


def step_columns(metric: RankingMetric, lists: Lists) -> Steps:
    """Nearest steps and the values just beyond them, by position; the value is that of the document's own query."""
    moves = metric.nearest()
    value = np.where(metric.defined, metric.value, 0.0)[lists.query]
    up_at = np.where(moves.up == NONE, np.inf, lists.score[moves.up])
    down_at = np.where(moves.down == NONE, -np.inf, lists.score[moves.down])
    return Steps(value, up_at, value + moves.up_change, down_at, value + moves.down_change)


def pseudogradient_by_position(metric: RankingMetric, lists: Lists, method: Method, balance: str) -> Floats:
    """d metric of the document's own query / d score, by position; 0 for queries without a meaning."""
    if method.estimator == "radius":
        raised, lowered = (
            metric.moved(target_positions(lists, lists.score + shift)) for shift in (method.radius, -method.radius)
        )
        slopes = radius_difference(raised, lowered, method.radius)
    else:
        slopes = method.slope(lists.score, step_columns(metric, lists))
    slopes = np.where(metric.defined[lists.query], slopes, 0.0)
    return balanced(slopes, lists) if balance == "query" else slopes


def balanced(gradient: Floats, lists: Lists) -> Floats:
    """Scale each query's pushes up and down to the smaller of their totals: shifting all its scores changes nothing."""
    up, down = np.maximum(gradient, 0.0), np.maximum(-gradient, 0.0)
    rises, falls = lists.sums(up), lists.sums(down)
    smaller = np.minimum(rises, falls)
    grow = smaller / np.where(rises > 0.0, rises, 1.0)
    shrink = smaller / np.where(falls > 0.0, falls, 1.0)
    return up * grow[lists.query] - down * shrink[lists.query]
