"""Smooth-AP (Brown et al. 2020): ranks by sigmoids instead of steps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from experiments.baselines.base import ListLoss, RankingBaseline, check_positive, row_chunks


def smooth_ap(positives: Tensor, negatives: Tensor, tau: float) -> ListLoss:
    """1 - mean over positives i of (1 + sum_p S_ip) / (1 + sum_p S_ip + sum_n S_in), S_ij = sigmoid((s_j - s_i) / tau).

    p runs over the other positives, n over the negatives. The gradient is worked out a few positives at a time, so that
    the matrix of all pairs never stands in memory.
    """
    value = positives.new_zeros(())
    by_positive, by_negative = torch.zeros_like(positives), torch.zeros_like(negatives)
    for rows in row_chunks(len(positives), len(positives) + len(negatives)):
        own = positives[rows]
        among, against = _above(own, positives, tau), _above(own, negatives, tau)
        among[torch.arange(len(own)), torch.arange(rows.start, rows.start + len(own))] = 0.0  # nothing is above itself
        rank = 1.0 + among.sum(1)
        total = rank + against.sum(1)
        value = value + (1.0 - rank / total).sum()
        rise = _slope(among, tau) * ((rank - total) / total**2)[:, None]  # of the loss, if another positive rises
        harm = _slope(against, tau) * (rank / total**2)[:, None]
        by_positive += rise.sum(0)
        by_positive[rows] -= rise.sum(1) + harm.sum(1)
        by_negative += harm.sum(0)
    return ListLoss(value / len(positives), by_positive / len(positives), by_negative / len(positives))


def _above(own: Tensor, others: Tensor, tau: float) -> Tensor:
    """(own, others): how far each of the others is above."""
    return torch.sigmoid((others[None, :] - own[:, None]) / tau)


def _slope(sigmoids: Tensor, tau: float) -> Tensor:
    return sigmoids * (1.0 - sigmoids) / tau


class SmoothAPLoss(RankingBaseline):
    """Smooth-AP (Brown, Xie, Kalogeiton & Zisserman 2020), published for retrieval; here a class is a query.

    Args:
        tau: temperature of the sigmoids, in units of score. 0.01 was published for similarities in [-1, 1].

    num_classes, match_threshold, grey_zone and absent_classes are those of `RankingBaseline`.

    >>> boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0], [20.0, 0.0, 30.0, 10.0]])
    >>> scores = torch.tensor([[0.5], [0.5]], requires_grad=True)
    >>> loss = SmoothAPLoss(1, tau=0.1)([scores], [boxes], [{"boxes": boxes[:1], "labels": torch.tensor([0])}])
    >>> loss.backward()
    >>> round(loss.item(), 4), scores.grad.flatten().sign().tolist()   # a tie: half a rank lost
    (0.3333, [-1.0, 1.0])
    """

    def __init__(self, num_classes: int, tau: float = 0.01, **shared: Any) -> None:
        super().__init__(num_classes, **shared)
        check_positive(tau=tau)
        self.tau = tau

    def of_list(self, positives: Tensor, negatives: Tensor) -> ListLoss:
        return smooth_ap(positives, negatives, self.tau)

    def options(self) -> list[str]:
        return ["tau"]
