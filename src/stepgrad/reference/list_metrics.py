"""Metrics of one class's ranked list, other than AP: what detectors are deployed by, each as the obvious formula.

A list is its hits by decreasing score, True for a true positive and False for a false alarm, and P, the objects to find. A
prefix of the list is what passes some threshold; a fixed threshold cuts the list before it comes here (metric_steps.py).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from stepgrad.metric.protocol import Protocol
from stepgrad.reference.average_precision import AP, interpolated, levels_served

Hits = Sequence[bool]
FALSE_ALARMS_PER_IMAGE = tuple(10.0 ** (j / 4 - 2) for j in range(9))  # from 0.01 to 1, evenly in the logarithm


@dataclass(frozen=True)
class Number:
    """A value: `rounded` is what a program prints, `exact` decides whether two of them are equal."""

    exact: Fraction
    rounded: float

    def equals(self, other: Number) -> bool:
        return self.exact == other.exact


def quotient(numerator: int, denominator: int) -> Number:
    """A fraction, and its nearest float; 0 / 0 is 0."""
    exact = Fraction(numerator, denominator) if denominator else Fraction(0)
    return Number(exact, float(exact))


def prefixes(hits: Hits) -> list[tuple[int, int]]:
    """(true positives, detections) of every prefix, the empty one first.

    >>> prefixes([True, False])
    [(0, 0), (1, 1), (1, 2)]
    """
    return list(zip(itertools.accumulate(hits, initial=0), range(len(hits) + 1), strict=True))


def f1(hits: Hits, P: int) -> Number:
    """2 TP / (TP + FP + P) of a whole list.

    >>> f1([True, False], P=3).exact
    Fraction(2, 5)
    """
    return quotient(2 * sum(hits), len(hits) + P)


def best_f1(hits: Hits, P: int) -> Number:
    """The largest F1 of any prefix."""
    return max((quotient(2 * tp, n + P) for tp, n in prefixes(hits)), key=lambda value: value.exact)


def recall_at_precision(hits: Hits, P: int, precision: float) -> Number:
    """The largest recall of a prefix whose precision, as a float, reaches the one asked for; 0 if none does.

    >>> recall_at_precision([True, True, False, True], P=4, precision=0.75).exact
    Fraction(3, 4)
    """
    return quotient(max((tp for tp, n in prefixes(hits)[1:] if tp / n >= precision), default=0), P)


def precision_at_recall(hits: Hits, P: int, recall: float) -> Number:
    """The largest precision of a prefix with a true positive whose recall, as a float, reaches the one asked for."""
    reached = [quotient(tp, n) for tp, n in prefixes(hits) if tp > 0 and tp / P >= recall]
    return max(reached, key=lambda value: value.exact, default=quotient(0, 1))


def cost(hits: Hits, P: int, false_alarm: float, miss: float) -> Number:
    """False alarms and misses of a whole list, each at its price, in floats as a program adds them."""
    value = false_alarm * (len(hits) - sum(hits)) + miss * (P - sum(hits))
    return Number(Fraction(value), value)


def log_average_miss_rate(hits: Hits, P: int, images: int) -> Number:
    """The geometric mean, over nine rates of false alarms per image, of the least miss rate at no more of them.

    As in pedestrian detection (Dollar et al. 2012) no miss rate counts as less than 1e-10. `exact` is its ninth power.

    >>> round(log_average_miss_rate([True, False], P=2, images=1).rounded, 12)
    0.5
    """
    missed = []
    for rate in FALSE_ALARMS_PER_IMAGE:
        most = max(tp for tp, n in prefixes(hits) if (n - tp) / images <= rate)
        missed.append(max(Fraction(P - most, P), Fraction(1, 10**10)) if P else Fraction(1))
    mean_log = math.fsum(math.log(float(m)) for m in missed) / len(missed)
    return Number(math.prod(missed, start=Fraction(1)), math.exp(mean_log))


def partial_ap(hits: Hits, P: int, protocol: Protocol, recall: Fraction) -> AP:
    """AP up to a recall: the mean of the interpolated precision over the recalls, or recall levels, no larger than it.

    >>> from stepgrad.metric.protocol import VOC12
    >>> partial_ap([True, False, True], 2, VOC12, Fraction(3, 4)).exact     # 1 up to 1/2, then 2/3 up to 3/4
    Fraction(8, 9)
    """
    ranks = [rank for rank, hit in enumerate(hits, start=1) if hit]
    if protocol.recall_levels is None:
        # The k-th true positive serves recalls from (k - 1) / P to k / P: in units of 1 / (P d) these are whole numbers.
        norm, unit = recall.numerator * P, recall.denominator
        starts = [min(k * unit, norm) for k in range(P + 1)]
    else:
        m = math.floor(recall * (protocol.recall_levels - 1))  # the last level; a trapezoid has weights 1, 2, ..., 2, 1
        norm = m + 1 if protocol.integral == "mean" else max(2 * m, 1)
        starts = [min(n, norm) for n in itertools.accumulate(levels_served(P, protocol)[0], initial=0)]
    served = [b - a for a, b in itertools.pairwise(starts)]
    shared = math.gcd(norm, *served)
    return AP(
        tuple(interpolated(ranks)), tuple(n // shared for n in served[: len(ranks)]), max(norm // max(shared, 1), 1)
    )
