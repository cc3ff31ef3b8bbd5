"""What a head is worth in a product: at a threshold per class that held-out images chose, on images it never saw."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import nn

from stepgrad.engine.matching import IGNORED, TRUE_POSITIVE
from stepgrad.evaluation.class_result import ClassResult
from stepgrad.evaluation.result import EvaluationResult
from stepgrad.metric.metrics import RecallAtPrecision
from stepgrad.metric.protocol import VOC12
from stepgrad.models.fine_tuning.outputs import Reading
from stepgrad.models.fine_tuning.training import Task, detections
from stepgrad.models.fine_tuning.windows import Labelled

PRECISION = 0.9
AROUND = (0.8, 0.825, 0.85, 0.875, 0.9, 0.925, 0.95)
FALSE_ALARM, MISS = 1.0, 10.0


@dataclass(frozen=True)
class ClassList:
    """A class's detections by decreasing score."""

    scores: NDArray[np.float64]
    hits: NDArray[np.bool_]
    objects: int

    @classmethod
    def of(cls, row: ClassResult) -> ClassList:
        counted = row.verdicts[0] != IGNORED
        return cls(row.scores[counted], row.verdicts[0][counted] == TRUE_POSITIVE, row.objects)

    @property
    def ends(self) -> NDArray[np.bool_]:
        """Where a threshold can cut: not between equal scores."""
        return np.append(self.scores[1:] < self.scores[:-1], True)

    def at(self, threshold: float) -> tuple[int, int]:
        """Hits and false alarms of what passes a threshold."""
        passed = self.scores >= threshold
        found = int(self.hits[passed].sum())
        return found, int(passed.sum()) - found

    def cost(self, threshold: float) -> float:
        found, alarms = self.at(threshold)
        return FALSE_ALARM * alarms + MISS * (self.objects - found)


def cheapest(ranked: ClassList) -> float:
    """The threshold of the lowest cost; infinity if nothing should pass."""
    found = np.cumsum(ranked.hits)
    costs = FALSE_ALARM * (np.arange(1, len(found) + 1) - found) + MISS * (ranked.objects - found)
    costs = np.where(ranked.ends, costs, np.inf) if len(costs) else costs
    if not len(costs) or costs.min() >= MISS * ranked.objects:
        return math.inf
    return float(ranked.scores[int(np.argmin(costs))])


def precise(ranked: ClassList) -> float:
    """The lowest threshold at which the precision is high enough; infinity if there is none."""
    found = np.cumsum(ranked.hits)
    enough = (found / np.arange(1, len(found) + 1) >= PRECISION) & ranked.ends if len(found) else ranked.hits
    return float(ranked.scores[np.flatnonzero(enough)[-1]]) if enough.any() else math.inf


def lists_of(head: nn.Module, images: Sequence[Labelled], num_classes: int, nms: float) -> EvaluationResult:
    reading = Reading(num_classes)
    return detections(head, images, Task(reading, VOC12, nms, reading.stock_loss)).compute()


def thresholds_of(result: EvaluationResult, choose: Callable[[ClassList], float]) -> list[float]:
    return [choose(ClassList.of(row)) for row in result.classes]


def judge(held_out: EvaluationResult, test: EvaluationResult) -> dict[str, float]:
    """All in per cent, but the cost per image."""
    lists = [ClassList.of(row) for row in test.classes]
    sure, cheap = thresholds_of(held_out, precise), thresholds_of(held_out, cheapest)
    at_sure = [ranked.at(threshold) for ranked, threshold in zip(lists, sure, strict=True)]
    recall = [found / ranked.objects for ranked, (found, _) in zip(lists, at_sure, strict=True) if ranked.objects]
    hits, alarms = (sum(counts) for counts in zip(*at_sure, strict=True))
    cost = sum(ranked.cost(threshold) for ranked, threshold in zip(lists, cheap, strict=True)) / test.images
    return {
        "map": round(100 * test.map, 2),
        "recall": round(100 * test.metric(RecallAtPrecision(PRECISION)).value, 2),
        "around": round(100 * float(np.mean([test.metric(RecallAtPrecision(p)).value for p in AROUND])), 2),
        "deployed recall": round(100 * float(np.mean(recall)), 2),
        "deployed precision": round(100 * hits / max(hits + alarms, 1), 2),
        "cost": round(cost, 4),
    }
