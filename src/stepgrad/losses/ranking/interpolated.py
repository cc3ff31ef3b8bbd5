"""Interpolated average precision: the area under the monotone precision-recall curve, as in VOC 2010 and later.

A ranked list of documents is a list of detections of one class, with relevant ones for true positives; the nearest steps
follow the same rules (see `stepgrad.kernels.rank_steps`), here for many short lists at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepgrad.kernels.list_records import Marks, changes, nearest_passed, sums
from stepgrad.losses.ranking.linear import Moves
from stepgrad.losses.ranking.lists import NONE, Floats, Ints, Lists


@dataclass(frozen=True)
class InterpolatedPrecision:
    """Mean over the relevant documents of the best precision at their rank or any later one."""

    lists: Lists

    @cached_property
    def _marks(self) -> Marks:
        hit = self.lists.relevance > 0.0
        start = np.concatenate([[0], np.cumsum(self.lists.size)])
        return Marks(start, np.flatnonzero(hit), np.concatenate([[0], np.cumsum(hit)]))

    @cached_property
    def relevant(self) -> Floats:
        return np.diff(self._marks.above[self._marks.start]).astype(np.float64)

    @property
    def defined(self) -> np.ndarray:
        return self.relevant > 0.0

    @cached_property
    def value(self) -> Floats:
        return sums(self._marks) / np.maximum(self.relevant, 1.0)

    def nearest(self) -> Moves:
        """The nearest steps of every document."""
        up, down = nearest_passed(self._marks)
        here = np.arange(len(up))
        rising = self.moved(np.where(up == NONE, here, self.lists.group_first[up]))
        sinking = self.moved(np.where(down == NONE, here, self.lists.group_last[down]))
        return Moves(up, rising, down, sinking)

    def moved(self, target: Ints) -> Floats:
        """The change of AP if a document alone moves to the target position."""
        change: Floats = changes(self._marks, target) / np.maximum(self.relevant, 1.0)[self.lists.query]
        return change
