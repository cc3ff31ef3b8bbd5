"""Ranking metrics as losses: the value is the metric's, the gradient its pseudogradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stepgrad.errors import ConfigError, one_of, positive_number, whole_number
from stepgrad.losses.ranking.inputs import Documents, Values, read_documents, read_input
from stepgrad.losses.ranking.linear import auc_metric, ndcg_metric, precision_metric, recall_metric, spearman_metric
from stepgrad.losses.ranking.lists import Floats, Lists
from stepgrad.losses.ranking.metrics import GAINS
from stepgrad.losses.ranking.precision import AveragePrecision, ReciprocalRank
from stepgrad.losses.ranking.steps import (
    BALANCES,
    RankingMetric,
    pseudogradient_by_position,
    step_columns,
)
from stepgrad.plain_tensors import narrowed, outside_graphs
from stepgrad.steps.autograd import attach
from stepgrad.steps.estimators import Method, Steps

REDUCTIONS = ["mean", "sum", "none"]
EMPTY = ["skip", "zero", "one"]


class RankingLoss(nn.Module):
    """1 - metric, or -log(metric + eps), of ranked lists, with exact pseudogradients. Use one of the subclasses.

    Args:
        estimator: "mee", "sde" or "radius".
        radius: for the radius estimator, in units of score.
        min_step: lower bound on the distance to a step where there is one on one side only.
        balance: "query" makes the pushes up and down of each query sum to zero; "none" leaves the gradient as it is.
        log: use -log(metric + eps) instead of 1 - metric.
        eps: what keeps the logarithm finite.
        reduction: "mean" over the queries, "sum", or "none" for one loss per query, in the order of rows or of rising ids.
        empty: a query for which the metric has no meaning (for example, no relevant document) is left out ("skip": no loss, and
            not counted in the mean), or counts as metric 0 ("zero") or 1 ("one"). It never has a gradient.

    Called with scores and relevance in one of four forms: (documents,) of one query; (documents,) with integer query ids
    in any order; (queries, documents) with mask=True for the real documents; or lists of (documents,), one entry per query.
    If scores are equal, the document that comes first wins. After each call `metrics` holds the mean metric under its name,
    "per_query" (Q,; nan where left out), "queries" (their ids), "nonzero" (share of the scores with a gradient),
    "positive_sum" and "negative_sum" of the metric's pseudogradient.
    """

    name = "metric"
    signed = False  # whether relevance may be negative
    lowest = 0.0  # the smallest value of the metric
    own: tuple[str, ...] = ()  # the names of the subclass's own settings

    def __init__(
        self,
        estimator: str = "mee",
        radius: float = 1.0,
        min_step: float = 0.1,
        balance: str = "none",
        log: bool = False,
        eps: float = 0.01,
        reduction: str = "mean",
        empty: str = "skip",
    ) -> None:
        super().__init__()
        one_of("reduction", reduction, REDUCTIONS)
        one_of("empty", empty, EMPTY)
        one_of("balance", balance, BALANCES)
        if log and self.lowest < 0.0:
            raise ConfigError(
                f"Expected log=False for {type(self).__name__}, whose metric can be negative, but got True."
            )
        self.method = Method(estimator, radius, min_step)
        self.balance = balance
        self.log = log
        self.eps = positive_number("eps", eps)
        self.reduction = reduction
        self.empty = empty
        self.metrics: dict[str, Any] = {}

    @outside_graphs
    def forward(
        self, scores: Values, relevance: Values, query: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """The loss of a batch of queries."""
        given = read_input(scores, relevance, query, mask)
        documents, scores = read_documents(given, self.signed), given.scores
        lists = documents.lists()
        metric = self._metric(lists)
        value, counted = self._judged(metric)
        needed = torch.is_grad_enabled() and scores.requires_grad
        gradient = (
            pseudogradient_by_position(metric, lists, self.method, self.balance)
            if needed
            else np.zeros(len(lists.score))
        )
        self._report(documents, value, counted, gradient)
        losses = np.where(counted, -np.log(value + self.eps) if self.log else 1.0 - value, 0.0)
        precision = torch.float64 if scores.dtype == torch.float64 else torch.float32
        by_query = torch.from_numpy(losses).to(scores.device, precision)
        if needed:
            outer = -1.0 / (value + self.eps) if self.log else np.full(len(value), -1.0)
            by_query = _attach(by_query, scores, documents, lists, gradient * outer[lists.query])
        return _reduced(by_query, self.reduction, int(counted.sum()))

    def steps(
        self, scores: Values, relevance: Values, query: Tensor | None = None, mask: Tensor | None = None
    ) -> Steps:
        """The metric and its nearest steps in every score, as float64 tensors in the shape of the scores.

        For lists, the documents of all queries are joined, one query after the other.
        """
        given = read_input(scores, relevance, query, mask)
        documents, scores = read_documents(given, self.signed), given.scores
        lists = documents.lists()
        metric = self._metric(lists)
        by_position = step_columns(metric, lists)
        blanks = {"up_at": np.inf, "up_value": 0.0, "down_at": -np.inf, "down_value": 0.0}
        by_score = {
            name: _unranked(getattr(by_position, name), scores, documents, lists, blank)
            for name, blank in blanks.items()
        }
        value = np.where(metric.defined, metric.value, np.nan)
        return Steps(value=torch.from_numpy(value), **by_score)

    def _metric(self, lists: Lists) -> RankingMetric:
        raise NotImplementedError

    def _judged(self, metric: RankingMetric) -> tuple[Floats, np.ndarray]:
        """The metric by query, those without a meaning filled in, and which queries count."""
        defined = metric.defined
        value = np.where(defined, metric.value, 1.0 if self.empty == "one" else 0.0)
        return value, defined if self.empty == "skip" else np.ones_like(defined)

    def _report(self, documents: Documents, value: Floats, counted: np.ndarray, gradient: Floats) -> None:
        self.metrics = {
            self.name: float(value[counted].mean()) if counted.any() else float("nan"),
            "per_query": np.where(counted, value, np.nan),
            "queries": documents.ids,
            "nonzero": np.count_nonzero(gradient) / max(len(gradient), 1),
            "positive_sum": float(gradient[gradient > 0.0].sum()),
            "negative_sum": float(gradient[gradient < 0.0].sum()),
        }

    def extra_repr(self) -> str:
        """The settings that decide what is trained for."""
        own = {name: getattr(self, name) for name in self.own}
        shown = {**own, "estimator": self.method.estimator}
        if self.method.estimator == "radius":
            shown["radius"] = self.method.radius
        shown |= {"balance": self.balance, "log": self.log, "reduction": self.reduction, "empty": self.empty}
        return ", ".join(f"{name}={value!r}" for name, value in shown.items())


def _unranked(values: Floats, scores: Tensor, documents: Documents, lists: Lists, blank: float = 0.0) -> Tensor:
    """From positions back to the shape of the scores; documents that do not count get the blank."""
    full = np.full(scores.numel(), blank)
    where = lists.document if documents.where is None else documents.where[lists.document]
    full[where] = values
    return torch.from_numpy(full).reshape(scores.shape)


def _attach(by_query: Tensor, scores: Tensor, documents: Documents, lists: Lists, gradient: Floats) -> Tensor:
    by_score = narrowed(_unranked(gradient, scores, documents, lists), scores.dtype).to(scores.device)
    query = np.zeros(scores.numel(), dtype=np.int64)
    query[slice(None) if documents.where is None else documents.where] = documents.query
    numbers = torch.from_numpy(query).reshape(scores.shape).to(scores.device)
    return attach(scores, by_query, _own_querys_share, by_score, numbers)


def _own_querys_share(outer: Tensor, gradient: Tensor, query: Tensor) -> Tensor:
    """Each score belongs to one query: d/dscore = d(loss of its query)/dscore * d/d(loss of its query)."""
    return gradient * outer.to(gradient.dtype)[query]


def _reduced(by_query: Tensor, reduction: str, counted: int) -> Tensor:
    if reduction == "none":
        return by_query
    return by_query.sum() / max(counted, 1) if reduction == "mean" else by_query.sum()


class APLoss(RankingLoss):
    """Average precision as a loss: the mean over a query's relevant documents (relevance > 0) of the precision at their rank.

    Args:
        options: as for `RankingLoss`.

    >>> scores = torch.tensor([2.0, 1.0, 0.0], requires_grad=True)
    >>> loss = APLoss()(scores, torch.tensor([0, 1, 1]))
    >>> loss.backward()
    >>> round(loss.item(), 4), scores.grad.sign().tolist()
    (0.4167, [1.0, -1.0, -1.0])
    """

    name = "ap"

    def _metric(self, lists: Lists) -> RankingMetric:
        return AveragePrecision(lists)


class NDCGLoss(RankingLoss):
    """NDCG of the first k documents as a loss.

    Args:
        k: how many documents count; None: all.
        gains: "exponential", 2^relevance - 1, or "linear", the relevance itself.
        estimator: "radius", "mee" or "sde". The radius, with the balance below, trained networks best (see
            docs/step_functions.md).
        balance: "query" or "none".
        options: as for `RankingLoss`.

    >>> scores = torch.tensor([0.9, 0.5, 0.1], requires_grad=True)
    >>> loss_fn = NDCGLoss(k=2)
    >>> loss_fn(scores, torch.tensor([1, 0, 2])).backward()
    >>> round(loss_fn.metrics["ndcg"], 4), scores.grad.sign().tolist()
    (0.2754, [1.0, 1.0, -1.0])
    """

    name = "ndcg"
    own = ("k", "gains")

    def __init__(
        self,
        k: int | None = None,
        gains: str = "exponential",
        *,
        estimator: str = "radius",
        balance: str = "query",
        **options: Any,
    ) -> None:
        super().__init__(estimator=estimator, balance=balance, **options)
        one_of("gains", gains, GAINS)
        self.k = None if k is None else whole_number("k (None for the whole list)", k, least=1)
        self.gains = gains

    def _metric(self, lists: Lists) -> RankingMetric:
        return ndcg_metric(lists, self.k, self.gains)


class MRRLoss(RankingLoss):
    """The reciprocal rank of the first relevant document as a loss.

    >>> loss_fn = MRRLoss()
    >>> float(loss_fn(torch.tensor([2.0, 1.0, 0.0]), torch.tensor([0, 1, 1])))
    0.5
    """

    name = "mrr"

    def _metric(self, lists: Lists) -> RankingMetric:
        return ReciprocalRank(lists)


class _AtKLoss(RankingLoss):
    build: Callable[[Lists, int], RankingMetric]
    own = ("k",)

    def __init__(self, k: int, **options: Any) -> None:
        super().__init__(**options)
        self.k = whole_number("k", k, least=1)

    def _metric(self, lists: Lists) -> RankingMetric:
        return type(self).build(lists, self.k)


class PrecisionAtKLoss(_AtKLoss):
    """The share of relevant documents among the first k as a loss; k counts in full where a list is shorter.

    >>> float(PrecisionAtKLoss(k=2)(torch.tensor([2.0, 1.0, 0.0]), torch.tensor([0, 1, 1])))
    0.5
    """

    name = "precision"
    build = staticmethod(precision_metric)


class RecallAtKLoss(_AtKLoss):
    """The share of the relevant documents that are among the first k as a loss.

    >>> float(RecallAtKLoss(k=1)(torch.tensor([2.0, 1.0, 0.0]), torch.tensor([0, 1, 1])))
    1.0
    """

    name = "recall"
    build = staticmethod(recall_metric)


class SpearmanLoss(RankingLoss):
    """Spearman's rho of scores and relevance as a loss, from 0 to 2. Relevance may be any real number.

    >>> float(SpearmanLoss()(torch.tensor([2.0, 1.0, 0.0]), torch.tensor([-1.0, 0.0, 3.5])))
    2.0
    """

    name = "spearman"
    signed = True
    lowest = -1.0

    def _metric(self, lists: Lists) -> RankingMetric:
        return spearman_metric(lists)


class AUCLoss(RankingLoss):
    """The share of pairs of a relevant and another document in the right order as a loss.

    >>> float(AUCLoss()(torch.tensor([2.0, 1.0, 0.0]), torch.tensor([1, 0, 1])))
    0.5
    """

    name = "auc"

    def _metric(self, lists: Lists) -> RankingMetric:
        return auc_metric(lists)
