"""Detections judged for a page: the mistake that each is, the best cut of each class, and a hundred scores to cut at."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepgrad.engine.matching import FALSE_POSITIVE, IGNORED, TRUE_POSITIVE
from stepgrad.evaluation.class_result import Cut, best_cut
from stepgrad.evaluation.errors_by_type import LEFT_OUT, RIGHT, Mistakes, find_mistakes, summarise
from stepgrad.evaluation.judge import judge, taking_part
from stepgrad.evaluation.records import Evidence
from stepgrad.evaluation.result import EvaluationResult, result_from
from stepgrad.metric.list_metric import f1_of
from stepgrad.metric.protocol import Protocol

STEPS = 100
"""Places of the page's slider, less one."""
BACKGROUND = 0.1
"""The overlap below which a detection is on background, as in TIDE; less where the match threshold is lower still."""


@dataclass(frozen=True, eq=False)
class Findings:
    """Detections judged by a protocol, at the lowest of its match thresholds where one is needed.

    A detection reaches level k if its score is at least `values[k]`.
    """

    evidence: Evidence
    result: EvaluationResult
    mistakes: Mistakes
    cuts: list[Cut]  # of each class, where its F1 is best
    passing: NDArray[np.bool_]  # (M,) whether a detection reaches the cut of its class
    values: NDArray[np.float64]  # (101,) the score of each level
    levels: NDArray[np.int64]  # (M,) the highest level that each detection reaches

    @classmethod
    def of(cls, evidence: Evidence, protocol: Protocol) -> Findings:
        result = judged(evidence, protocol)
        lowest = int(np.argmin(protocol.match_thresholds))
        cuts = [best_cut(row.scores, row.verdicts[lowest], row.objects) for row in result.classes]
        least = np.array([np.inf if cut.threshold is None else cut.threshold for cut in cuts])
        scores = evidence.detections.scores
        values = score_levels(scores)
        return cls(
            evidence=evidence,
            result=result,
            mistakes=find_mistakes(evidence, protocol, *_thresholds(protocol)),
            cuts=cuts,
            passing=scores >= least[evidence.detections.labels],
            values=values,
            levels=np.searchsorted(values, scores, side="right") - 1,
        )

    @property
    def iou(self) -> float:
        """The overlap from which a detection is right."""
        return self.mistakes.protocol.match_thresholds[0]

    @property
    def right(self) -> NDArray[np.bool_]:
        """(M,) detections that found an object."""
        return self.mistakes.of_detections == RIGHT

    @property
    def wrong(self) -> NDArray[np.bool_]:
        """(M,) false alarms of any type."""
        return (self.mistakes.of_detections != RIGHT) & (self.mistakes.of_detections != LEFT_OUT)

    @property
    def there(self) -> NDArray[np.bool_]:
        """(G,) objects that are there to be found."""
        return self.mistakes.of_objects != LEFT_OUT

    def costs(self) -> dict[str, Any]:
        """How many mistakes of each type there are, and the mAP that each type costs."""
        return summarise(self.mistakes, *_thresholds(self.result.protocol)).to_dict()

    def counts(self, rows: NDArray[np.bool_]) -> NDArray[np.int64]:
        """(K, 101) how many of these detections have each level as their highest, class by class."""
        shape = self.evidence.num_classes, len(self.values)
        places = self.evidence.detections.labels[rows] * shape[1] + self.levels[rows]
        return np.bincount(places, minlength=shape[0] * shape[1]).reshape(shape)

    def rates(self, passing: NDArray[np.bool_]) -> dict[str, Any]:
        """Counts, precision, recall and F1 over all classes with the detections that pass; None for 0 / 0."""
        right, wrong = (int(np.count_nonzero(rows & passing)) for rows in (self.right, self.wrong))
        objects = int(np.count_nonzero(self.there))
        return {
            "right": right,
            "wrong": wrong,
            "missed": objects - right,
            "precision": right / (right + wrong) if right + wrong else None,
            "recall": right / objects if objects else None,
            "f1": float(f1_of(right, right + wrong, objects)) if right + wrong + objects else None,
        }

    def common_level(self) -> int:
        """The level at which F1 over all classes is best; 0 where nothing is right."""
        verdicts = np.select([self.right, self.wrong], [TRUE_POSITIVE, FALSE_POSITIVE], IGNORED).astype(np.int8)
        ranked = np.argsort(-self.levels, kind="stable")
        scores = self.levels[ranked].astype(np.float64)  # all detections of a level pass together
        cut = best_cut(scores, verdicts[ranked], int(np.count_nonzero(self.there)))
        return int(cut.threshold or 0)

    def by_image(self) -> NDArray[np.int64]:
        """(3, images) right and wrong detections and missed objects, each class at its cut."""
        images = self.evidence.detections.images
        right, wrong, there = (
            np.bincount(rows, minlength=self.evidence.num_images)
            for rows in (
                images[self.right & self.passing],
                images[self.wrong & self.passing],
                self.evidence.objects.images[self.there],
            )
        )
        return np.stack([right, wrong, there - right])

    def found(self) -> NDArray[np.bool_]:
        """(G,) objects that are found with each class at its cut."""
        found = np.zeros(len(self.evidence.objects), dtype=np.bool_)
        found[self.mistakes.touched[self.right & self.passing]] = True
        return found

    def cut_at(self, passing: NDArray[np.bool_]) -> Mistakes:
        """The mistakes if the detections that pass were all there are."""
        rows = passing & taking_part(self.evidence, self.result.protocol)
        chosen = np.flatnonzero(rows)
        evidence = replace(self.evidence, detections=self.evidence.detections.take(chosen, self.evidence.overlap))
        return find_mistakes(evidence, self.result.protocol, *_thresholds(self.result.protocol))


def judged(evidence: Evidence, protocol: Protocol) -> EvaluationResult:
    """The evaluator's result; its warnings have been given to whoever evaluated before."""
    return result_from(judge(evidence, protocol), evidence, protocol)


def _thresholds(protocol: Protocol) -> tuple[float, float]:
    """The lowest match threshold, and the overlap below which a detection is on background."""
    lowest = min(protocol.match_thresholds)
    return lowest, min(BACKGROUND, lowest / 2)


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
