"""Loss-augmented inference for average precision: the ranking y with the largest F(y) + weight * (1 - AP(y)).

F(y) is the mean over pairs of a positive and a negative of +-(s_positive - s_negative), + if y puts the positive above
(Yue et al. 2007, Song et al. 2016). AP depends only on where positives and negatives alternate, and F then wants each
kind sorted by score, whatever the sign of `weight`. So a ranking is told by above[i], the negatives above the i-th highest
positive, which cannot fall with i, and with negatives n_1 >= n_2 >= ... and positives p_1 >= p_2 >= ...

    F(y) + weight (1 - AP(y)) = constant + sum_i g_i(above[i]),
    g_i(k) = 2 / (positives * negatives) * sum_(j <= k) (n_j - p_i) - weight / positives * i / (i + k).

Dynamic programming over (i, k) is then h(i, k) = max(h(i, k - 1), h(i - 1, k) + g_i(k)): positives x negatives steps.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def best_ranking(positives: Floats, negatives: Floats, weight: float) -> Ints:
    """above (positives,) of the best ranking; scores of each kind in descending order. Of equals, the positive goes first.

    >>> best_ranking(np.array([3.0, 1.0]), np.array([2.0, 0.0]), weight=0.0).tolist()      # by score
    [0, 1]
    >>> best_ranking(np.array([3.0, 1.0]), np.array([2.0, 0.0]), weight=100.0).tolist()    # as bad as can be
    [2, 2]
    """
    top = max(positives[0], negatives[0])
    largest = max(abs(s) for s in (positives[0], positives[-1], negatives[0], negatives[-1]))
    unit = 2.0 ** max(0, int(np.frexp(largest)[1]) - 1)  # sums of huge scores overflow; a power of two rounds nothing
    return _best_ranking(positives / unit - top / unit, negatives / unit - top / unit, weight / unit)


@njit(cache=True)
def _best_ranking(positives: Floats, negatives: Floats, weight: float) -> Ints:
    """`best_ranking` row by row; one bit per (i, k) remembers whether h(i, k) puts positive i below exactly k negatives."""
    per_pair = 2.0 / len(positives) / len(negatives)
    per_positive = weight / len(positives)
    best = np.zeros(len(negatives) + 1)
    taken = np.zeros((len(positives), len(negatives) // 8 + 1), dtype=np.uint8)
    for i in range(len(positives)):
        gained, largest = 0.0, -np.inf
        for k in range(len(negatives) + 1):
            if k > 0:
                gained += per_pair * (negatives[k - 1] - positives[i])
            value = best[k] + gained - per_positive * (i + 1.0) / (i + 1.0 + k)
            if value > largest:
                largest = value
                taken[i, k >> 3] |= np.uint8(1 << (k & 7))
            best[k] = largest
    above = np.empty(len(positives), dtype=np.int64)
    k = len(negatives)
    for i in range(len(positives) - 1, -1, -1):
        while not taken[i, k >> 3] & (1 << (k & 7)):
            k -= 1
        above[i] = k
    return above


def ranking_score(positives: Floats, negatives: Floats, above: Ints) -> float:
    """F of a ranking.

    >>> ranking_score(np.array([3.0]), np.array([2.0, 0.0]), np.array([1]))     # (-(3 - 2) + (3 - 0)) / 2
    1.0
    """
    sums = np.concatenate([np.zeros(1), np.cumsum(negatives)])
    by_positive = (len(negatives) - 2 * above) * positives + 2.0 * sums[above] - sums[-1]
    return float(by_positive.mean()) / len(negatives)


def ranking_loss(above: Ints) -> float:
    """1 - AP of a ranking."""
    rank = np.arange(1, len(above) + 1)
    return 1.0 - float((rank / (rank + above)).mean())


def score_gradient(above: Ints, negatives: int) -> tuple[Floats, Floats]:
    """The derivative of F by the scores of the positives and of the negatives, each in descending order.

    >>> [g.tolist() for g in score_gradient(np.array([1]), 2)]
    [[0.0], [0.5, -0.5]]
    """
    pairs = len(above) * negatives
    below = (
        len(above) - np.cumsum(np.bincount(above, minlength=negatives + 1))[:negatives]
    )  # positives below each negative
    return (negatives - 2 * above) / pairs, (2 * below - len(above)) / pairs
