"""The decision rule of calibrated scores: where to cut, by what is expected and not by what was counted.

With probabilities p, the expected right detections among the n with the highest scores are the sum of their p. A wish is
served by these as by counts. A cost needs nothing but p: showing a detection costs a false alarm (1 - p) times, hiding it a miss
p times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepgrad.deploy.wish import Wish
from stepgrad.metric.metrics import Cost


@dataclass(frozen=True)
class Ruled:
    """Calibrated detections of a class, by falling probability, and its objects."""

    probabilities: NDArray[np.float64]
    objects: int

    def cut(self, wish: Wish) -> float | None:
        """The least probability that passes; None: nothing passes.

        >>> from stepgrad.deploy.wish import wish_of
        >>> Ruled(np.array([0.9, 0.8, 0.2]), 2).cut(wish_of("precision=0.85"))
        0.8
        """
        if isinstance(wish.metric, Cost):
            return cost_cut(wish.metric)
        p = self.probabilities
        ends = np.flatnonzero(np.append(p[1:] != p[:-1], True)[: len(p)])
        found = np.concatenate([[0.0], np.cumsum(p)[ends]])
        place = wish.best(found, np.concatenate([[0], ends + 1]), self.objects)
        return None if place == 0 else float(p[ends[place - 1]])


def cost_cut(metric: Cost) -> float:
    """The probability from which on showing a detection costs no more than hiding it."""
    both = metric.false_alarm + metric.miss
    return metric.false_alarm / both if both > 0 else 0.0


def rule_of(lists: Sequence[Ruled], names: Sequence[str], wish: Wish) -> dict[str, float | None]:
    """By class, the calibrated score from which on a detection is shown."""
    return {name: one.cut(wish) for name, one in zip(names, lists, strict=True)}
