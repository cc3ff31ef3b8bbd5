"""Interpolated average precision of a ranked list, in exact fractions and in correctly rounded floats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from stepgrad.metric.protocol import Protocol


class AP(NamedTuple):
    """One average precision twice: `exact` decides whether two are equal, `rounded` is what a program prints."""

    exact: Fraction
    rounded: float


def interpolated(ranks: Sequence[int]) -> list[Fraction]:
    """p_k = max over l >= k of l / r_l, for k = 1..T; `ranks` are the true positives' ranks, counted from 1.

    >>> [str(p) for p in interpolated([2, 3, 9])]
    ['2/3', '2/3', '1/3']
    """
    best, from_the_end = Fraction(0), []
    for k in range(len(ranks), 0, -1):
        best = max(best, Fraction(k, ranks[k - 1]))
        from_the_end.append(best)
    return from_the_end[::-1]


@lru_cache(maxsize=200_000)
def average_precision(ranks: tuple[int, ...], P: int, protocol: Protocol) -> AP:
    """AP = sum_k count_k p_k / norm; as a float: the correctly rounded sum of the quotients, then one division.

    >>> from stepgrad.metric.protocol import VOC07, VOC12
    >>> average_precision((1, 4), 2, VOC12)
    AP(exact=Fraction(3, 4), rounded=0.75)
    >>> average_precision((1, 4), 2, VOC07).exact       # levels 0 to .5 at precision 1, the other five at 1/2
    Fraction(17, 22)
    >>> average_precision((), 0, VOC12).rounded
    0.0
    """
    if P == 0:
        return AP(Fraction(0), 0.0)
    counts, norm = protocol.level_counts(P)
    exact, terms = Fraction(0), []
    for k, p in enumerate(interpolated(ranks), start=1):
        exact += int(counts[k]) * p
        terms += [p.numerator / p.denominator] * int(counts[k])
    return AP(exact / norm, math.fsum(terms) / norm)
