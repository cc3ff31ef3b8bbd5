"""Losses that need the max-oracle: direct loss minimisation (Song et al. 2016) and the AP hinge (Yue et al. 2007)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from experiments.baselines.base import ListLoss, RankingBaseline, check_positive
from experiments.baselines.max_oracle import Floats, best_ranking, ranking_loss, ranking_score, score_gradient
from stepgrad.errors import one_of

Sorted = tuple[float, Floats, Floats]  # value, and the gradient by positives and negatives in descending order


def song_ap(positives: Floats, negatives: Floats, eps: float, update: str) -> Sorted:
    """1 - AP of scores in descending order, and its direct loss gradient (Song et al. 2016).

    The gradient is +-(grad F(y_direct) - grad F(y_score)) / eps, where y_score ranks by score and y_direct maximises
    F +- eps * (1 - AP): the positive update pushes away from a worse ranking, the negative one towards a better. Where
    scores are equal, y_score is the mean of the two orders.
    """
    sign = 1.0 if update == "positive" else -1.0
    rising = negatives[::-1]
    at_least = len(negatives) - np.searchsorted(rising, positives, side="left")
    more = len(negatives) - np.searchsorted(rising, positives, side="right")
    direct = score_gradient(best_ranking(positives, negatives, sign * eps), len(negatives))
    by_score = [score_gradient(above, len(negatives)) for above in (at_least, more)]
    by_positive, by_negative = (sign / eps * (d - 0.5 * a - 0.5 * b) for d, a, b in zip(direct, *by_score, strict=True))
    return ranking_loss(at_least), by_positive, by_negative


def yue_ap(positives: Floats, negatives: Floats, margin: float) -> Sorted:
    """max_y [margin * (1 - AP(y)) + F(y)] - F(y*) of scores in descending order, and a subgradient (Yue et al. 2007)."""
    perfect = np.zeros(len(positives), dtype=np.int64)
    worst = best_ranking(positives, negatives, margin)
    value = margin * ranking_loss(worst) + ranking_score(positives, negatives, worst)
    by_worst, by_perfect = (score_gradient(above, len(negatives)) for above in (worst, perfect))
    return (
        value - ranking_score(positives, negatives, perfect),
        by_worst[0] - by_perfect[0],
        by_worst[1] - by_perfect[1],
    )


class SongAPLoss(RankingBaseline):
    """Direct loss minimisation for AP (Song, Schwing, Zemel & Urtasun 2016); its value is 1 - AP of the windows.

    Args:
        eps: how far the loss may pull the ranking away from the scores. A negative changes places with the highest positive
            if the gap of their scores is below about eps * negatives / 4, so eps must be tuned to the scores and to the
            length of the lists: too large, and y_direct is the worst (or best) ranking of all; too small, and there is
            hardly any gradient. The default reaches across about 2 units of score in 9,600 windows.
        update: "positive" pushes the scores away from a worse ranking, "negative" towards a better one.

    num_classes, match_threshold, grey_zone and absent_classes are those of `RankingBaseline`.

    >>> boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0], [1.0, 0.0, 11.0, 10.0], [20.0, 0.0, 30.0, 10.0]])
    >>> scores = torch.tensor([[0.9], [0.1], [0.2]], requires_grad=True)
    >>> loss = SongAPLoss(1, eps=8.0)([scores], [boxes], [{"boxes": boxes[:1], "labels": torch.tensor([0])}])
    >>> loss.backward()
    >>> round(loss.item(), 3), scores.grad.flatten().tolist()         # both windows of the object count, as there is no NMS
    (0.167, [-0.125, 0.0, 0.125])
    """

    def __init__(self, num_classes: int, eps: float = 0.001, update: str = "positive", **shared: Any) -> None:
        super().__init__(num_classes, **shared)
        check_positive(eps=eps)
        one_of("update", update, ["positive", "negative"])
        self.eps, self.update = eps, update

    def of_list(self, positives: Tensor, negatives: Tensor) -> ListLoss:
        return _by_sorted(lambda p, n: song_ap(p, n, self.eps, self.update), positives, negatives)

    def options(self) -> list[str]:
        return ["eps", "update"]


class YueAPLoss(RankingBaseline):
    """The hinge of SVM-map (Yue, Finley, Radlinski & Joachims 2007): an upper bound of 1 - AP of the windows.

    Args:
        margin: weight of 1 - AP relative to the scores; 1 as published.

    num_classes, match_threshold, grey_zone and absent_classes are those of `RankingBaseline`.

    >>> boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0], [20.0, 0.0, 30.0, 10.0]])
    >>> scores = torch.tensor([[0.2], [0.9]], requires_grad=True)
    >>> loss = YueAPLoss(1)([scores], [boxes], [{"boxes": boxes[:1], "labels": torch.tensor([0])}])
    >>> loss.backward()
    >>> round(loss.item(), 3), scores.grad.flatten().tolist()          # 1/2 lost, and 2 (0.9 - 0.2)
    (1.9, [-2.0, 2.0])
    """

    def __init__(self, num_classes: int, margin: float = 1.0, **shared: Any) -> None:
        super().__init__(num_classes, **shared)
        check_positive(margin=margin)
        self.margin = margin

    def of_list(self, positives: Tensor, negatives: Tensor) -> ListLoss:
        return _by_sorted(lambda p, n: yue_ap(p, n, self.margin), positives, negatives)

    def options(self) -> list[str]:
        return ["margin"]


def _by_sorted(loss: Callable[[Floats, Floats], Sorted], positives: Tensor, negatives: Tensor) -> ListLoss:
    """Sort on the CPU (among equals the earlier window goes first), and give every window its gradient back."""
    p, n = (s.cpu().double().numpy() for s in (positives, negatives))
    orders = [np.argsort(-s, kind="stable") for s in (p, n)]
    with np.errstate(over="ignore", invalid="ignore"):  # a value that is not finite is refused later
        value, *gradients = loss(p[orders[0]], n[orders[1]])
    by_window = [_put_back(g, order) for g, order in zip(gradients, orders, strict=True)]
    return ListLoss(positives.new_tensor(value), *(torch.from_numpy(g).to(positives) for g in by_window))


def _put_back(by_rank: Floats, order: NDArray[np.int64]) -> Floats:
    by_window = np.empty_like(by_rank)
    by_window[order] = by_rank
    return by_window
