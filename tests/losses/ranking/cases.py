"""Every ranking loss with the plain metric it stands for, and small lists with and without ties."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

import stepgrad as sg
from stepgrad.losses.ranking import metrics
from stepgrad.losses.ranking.losses import RankingLoss

Plain = Callable[..., Any]  # (scores, relevance, k) -> metric


class Case(NamedTuple):
    """How to make the loss for a k, and the metric."""

    make: Callable[..., RankingLoss]  # (k, **options)
    plain: Plain

    def of(self, relevance: np.ndarray, k: int) -> Callable[[np.ndarray], Any]:
        return lambda scores: self.plain(scores, relevance, k)


PLAIN = {"estimator": "mee", "balance": "none"}  # what the other losses have unless told otherwise
LOSSES: dict[str, Case] = {
    "ap": Case(lambda k, **o: sg.APLoss(**o), lambda s, r, k: metrics.average_precision(s, r)),
    "ndcg": Case(lambda k, **o: sg.NDCGLoss(k, **PLAIN | o), metrics.ndcg),
    "linear ndcg": Case(
        lambda k, **o: sg.NDCGLoss(k, "linear", **PLAIN | o), lambda s, r, k: metrics.ndcg(s, r, k, "linear")
    ),
    "whole ndcg": Case(lambda k, **o: sg.NDCGLoss(**PLAIN | o), lambda s, r, k: metrics.ndcg(s, r)),
    "mrr": Case(lambda k, **o: sg.ranking.MRRLoss(**o), lambda s, r, k: metrics.reciprocal_rank(s, r)),
    "precision": Case(lambda k, **o: sg.ranking.PrecisionAtKLoss(k, **o), metrics.precision_at_k),
    "recall": Case(lambda k, **o: sg.ranking.RecallAtKLoss(k, **o), metrics.recall_at_k),
    "spearman": Case(lambda k, **o: sg.ranking.SpearmanLoss(**o), lambda s, r, k: metrics.spearman(s, r)),
    "auc": Case(lambda k, **o: sg.ranking.AUCLoss(**o), lambda s, r, k: metrics.auc(s, r)),
}


class List(NamedTuple):
    scores: np.ndarray
    relevance: np.ndarray
    k: int


def random_list(generator: np.random.Generator, most: int = 8) -> List:
    """Up to `most` documents; more than half of the lists have scores on a coarse grid, so that they tie."""
    n = int(generator.integers(1, most + 1))
    if generator.random() < 0.6:
        scores = generator.integers(0, generator.integers(1, 13), n) / 2.0
    else:
        scores = generator.normal(size=n)
    return List(scores, generator.integers(0, generator.integers(2, 6), n), int(generator.integers(1, 11)))


def gradient_of(loss: RankingLoss, scores: np.ndarray, relevance: np.ndarray, *more: Any, **named: Any) -> np.ndarray:
    """d loss / d scores."""
    leaf = torch.tensor(scores, requires_grad=True)
    loss(leaf, torch.as_tensor(relevance), *more, **named).sum().backward()
    assert leaf.grad is not None
    return leaf.grad.numpy()
