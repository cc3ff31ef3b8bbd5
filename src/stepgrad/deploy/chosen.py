"""Thresholds of judged lists: one for each class, one for all, and what each is worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepgrad.deploy.expected import Expected, expected_of
from stepgrad.deploy.ranked import RankedList, all_together
from stepgrad.deploy.wish import Wish


@dataclass(frozen=True)
class Chosen:
    """What a wish leads to."""

    cuts: Sequence[float | None]
    """The threshold of each class: that of all where the class has no objects."""
    by_class: Sequence[Expected]
    mean: Expected
    together: RankedList
    """All classes as one list."""
    shared: float | None
    """The threshold that serves this list best."""
    of_shared: Expected


def choose(lists: Sequence[RankedList], wish: Wish, fold: NDArray[np.int64], level: float) -> Chosen:
    """The thresholds of these lists; `fold` has the part that each unit belongs to."""
    together = all_together(lists)
    shared = together.cut(wish)
    cuts = [one.cut(wish) if len(one.object_units) else shared for one in lists]
    seen = (one.seen(wish, cut, fold) for one, cut in zip(lists, cuts, strict=True))
    *by_class, mean = expected_of(seen, wish, level)
    of_shared = expected_of([together.seen(wish, shared, fold)], wish, level)[0]
    return Chosen(cuts, by_class, mean, together, shared, of_shared)
