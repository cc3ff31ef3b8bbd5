"""AP-Loss with error-driven update (Chen et al. 2019): the errors of pairs, not derivatives, move the scores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from experiments.baselines.base import ListLoss, Places, RankingBaseline, check_positive, row_chunks
from experiments.baselines.windows import NEGATIVE, POSITIVE
from stepgrad.errors import one_of


def error_driven_ap(positives: Tensor, negatives: Tensor, delta: float, interpolated: bool) -> ListLoss:
    """1 - AP with a step of finite width, and the published update instead of its gradient.

    With f(x) = clip(x / (2 delta) + 1/2, 0, 1), a positive i has rank_i = 1 + sum over other positives f(s_p - s_i),
    total_i = rank_i + sum over negatives f(s_n - s_i) and precision rank_i / total_i. The error of a pair is
    L_in = f(s_n - s_i) / total_i; the update is -sum_n L_in for positive i and +sum_i L_in for negative n, over the number
    of positives. Interpolated, a precision counts as the largest at or below its score, and its errors shrink with it.
    """
    near = negatives > positives.min() - delta  # f is 0 for the rest
    reachable = negatives[near]
    rank, total = _ranks(positives, reachable, delta)
    precision = rank / total
    counted = _largest_at_or_below(precision, positives) if interpolated else precision
    error = 1.0 - counted
    share = torch.where(precision < 1.0, error / (1.0 - precision), 0.0) / total
    by_negative = torch.zeros_like(negatives)
    by_negative[near] = _weighted_errors(positives, reachable, delta, share)
    return ListLoss(error.mean(), -error / len(positives), by_negative / len(positives))


def _step(own: Tensor, others: Tensor, delta: float) -> Tensor:
    """(own, others): f of how far each of the others is above."""
    return ((others[None, :] - own[:, None]) / (2.0 * delta) + 0.5).clamp_(0.0, 1.0)


def _ranks(positives: Tensor, negatives: Tensor, delta: float) -> tuple[Tensor, Tensor]:
    """rank and total of every positive."""
    rank, total = torch.empty_like(positives), torch.empty_like(positives)
    for rows in row_chunks(len(positives), len(positives) + len(negatives)):
        own = positives[rows]
        among = _step(own, positives, delta)
        among[torch.arange(len(own)), torch.arange(rows.start, rows.start + len(own))] = 0.0
        rank[rows] = 1.0 + among.sum(1)
        total[rows] = rank[rows] + _step(own, negatives, delta).sum(1)
    return rank, total


def _weighted_errors(positives: Tensor, negatives: Tensor, delta: float, share: Tensor) -> Tensor:
    """For every negative n, sum_i share_i f(s_n - s_i)."""
    found = torch.zeros_like(negatives)
    for rows in row_chunks(len(positives), len(negatives)):
        found += share[rows] @ _step(positives[rows], negatives, delta)
    return found


def _largest_at_or_below(precision: Tensor, scores: Tensor) -> Tensor:
    """For each positive, the largest precision among those whose score is no higher."""
    order = scores.argsort(stable=True)
    found = torch.empty_like(precision)
    found[order] = precision[order].cummax(0).values
    return found


class APLossErrorDriven(RankingBaseline):
    """AP-Loss of one-stage detectors (Chen et al. 2019), with its error-driven update.

    Args:
        delta: half the width of the step, in units of score; 1 as published, for logits.
        interpolated: precision is the largest at the same or a higher recall, as published.
        lists: "class" ranks every class separately; "all" ranks all windows of all classes in one list, as published.

    num_classes, match_threshold, grey_zone and absent_classes are those of `RankingBaseline`.

    >>> boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0], [20.0, 0.0, 30.0, 10.0]])
    >>> scores = torch.tensor([[0.0], [3.0]], requires_grad=True)
    >>> loss = APLossErrorDriven(1)([scores], [boxes], [{"boxes": boxes[:1], "labels": torch.tensor([0])}])
    >>> loss.backward()
    >>> loss.item(), scores.grad.flatten().tolist()      # no slope here; the error itself is the push
    (0.5, [-0.5, 0.5])
    """

    def __init__(
        self, num_classes: int, delta: float = 1.0, interpolated: bool = True, lists: str = "class", **shared: Any
    ) -> None:
        super().__init__(num_classes, **shared)
        check_positive(delta=delta)
        one_of("lists", lists, ["class", "all"])
        self.delta = delta
        self.interpolated = interpolated
        self.lists = lists

    def of_list(self, positives: Tensor, negatives: Tensor) -> ListLoss:
        return error_driven_ap(positives, negatives, self.delta, self.interpolated)

    def _lists(self, labels: NDArray[np.int8]) -> Iterator[Places]:
        if self.lists == "all":
            return iter([(np.flatnonzero(labels == POSITIVE), np.flatnonzero(labels == NEGATIVE))])
        return super()._lists(labels)

    def options(self) -> list[str]:
        return ["delta", "interpolated", "lists"]
