"""The baselines by brute force: all rankings, all outcomes, and loops over pairs as the formulas are printed."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepgrad.reference.boxes import iou
from stepgrad.reference.matching import best_object

Floats = np.ndarray
POSITIVE, NEGATIVE, LEFT_OUT = "positive", "negative", "left out"


def label_of(
    window: Sequence[float],
    objects: Sequence[Sequence[float]],
    ignored: Sequence[bool],
    threshold: float,
    grey_zone: float | None,
) -> str:
    """What a window is for the class of the objects given (those of its image)."""
    overlaps = iou([window], objects)[0].tolist() if len(objects) else []
    found = best_object(overlaps, threshold, equality=True)
    if found is not None:
        return LEFT_OUT if ignored[found] else POSITIVE
    if grey_zone is not None and overlaps and max(overlaps) >= grey_zone:
        return LEFT_OUT
    return NEGATIVE


def average_precision(positives: Sequence[float], negatives: Sequence[float]) -> float:
    """Sorted by score, a negative before a positive of the same score."""
    ranked = sorted([(-s, 1) for s in positives] + [(-s, 0) for s in negatives])
    found, total = 0, 0.0
    for place, (_, positive) in enumerate(ranked, start=1):
        found += positive
        total += positive * found / place
    return total / len(positives)


@dataclass(frozen=True)
class Rankings:
    """Every ranking of P positives and N negatives: y (R, P, N) is +1 where the positive is above, and 1 - AP (R,)."""

    y: Floats
    loss: Floats

    def scores(self, positives: Floats, negatives: Floats) -> Floats:
        """F of every ranking."""
        return (self.y * (positives[:, None] - negatives[None, :])).mean(axis=(1, 2))


@functools.cache
def all_rankings(P: int, N: int) -> Rankings:
    """All (P + N)! of them: nothing is said about how positives stand among themselves."""
    place = np.array(list(itertools.permutations(range(P + N))))  # (R, P + N): where each window stands
    ours, others = place[:, :P], place[:, P:]
    y = np.where(ours[:, :, None] < others[:, None, :], 1, -1)
    hits = 1 + (ours[:, None, :] < ours[:, :, None]).sum(axis=2)
    return Rankings(y, 1.0 - (hits / (ours + 1)).mean(axis=1))


def score_gradient(y: Floats) -> tuple[Floats, Floats]:
    """dF by positives and negatives."""
    return y.mean(axis=1) / y.shape[0], -y.mean(axis=0) / y.shape[1]


def song(positives: Floats, negatives: Floats, eps: float, update: str) -> tuple[float, Floats, Floats]:
    """1 - AP and the direct loss gradient, the two best rankings found by looking at all (scores distinct)."""
    sign = 1.0 if update == "positive" else -1.0
    every = all_rankings(len(positives), len(negatives))
    by_score = every.scores(positives, negatives)
    direct, plain = np.argmax(by_score + sign * eps * every.loss), np.argmax(by_score)
    pairs = zip(score_gradient(every.y[direct]), score_gradient(every.y[plain]), strict=True)
    by_positive, by_negative = (sign * (d - w) / eps for d, w in pairs)
    return float(every.loss[plain]), by_positive, by_negative


def yue(positives: Floats, negatives: Floats, margin: float) -> tuple[float, Floats, Floats]:
    """The hinge, the worst offender found by looking at all rankings."""
    every = all_rankings(len(positives), len(negatives))
    objective = margin * every.loss + every.scores(positives, negatives)
    worst = np.argmax(objective)
    perfect = np.ones((len(positives), len(negatives)))
    best = float((positives[:, None] - negatives[None, :]).mean())
    pairs = zip(score_gradient(every.y[worst]), score_gradient(perfect), strict=True)
    by_positive, by_negative = (w - p for w, p in pairs)
    return float(objective[worst]) - best, by_positive, by_negative


def greedy_ranking(positives: Floats, negatives: Floats, weight: float) -> Floats:
    """above, by Yue's own algorithm: each negative goes where it gains most, seen from the bottom of the list."""
    P, N = len(positives), len(negatives)
    t = np.arange(1, P + 1)
    after = np.empty(N, dtype=np.int64)  # how many positives stay above the negative
    for j in range(1, N + 1):
        gain = weight / P * (t / (t + j - 1) - t / (t + j)) - 2.0 * (positives - negatives[j - 1]) / (P * N)
        passing = np.concatenate([np.cumsum(gain[::-1])[::-1], [0.0]])  # passing[i]: it passes all positives after i
        after[j - 1] = np.argmax(passing)
    return (after[None, :] < t[:, None]).sum(axis=1)


def soft_ap(positives: Sequence[float], negatives: Sequence[float], sigma: float) -> float:
    """The expected AP, every comparison with a positive a coin of its own, over all outcomes of the coins."""
    total = 0.0
    for i, own in enumerate(positives):
        others = [(s, True) for p, s in enumerate(positives) if p != i] + [(s, False) for s in negatives]
        coins = [0.5 * math.erfc(-(s - own) / (2.0 * sigma)) for s, _ in others]  # Phi(d / (sqrt(2) sigma))
        for outcome in itertools.product([False, True], repeat=len(others)):
            probability = math.prod(c if up else 1.0 - c for c, up in zip(coins, outcome, strict=True))
            above = [kind for (_, kind), up in zip(others, outcome, strict=True) if up]
            total += probability * (1 + sum(above)) / (1 + len(above))
    return total / len(positives)


def smooth_ap(positives: Sequence[float], negatives: Sequence[float], tau: float) -> float:
    """1 - Smooth-AP, pair by pair."""
    total = 0.0
    for i, own in enumerate(positives):
        among = sum(_sigmoid((s - own) / tau) for p, s in enumerate(positives) if p != i)
        against = sum(_sigmoid((s - own) / tau) for s in negatives)
        total += (1.0 + among) / (1.0 + among + against)
    return 1.0 - total / len(positives)


def _sigmoid(x: float) -> float:
    return 0.5 * (1.0 + math.tanh(0.5 * x))


def error_driven(
    positives: Sequence[float], negatives: Sequence[float], delta: float, interpolated: bool
) -> tuple[float, list[float], list[float]]:
    """AP-Loss and its update as the published algorithm walks: positives from the lowest score up."""

    def step(x: float) -> float:
        return min(max(x / (2.0 * delta) + 0.5, 0.0), 1.0)

    by_positive, by_negative = [0.0] * len(positives), [0.0] * len(negatives)
    largest, total = 0.0, 0.0
    for i in sorted(range(len(positives)), key=lambda i: positives[i]):
        rank = 1.0 + sum(step(s - positives[i]) for p, s in enumerate(positives) if p != i)
        below = [step(s - positives[i]) for s in negatives]
        errors = [e / (rank + sum(below)) for e in below]
        precision = rank / (rank + sum(below))
        if interpolated and precision < largest:
            errors = [e * (1.0 - largest) / (1.0 - precision) for e in errors]
            precision = largest
        largest = max(largest, precision)
        total += precision
        for n, error in enumerate(errors):
            by_positive[i] -= error / len(positives)
            by_negative[n] += error / len(positives)
    return 1.0 - total / len(positives), by_positive, by_negative
