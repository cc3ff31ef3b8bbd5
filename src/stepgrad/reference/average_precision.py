"""Interpolated average precision of a ranked list (Henderson & Ferrari 2016, Sec. 2.2), exact and correctly rounded."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache

from stepgrad.metric.protocol import Protocol
from stepgrad.reference.other_tools import recall_level


@dataclass(frozen=True)
class AP:
    """One average precision: `rounded` is what a program prints, `exact` decides whether two of them are equal."""

    precisions: tuple[Fraction, ...]  # (T,): p_1 .. p_T
    counts: tuple[int, ...]  # (T,): how many recall levels each of them serves
    norm: int

    @cached_property
    def exact(self) -> Fraction:
        """sum_k count_k p_k / norm."""
        return sum((n * p for n, p in zip(self.counts, self.precisions, strict=True)), Fraction(0)) / self.norm

    @cached_property
    def rounded(self) -> float:
        """The same in floats: the correctly rounded sum of the quotients, then one division."""
        terms = [[p.numerator / p.denominator] * n for n, p in zip(self.counts, self.precisions, strict=True)]
        return math.fsum(itertools.chain.from_iterable(terms)) / self.norm

    def equals(self, other: AP) -> bool:
        """Whether both are the same number; long sums of fractions are only made where floats cannot tell."""
        if abs(self.rounded - other.rounded) > 1e-9:
            return False
        return self == other or self.exact == other.exact


def interpolated(ranks: Sequence[int]) -> list[Fraction]:
    """p_k = max over l >= k of l / r_l, for k = 1..T; `ranks` are the true positives' ranks, counted from 1.

    >>> [str(p) for p in interpolated([2, 3, 9])]
    ['2/3', '2/3', '1/3']
    """
    best = Fraction(0)
    from_the_end = []
    for k in range(len(ranks), 0, -1):
        best = max(best, Fraction(k, ranks[k - 1]))
        from_the_end.append(best)
    return from_the_end[::-1]


@lru_cache(maxsize=1_000)
def levels_served(P: int, protocol: Protocol) -> tuple[tuple[int, ...], int]:
    """How many recall levels the k-th true positive serves, for k = 1..P, and the number of levels in all.

    Integrating the whole area is the same sum with one level per object. A trapezoid counts in half levels: an inner
    level is two of them, the first and the last are one each.

    >>> from stepgrad.metric.protocol import VOC07, VOC12
    >>> levels_served(2, VOC07)     # levels 0 to .5 need one true positive of two, .6 to 1 need both
    ((6, 5), 11)
    >>> levels_served(3, VOC12)
    ((1, 1, 1), 3)
    """
    if protocol.recall_levels is None:
        return (1,) * P, max(P, 1)
    last = protocol.recall_levels - 1
    trapezoid = protocol.integral == "trapezoid"
    served = [0] * P
    for q in range(last + 1):
        level = recall_level(q, last, protocol)
        recalls = (Fraction(k, P) if protocol.recall_grid == "exact" else k / P for k in range(1, P + 1))
        strictly = protocol.interpolation == "passed"
        first = next(
            (k for k, recall in enumerate(recalls) if recall > level or (recall == level and not strictly)), None
        )
        if first is not None:  # nobody has more than all: the last level cannot be passed
            served[first] += 2 if trapezoid and 0 < q < last else 1
    return tuple(served), 2 * last if trapezoid else protocol.recall_levels


@lru_cache(maxsize=20_000)
def average_precision(ranks: tuple[int, ...], P: int, protocol: Protocol) -> AP:
    """AP of a list whose true positives have these ranks, when there are P objects to find.

    >>> from stepgrad.metric.protocol import VOC07, VOC12
    >>> average_precision((1, 4), 2, VOC12).rounded
    0.75
    >>> average_precision((1, 4), 2, VOC07).exact       # levels 0 to .5 at precision 1, the other five at 1/2
    Fraction(17, 22)
    >>> average_precision((), 0, VOC12).rounded
    0.0
    """
    served, norm = levels_served(P, protocol)
    return AP(tuple(interpolated(ranks)), served[: len(ranks)], norm)
