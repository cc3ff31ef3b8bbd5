"""The ranked detections of one class, or of all, and where a wish cuts them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepgrad.deploy.expected import Seen
from stepgrad.deploy.wish import Wish
from stepgrad.engine.matching import IGNORED, TRUE_POSITIVE
from stepgrad.evaluation.resampling import JudgedList

Floats = NDArray[np.float64]
Kept = NDArray[np.bool_] | None


@dataclass(frozen=True, eq=False)
class RankedList:
    """Detections that count, by falling score, and the units (images, or groups of them) of detections and objects."""

    scores: Floats  # (M,)
    hits: NDArray[np.bool_]  # (M,)
    units: NDArray[np.int32]  # (M,)
    object_units: NDArray[np.int32]  # (P,)

    def cut(self, wish: Wish, kept: Kept = None) -> float | None:
        """The least score that passes, by what `kept` units have (default: all); None: nothing passes.

        A threshold cannot part equal scores: they pass together.
        """
        own = self if kept is None else self.of_units(kept)
        scores, hits, objects = own.scores, own.hits, len(own.object_units)
        ends = np.flatnonzero(np.append(scores[1:] != scores[:-1], True)[: len(scores)])
        found = np.concatenate([[0], np.cumsum(hits)[ends]])
        place = wish.best(found, np.concatenate([[0], ends + 1]), objects)
        return None if place == 0 else float(scores[ends[place - 1]])

    def of_units(self, kept: NDArray[np.bool_]) -> RankedList:
        """The list of some units alone."""
        rows = kept[self.units]
        return RankedList(
            self.scores[rows], self.hits[rows], self.units[rows], self.object_units[kept[self.object_units]]
        )

    def passing(self, threshold: float | None) -> NDArray[np.bool_]:
        """(M,) detections that reach a threshold."""
        return np.zeros(len(self.scores), dtype=np.bool_) if threshold is None else self.scores >= threshold

    def counts(self, passing: NDArray[np.bool_], units: int) -> Floats:
        """(3, units) of each unit the right detections that pass, all that pass, and the objects."""
        columns = self.units[passing & self.hits], self.units[passing], self.object_units
        return np.stack([np.bincount(column, minlength=units) for column in columns]).astype(np.float64)

    def seen(self, wish: Wish, cut: float | None, fold: NDArray[np.int64]) -> Seen:
        """Counts of each unit at the threshold `cut`, and at the one that the units of other folds lead to."""
        within = self.counts(self.passing(cut), len(fold))
        if cut is None or not len(self.object_units):  # there is no threshold, or it comes from all classes
            return Seen(within, within)
        passing = np.zeros(len(self.scores), dtype=np.bool_)
        for f in np.unique(fold):
            inside = fold[self.units] == f
            passing[inside] = self.passing(self.cut(wish, fold != f))[inside]
        return Seen(within, self.counts(passing, len(fold)))


def ranked_list(judged: JudgedList, unit: NDArray[np.int32], level: int) -> RankedList:
    """The list of a class at the match threshold with this position; `unit` has the unit of each image."""
    verdicts = judged.verdicts[level]
    counts = verdicts != IGNORED
    return RankedList(
        scores=judged.scores[counts],
        hits=verdicts[counts] == TRUE_POSITIVE,
        units=unit[judged.images[counts]],
        object_units=unit[judged.object_images],
    )


def all_together(lists: Sequence[RankedList]) -> RankedList:
    """All classes as one list, for a threshold that they share."""
    scores = np.concatenate([np.zeros(0), *(one.scores for one in lists)])
    order = np.argsort(-scores, kind="stable")
    joined = {
        name: np.concatenate([np.zeros(0, dtype), *(getattr(one, name) for one in lists)])
        for name, dtype in (("hits", np.bool_), ("units", np.int32), ("object_units", np.int32))
    }
    return RankedList(scores[order], joined["hits"][order], joined["units"][order], joined["object_units"])
