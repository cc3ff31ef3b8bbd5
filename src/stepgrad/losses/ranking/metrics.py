"""Ranking metrics of one list, by their definitions.

Every function takes scores (..., n), so that many score vectors can be judged at once, and relevance (n,). Documents are
ranked by decreasing score; of equal scores the one with the lower index comes first. A document is relevant if its
relevance is above 0. Where a metric has no meaning (see each function) it is nan.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stepgrad.errors import one_of

GAINS = ["exponential", "linear"]
Array = NDArray[np.float64]


def average_precision(scores: ArrayLike, relevance: ArrayLike) -> Any:
    """Mean over the relevant documents of precision at their rank.

    nan without relevant documents.

    >>> float(average_precision([0.9, 0.5, 0.1], [1, 0, 1])), float(average_precision([0.9, 0.5, 0.1], [0, 1, 1]))
    (0.8333333333333333, 0.5833333333333333)
    """
    hit = _ranked(scores, _relevant(relevance))
    precision = np.cumsum(hit, axis=-1) / _ranks(hit)
    return _ratio((hit * precision).sum(-1), hit.sum(-1))


def ndcg(scores: ArrayLike, relevance: ArrayLike, k: int | None = None, gains: str = "exponential") -> Any:
    """Discounted cumulative gain of the first k documents over the largest possible: sum of gain / log2(1 + rank).

    The gain is 2^relevance - 1 or the relevance itself. nan if all gains are zero.

    >>> float(ndcg([3.0, 2.0, 1.0], [2, 1, 0])), float(ndcg([3.0, 2.0, 1.0], [0, 0, 2], k=2))
    (1.0, 0.0)
    """
    gain = gain_of(np.asarray(relevance, dtype=np.float64), gains)
    return _ratio(_dcg(_ranked(scores, gain), k), _dcg(-np.sort(-gain), k))


def reciprocal_rank(scores: ArrayLike, relevance: ArrayLike) -> Any:
    """1 / rank of the first relevant document; nan without relevant documents.

    >>> float(reciprocal_rank([0.1, 0.7, 0.9], [1, 1, 0]))
    0.5
    """
    hit = _ranked(scores, _relevant(relevance))
    first = (hit / _ranks(hit)).max(-1, initial=0.0)
    return np.where(hit.any(-1), first, np.nan)


def precision_at_k(scores: ArrayLike, relevance: ArrayLike, k: int) -> Any:
    """Relevant documents among the first k, over k (also where the list is shorter); nan without relevant documents.

    >>> float(precision_at_k([0.9, 0.5, 0.1], [1, 0, 1], k=2))
    0.5
    """
    hit = _ranked(scores, _relevant(relevance))
    return np.where(hit.any(-1), hit[..., :k].sum(-1) / k, np.nan)


def recall_at_k(scores: ArrayLike, relevance: ArrayLike, k: int) -> Any:
    """Relevant documents among the first k, over all relevant ones; nan without relevant documents.

    >>> float(recall_at_k([0.9, 0.5, 0.1, 0.0], [1, 0, 1, 0], k=2))
    0.5
    """
    hit = _ranked(scores, _relevant(relevance))
    return _ratio(hit[..., :k].sum(-1), hit.sum(-1))


def spearman(scores: ArrayLike, relevance: ArrayLike) -> Any:
    """Spearman's rho: the correlation of ranks. Documents of equal relevance share their mean rank; scores never tie.

    Any real relevance will do. nan for a single document or all of one relevance.

    >>> float(spearman([3.0, 2.0, 1.0], [5.0, 1.5, -2.0])), float(spearman([3.0, 2.0, 1.0], [0, 1, 1]))
    (1.0, -0.8660254037844387)
    """
    target = _ranked(scores, middle_rank(np.asarray(relevance, dtype=np.float64)))
    n = target.shape[-1]
    place = np.arange(n)[::-1] - (n - 1) / 2
    centred = target - (n - 1) / 2
    return _ratio((centred * place).sum(-1), np.sqrt((centred**2).sum(-1) * (place**2).sum()))


def auc(scores: ArrayLike, relevance: ArrayLike) -> Any:
    """Share of pairs of a relevant and another document that are in the right order; nan without such pairs.

    >>> float(auc([0.9, 0.5, 0.1], [1, 0, 1]))
    0.5
    """
    hit = _ranked(scores, _relevant(relevance))
    others_above = np.cumsum(1.0 - hit, axis=-1)
    others = (1.0 - hit).sum(-1)
    pairs = hit.sum(-1) * others
    return _ratio(pairs - (hit * others_above).sum(-1), pairs)


def gain_of(relevance: Array, gains: str) -> Array:
    """2^relevance - 1 ("exponential") or the relevance itself ("linear")."""
    one_of("gains", gains, GAINS)
    return np.exp2(relevance) - 1.0 if gains == "exponential" else relevance


def discount_of(rank: NDArray[np.int64], k: int | None) -> Array:
    """1 / log2(1 + rank) for ranks 1..k, 0 behind."""
    discount = 1.0 / np.log2(1.0 + rank)
    return discount if k is None else np.where(rank <= k, discount, 0.0)


def middle_rank(values: Array) -> Array:
    """How many values are smaller, plus half of the other equal ones.

    >>> middle_rank(np.array([2.0, 1.0, 2.0])).tolist()
    [1.5, 0.0, 1.5]
    """
    ordered = np.sort(values)
    below, upto = np.searchsorted(ordered, values, "left"), np.searchsorted(ordered, values, "right")
    return (below + upto - 1) / 2.0


def _relevant(relevance: ArrayLike) -> Array:
    return (np.asarray(relevance) > 0).astype(np.float64)


def _ranked(scores: ArrayLike, values: Array) -> Array:
    """The documents' values in order of rank, (..., n)."""
    order = np.argsort(-np.asarray(scores, dtype=np.float64), axis=-1, kind="stable")
    return values[order]


def _ranks(ranked: Array) -> NDArray[np.int64]:
    return np.arange(1, ranked.shape[-1] + 1)


def _dcg(gain: Array, k: int | None) -> Array:
    return np.asarray((gain * discount_of(_ranks(gain), k)).sum(-1))


def _ratio(part: Any, whole: Any) -> Any:
    """part / whole, nan where the whole is zero."""
    return np.where(whole > 0, part / np.where(whole > 0, whole, 1.0), np.nan)
