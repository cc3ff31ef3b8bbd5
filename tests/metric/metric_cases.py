"""The metrics of a ranked list, each beside its slow twin."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

import stepgrad as sg
from stepgrad.metric.list_metric import ListMetric
from stepgrad.metric.protocol import Protocol
from stepgrad.reference import list_metrics as slow

Slow = Callable[[Any, int, int], Any]  # of hits, objects and images
M = sg.metrics


def cases(protocol: Protocol, rng: np.random.Generator, thresholds: list[float]) -> dict[ListMetric, Slow]:
    """Every metric with numbers at random, and what it should be; fixed thresholds are taken from a list."""
    share = [0.0, 0.25, 0.3, 0.5, 0.6, 2 / 3, 0.75, 0.9, 1.0]
    precision, recall = (float(x) for x in rng.choice(share, 2))
    most = Fraction(int(rng.integers(1, 101)), 100)  # most of them between two recall levels
    prices = float(rng.integers(0, 3)), float(rng.integers(1, 11))
    at = [float(x) for x in rng.choice(thresholds, 2)]
    return {
        M.F1(): lambda hits, P, images: slow.best_f1(hits, P),
        M.F1(at[0]): lambda hits, P, images: slow.f1(hits, P),
        M.Cost(at[1], *prices): lambda hits, P, images: slow.cost(hits, P, *prices),
        M.RecallAtPrecision(precision): lambda hits, P, images: slow.recall_at_precision(hits, P, precision),
        M.PrecisionAtRecall(recall): lambda hits, P, images: slow.precision_at_recall(hits, P, recall),
        M.LogAverageMissRate(): slow.log_average_miss_rate,
        M.AP(float(most)): lambda hits, P, images: slow.partial_ap(hits, P, protocol, most),
    }


def as_own(metric: ListMetric, images: int, protocol: Protocol) -> sg.metrics.OwnMetric:
    """The same metric as a user would write it: the library sees nothing but the function."""
    return sg.metrics.OwnMetric(
        lambda hits, objects: metric.of_list(hits, objects, images, protocol),
        threshold=metric.threshold,
        higher_is_better=metric.higher_is_better,
    )
