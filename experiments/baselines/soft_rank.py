"""Smoothed AP in the manner of SoftRank (Taylor et al. 2008): scores are Gaussian, and AP is replaced by its expectation.

SoftRank was published for NDCG. Its idea carries over: window j is above window i with probability
pi_ij = Phi((s_j - s_i) / (sqrt(2) sigma)), and comparisons with one window i are taken as independent (SoftRank's own
approximation), so that the number of windows above i follows a recursion over the others. AP needs two numbers: the positives
above, a, and the negatives above, b. With their distributions A_i and B_i,

    SoftAP = mean over positives i of sum_(a, b) A_i(a) B_i(b) (a + 1) / (a + b + 1).

The recursion takes (windows)^2 steps for each positive: cubic in all, measured in benchmarks/results/soft_rank.md.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from experiments.baselines.base import ListLoss, RankingBaseline, check_positive, row_chunks
from stepgrad.errors import ConfigError

_MOST_ENTRIES = 20_000_000  # that the recursion keeps for its gradient at a time, about 150 MB


def soft_precision(positives: Tensor, negatives: Tensor, sigma: float, rows: slice = slice(None)) -> Tensor:
    """The expected precision at the positives in `rows`; differentiable.

    >>> soft_precision(torch.tensor([0.0]), torch.tensor([0.0]), sigma=1.0)    # 1 or 1/2, equally likely
    tensor([0.7500])
    """
    own = positives[rows]
    itself = torch.eye(len(positives), dtype=own.dtype, device=own.device)[rows]
    A = count_distribution(_above(own, positives, sigma) * (1.0 - itself))  # (rows, positives + 1)
    B = count_distribution(_above(own, negatives, sigma))  # (rows, negatives + 1)
    a = torch.arange(A.shape[1], dtype=own.dtype, device=own.device)[:, None]
    b = torch.arange(B.shape[1], dtype=own.dtype, device=own.device)
    return ((A @ ((a + 1.0) / (a + b + 1.0))) * B).sum(1)


def count_distribution(probability: Tensor) -> Tensor:
    """(rows, n + 1) distribution of how many of n independent events happen, event by event; probability (rows, n).

    >>> count_distribution(torch.tensor([[0.5, 0.5]]))
    tensor([[0.2500, 0.5000, 0.2500]])
    """
    counts = probability.new_ones(len(probability), 1)
    for event in probability.unbind(1):
        happens = counts * event[:, None]
        counts = torch.nn.functional.pad(counts - happens, (0, 1)) + torch.nn.functional.pad(happens, (1, 0))
    return counts


def _above(own: Tensor, others: Tensor, sigma: float) -> Tensor:
    """(own, others): the probability that each of the others is above."""
    return torch.special.ndtr((others[None, :] - own[:, None]) / (math.sqrt(2.0) * sigma))


def hardest(negatives: Tensor, count: int) -> Tensor:
    """Where the `count` highest negatives are; among equals the earlier ones."""
    return negatives.argsort(descending=True, stable=True)[:count]


class TaylorSoftAPLoss(RankingBaseline):
    """1 - SoftAP, the AP of the windows smoothed as SoftRank (Taylor, Guiver, Robertson & Minka 2008) smooths NDCG.

    Args:
        sigma: standard deviation of each score, in units of score.
        max_windows: because of the cubic cost, a class keeps its positives and of the negatives only the highest-scored:
            `max_windows` windows in all, but never fewer than max_windows / 2 negatives; the others get no gradient.
            None: every window stays.

    num_classes, match_threshold, grey_zone and absent_classes are those of `RankingBaseline`.

    >>> boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0], [20.0, 0.0, 30.0, 10.0]])
    >>> scores = torch.tensor([[0.5], [0.5]], requires_grad=True)
    >>> loss = TaylorSoftAPLoss(1)([scores], [boxes], [{"boxes": boxes[:1], "labels": torch.tensor([0])}])
    >>> loss.backward()
    >>> loss.item(), scores.grad.flatten().sign().tolist()             # 0 or 1/2, equally likely
    (0.25, [-1.0, 1.0])
    """

    def __init__(self, num_classes: int, sigma: float = 1.0, max_windows: int | None = 200, **shared: Any) -> None:
        super().__init__(num_classes, **shared)
        check_positive(sigma=sigma)
        if max_windows is not None and max_windows < 2:
            raise ConfigError(f"Expected max_windows to be None or at least 2 but got {max_windows!r}.")
        self.sigma, self.max_windows = sigma, max_windows

    def of_list(self, positives: Tensor, negatives: Tensor) -> ListLoss:
        kept = hardest(negatives, self._negatives_to_keep(len(positives), len(negatives)))
        own, others = positives.detach().requires_grad_(), negatives[kept].detach().requires_grad_()
        value, gradients = positives.new_zeros(()), [torch.zeros_like(own), torch.zeros_like(others)]
        for rows in row_chunks(len(positives), len(positives) ** 2 + len(kept) ** 2, _MOST_ENTRIES):
            with torch.enable_grad():
                part = (1.0 - soft_precision(own, others, self.sigma, rows)).sum() / len(positives)
            value = value + part.detach()
            gradients = [g + d for g, d in zip(gradients, torch.autograd.grad(part, (own, others)), strict=True)]
        by_negative = torch.zeros_like(negatives)
        by_negative[kept] = gradients[1]
        return ListLoss(value, gradients[0], by_negative)

    def _negatives_to_keep(self, positives: int, negatives: int) -> int:
        if self.max_windows is None:
            return negatives
        return max(self.max_windows - positives, self.max_windows // 2)

    def options(self) -> list[str]:
        return ["sigma", "max_windows"]
