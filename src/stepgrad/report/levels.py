"""The scores of a page: a hundred levels that its slider can stand at, and the score at which each class has its best F1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepgrad.engine.matching import FALSE_POSITIVE, IGNORED, TRUE_POSITIVE
from stepgrad.evaluation.class_result import Cut, best_cut
from stepgrad.evaluation.errors_by_type import LEFT_OUT, RIGHT, Mistakes
from stepgrad.evaluation.records import Evidence

STEPS = 100
"""Places of the slider, less one."""


def score_levels(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scores to cut at: 0.00 to 1.00 by hundredths, or the range there is where scores are no probabilities.

    >>> score_levels(np.array([0.2, 0.9]))[[0, 37, 100]], score_levels(np.array([-4.0, 4.0]))[[0, 50, 100]]
    (array([0.  , 0.37, 1.  ]), array([-4.,  0.,  4.]))
    """
    if are_probabilities(scores):
        return np.arange(STEPS + 1) / STEPS
    return np.linspace(scores.min(), scores.max(), STEPS + 1)


def are_probabilities(scores: NDArray[np.float64]) -> bool:
    """Whether all scores lie between 0 and 1."""
    return bool(((scores >= 0.0) & (scores <= 1.0)).all())


@dataclass(frozen=True, eq=False)
class Graded:
    """Detections that count, by class and level. A score reaches level k if it is at least `values[k]`."""

    values: NDArray[np.float64]  # (101,) the score of each level
    levels: NDArray[np.int64]  # (M,) the highest level that each detection reaches
    hits: NDArray[np.int64]  # (K, 101) right detections whose highest level it is
    alarms: NDArray[np.int64]  # (K, 101) false ones
    objects: NDArray[np.int64]  # (K,) to be found
    cuts: list[Cut]  # of each class, where its F1 is best
    passing: NDArray[np.bool_]  # (M,) whether a detection reaches the cut of its class
    own_hits: NDArray[np.int64]  # (K,) right detections that do
    own_alarms: NDArray[np.int64]  # (K,) false ones

    @classmethod
    def of(cls, evidence: Evidence, mistakes: Mistakes) -> Graded:
        detections, kinds = evidence.detections, mistakes.of_detections
        values = score_levels(detections.scores)
        levels = np.searchsorted(values, detections.scores, side="right") - 1
        shape = evidence.num_classes, len(values)
        place = detections.labels * len(values) + levels
        hits, alarms = (
            np.bincount(place[rows], minlength=shape[0] * shape[1]).reshape(shape)
            for rows in (kinds == RIGHT, (kinds != RIGHT) & (kinds != LEFT_OUT))
        )
        there = evidence.objects.labels[mistakes.of_objects != LEFT_OUT]
        objects = np.bincount(there, minlength=shape[0])
        cuts = _best_cuts(evidence, kinds, objects)
        least = np.array([np.inf if cut.threshold is None else cut.threshold for cut in cuts])
        passing = detections.scores >= least[detections.labels]
        own_hits, own_alarms = (
            np.bincount(detections.labels[rows & passing], minlength=shape[0])
            for rows in (kinds == RIGHT, (kinds != RIGHT) & (kinds != LEFT_OUT))
        )
        return cls(
            values=values,
            levels=levels,
            hits=hits,
            alarms=alarms,
            objects=objects,
            cuts=cuts,
            passing=passing,
            own_hits=own_hits,
            own_alarms=own_alarms,
        )

    def best_level(self) -> int:
        """The level whose F1 over all classes is the largest; of equal ones the highest. 0 where nothing is right."""
        right, wrong = _reaching(self.hits.sum(axis=0)), _reaching(self.alarms.sum(axis=0))
        if right[0] == 0:
            return 0
        f1 = 2 * right / (right + wrong + self.objects.sum())
        return int(len(f1) - 1 - np.argmax(f1[::-1]))

    def at(self, level: int) -> dict[str, Any]:
        """Rates of the detections that reach a level."""
        rates = self._rates(int(self.hits[:, level:].sum()), int(self.alarms[:, level:].sum()))
        return {"level": level, "threshold": float(self.values[level]), **rates}

    def at_own(self) -> dict[str, Any]:
        """Rates of the detections that reach the cut of their class."""
        rates = self._rates(int(self.own_hits.sum()), int(self.own_alarms.sum()))
        return {"thresholds": [cut.threshold for cut in self.cuts], **rates}

    def by_score(self) -> dict[str, Any]:
        """How many detections of each class reach each level: from these follow precision, recall and F1 by score."""
        right, wrong = (_reaching(counts).tolist() for counts in (self.hits, self.alarms))
        return {"scores": self.values.tolist(), "right": right, "wrong": wrong}

    def _rates(self, right: int, wrong: int) -> dict[str, Any]:
        """Counts, precision, recall and F1 over all classes; None for 0 / 0."""
        objects = int(self.objects.sum())
        return {
            "right": right,
            "wrong": wrong,
            "missed": objects - right,
            "precision": right / (right + wrong) if right + wrong else None,
            "recall": right / objects if objects else None,
            "f1": 2 * right / (right + wrong + objects) if right + wrong + objects else None,
        }


def _reaching(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many reach each level (the last axis), from how many have it as their highest."""
    return np.cumsum(counts[..., ::-1], axis=-1)[..., ::-1]


def _best_cuts(evidence: Evidence, kinds: NDArray[np.int8], objects: NDArray[np.int64]) -> list[Cut]:
    """The cut of each class with the best F1."""
    verdicts = np.select([kinds == RIGHT, kinds == LEFT_OUT], [TRUE_POSITIVE, IGNORED], FALSE_POSITIVE).astype(np.int8)
    ranked = np.argsort(-evidence.detections.scores, kind="stable")
    labels = evidence.detections.labels[ranked]
    of_classes = [ranked[labels == label] for label in range(evidence.num_classes)]
    return [
        best_cut(evidence.detections.scores[rows], verdicts[rows], int(P))
        for rows, P in zip(of_classes, objects, strict=True)
    ]
