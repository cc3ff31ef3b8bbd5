"""Numbers as people read them: every share of one in per cent."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

SHARES = ("ap", "f1", "precision", "recall", "miss_rate")  # metrics from 0 to 1, by the first word of their names


def per_cent(value: float | None, decimals: int = 1, sign: bool = False) -> str:
    """A share of one in per cent, the unit of every mAP, AP and recall that people read; a dash for nan and None.

    >>> per_cent(0.72138), per_cent(0.72138, decimals=2), per_cent(-0.00001, sign=True), per_cent(float("nan"))
    ('72.1', '72.14', '+0.0', '-')
    """
    if value is None or math.isnan(value):
        return "-"
    number = round(100.0 * value, decimals) + 0.0  # no minus before a zero
    return f"{number:{'+' if sign else ''}.{decimals}f}"


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation; 0 for a single value.

    >>> mean_and_spread([1.0, 3.0])
    (2.0, 1.4142135623730951)
    """
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def in_points(values: Sequence[float]) -> str:
    """Mean of some shares in per cent and, of several, their spread in brackets.

    >>> in_points([0.5, 0.52]), in_points([0.5])
    ('51.0 (1.4)', '50.0')
    """
    mean, spread = mean_and_spread(values)
    return per_cent(mean) + (f" ({per_cent(spread)})" if len(values) > 1 else "")


def is_share(metric: str) -> bool:
    """Whether a metric of this name is a share of one, and no cost or metric of the user's own.

    >>> is_share("recall@precision=0.9"), is_share("cost@threshold=0.5,false_alarm=1,miss=10")
    (True, False)
    """
    return metric.split("@")[0] in SHARES


def metric_text(metric: str, value: float | None) -> str:
    """The value of the metric of this name: a share in per cent, anything else as it is.

    >>> metric_text("recall@precision=0.9", 0.3393), metric_text("cost@threshold=0.5,false_alarm=1,miss=10", 726.0812)
    ('33.9', '726.1')
    """
    if value is None or math.isnan(value) or is_share(metric):
        return per_cent(value)
    return f"{value:.4g}"


def counted(count: int, noun: str) -> str:
    """A number with its noun, in the plural unless it is one.

    >>> counted(1, "image"), counted(0, "box"), counted(2, "class")
    ('1 image', '0 boxes', '2 classes')
    """
    ending = "" if count == 1 else "es" if noun.endswith(("s", "x", "ch")) else "s"
    return f"{count} {noun}{ending}"


def agreeing(count: int, verb: str) -> str:
    """The plural form of a verb, or its singular form for a count of one.

    >>> agreeing(2, "are"), agreeing(1, "are"), agreeing(1, "repeat")
    ('are', 'is', 'repeats')
    """
    return verb if count != 1 else {"are": "is", "were": "was", "have": "has"}.get(verb, f"{verb}s")


def part_counted(part: int, whole: int, noun: str, verb: str) -> str:
    """So many of so many, with a verb that agrees.

    >>> part_counted(1, 364, "image", "are"), part_counted(2, 364, "image", "have")
    ('1 of 364 images is', '2 of 364 images have')
    """
    return f"{part} of {counted(whole, noun)} {agreeing(part, verb)}"
