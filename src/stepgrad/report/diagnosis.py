"""What is wrong with a detector, in numbers: mistakes by type, classes confused, scores and what they are worth, sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepgrad.evaluation.errors_by_type import LEFT_OUT, RIGHT, TYPES, Mistakes, find_mistakes, summarise
from stepgrad.evaluation.judge import taking_part
from stepgrad.evaluation.metrics import metric_under
from stepgrad.evaluation.records import Detections, Evidence
from stepgrad.evaluation.result import EvaluationResult
from stepgrad.metric.options import get_metric
from stepgrad.metric.protocol import Protocol
from stepgrad.report.levels import STEPS, Graded, are_probabilities

BARS = 20
"""Bars of the histogram of scores."""
BINS = 10
"""Points of the calibration curve."""
ENOUGH = 30
"""Detections of a point from which its share of right ones is known to 10 points or so: sqrt(0.25 / 30) = 0.09."""
SIZES = ("small", "medium", "large")
"""COCO's: below 32 x 32 pixels, below 96 x 96, and the rest."""


@dataclass(frozen=True, eq=False)
class Findings:
    """Detections with their mistakes at the lowest match threshold, and their scores by class and level."""

    evidence: Evidence
    mistakes: Mistakes
    graded: Graded
    threshold: float
    background: float

    @classmethod
    def of(cls, evidence: Evidence, protocol: Protocol) -> Findings:
        threshold, background = thresholds_of(protocol)
        mistakes = find_mistakes(evidence, protocol, threshold, background)
        return cls(evidence, mistakes, Graded.of(evidence, mistakes), threshold, background)

    def numbers(self, protocol: Protocol, result: EvaluationResult) -> dict[str, Any]:
        """All of it, for the JSON."""
        return {
            "mistakes": summarise(self.mistakes, self.threshold, self.background).to_dict(),
            "working": self.graded.at_own(),
            "common": self.graded.at(self.graded.best_level()),
            "by_score": self.graded.by_score(),
            "confusion": confusion(self.cut(protocol, self.graded.passing)),
            "scores": score_bars(self.graded),
            "calibration": calibration(self.evidence, self.mistakes),
            "sizes": sizes(self, protocol, result),
        }

    def cut(self, protocol: Protocol, passing: NDArray[np.bool_]) -> Mistakes:
        """The mistakes of those detections alone that pass, the best of each class."""
        rows = passing & taking_part(self.evidence, protocol)
        kept = replace(self.evidence, detections=_rows(self.evidence.detections, rows))
        return find_mistakes(kept, protocol, self.threshold, self.background)


def thresholds_of(protocol: Protocol) -> tuple[float, float]:
    """The lowest match threshold, and the overlap below which a detection is on background.

    That is a tenth as in TIDE, unless the match threshold is lower still.
    """
    threshold = min(protocol.match_thresholds)
    return threshold, min(0.1, threshold / 2)


def _rows(detections: Detections, rows: NDArray[np.bool_]) -> Detections:
    chosen: Detections = detections.take(rows)
    return chosen


def confusion(mistakes: Mistakes) -> dict[str, Any]:
    """How often an object of one class was taken for another; pairs that never happened are left out.

    Every object and every detection is counted once. An object is found, or taken for another class by the highest
    detection that lies on it, or missed (no detection); a detection without an object of its own is a false alarm (no
    object).
    """
    kinds, labels = mistakes.of_detections, mistakes.evidence.detections.labels
    of_objects, object_labels = mistakes.of_objects, mistakes.evidence.objects.labels
    taken = (kinds == TYPES.index("class")) & (mistakes.claimed >= 0)
    alarms = (kinds != RIGHT) & (kinds != LEFT_OUT) & ~taken
    missed = (of_objects != LEFT_OUT) & (of_objects != RIGHT) & (of_objects != TYPES.index("class"))
    counts: Counter[tuple[int | None, int | None]] = Counter()
    counts.update((label, label) for label in labels[kinds == RIGHT].tolist())
    counts.update(zip(object_labels[mistakes.claimed[taken]].tolist(), labels[taken].tolist(), strict=True))
    counts.update((None, label) for label in labels[alarms].tolist())
    counts.update((label, None) for label in object_labels[missed].tolist())
    order = sorted(counts, key=lambda pair: tuple(-1 if label is None else label for label in pair))
    return {"cells": [{"object": a, "detection": b, "count": counts[a, b]} for a, b in order]}


def score_bars(graded: Graded) -> dict[str, Any]:
    """Hits and false alarms in bars of equal width; the last one has the highest score in it too."""
    return {
        "from": float(graded.values[0]),
        "to": float(graded.values[-1]),
        "hits": _bars(graded.hits.sum(axis=0)),
        "alarms": _bars(graded.alarms.sum(axis=0)),
    }


def _bars(counts: NDArray[np.int64]) -> list[int]:
    wide: list[int] = counts[:STEPS].reshape(BARS, -1).sum(axis=1).tolist()
    wide[-1] += int(counts[STEPS])
    return wide


def calibration(evidence: Evidence, mistakes: Mistakes) -> dict[str, Any] | None:
    """Mean score against the share that is right, by score; None where scores are no probabilities.

    `error` is the expected calibration error: the mean distance between the two, every detection counting alike. Most
    detections have scores near 0, so it can be small where high scores are far off. `worst` is the place of the point that is
    furthest off among those with enough detections to say so, None where no point has.
    """
    counted = mistakes.of_detections != LEFT_OUT
    scores, right = evidence.detections.scores[counted], mistakes.of_detections[counted] == RIGHT
    if not (len(scores) and are_probabilities(evidence.detections.scores)):
        return None
    places = np.minimum((scores * BINS).astype(np.int64), BINS - 1)
    points = [
        {"count": int(np.count_nonzero(of)), "score": float(scores[of].mean()), "right": float(right[of].mean())}
        for of in (places == place for place in range(BINS))
        if of.any()
    ]
    error = sum(point["count"] * abs(point["score"] - point["right"]) for point in points) / len(scores)
    sure = [k for k, point in enumerate(points) if point["count"] >= ENOUGH]
    worst = max(sure, key=lambda k: abs(points[k]["score"] - points[k]["right"]), default=None)
    return {"points": points, "count": len(scores), "error": error, "worst": worst}


def sizes(findings: Findings, protocol: Protocol, result: EvaluationResult) -> list[dict[str, Any]]:
    """Objects and found ones by size, each class at its own cut, and the AP of each size as COCO counts it."""
    mistakes, objects = findings.mistakes, findings.evidence.objects
    there = mistakes.of_objects != LEFT_OUT
    found = np.zeros(len(objects), dtype=np.bool_)
    found[mistakes.touched[(mistakes.of_detections == RIGHT) & findings.graded.passing]] = True
    rows = []
    for name in SIZES:
        metric = get_metric(f"ap@area={name}")
        low, high = metric.area or (0.0, np.inf)
        # Each object has one size here. To COCO's AP one of exactly 32 x 32 is both small and medium.
        of_size = there & (objects.area >= low) & ((objects.area < high) | (name == SIZES[-1]))
        count, hit = int(np.count_nonzero(of_size)), int(np.count_nonzero(of_size & found))
        ap = metric_under(findings.evidence, _as_coco_matches(protocol), result.classes, metric).value
        rows.append(
            {
                "name": name,
                "objects": count,
                "found": hit,
                "recall": hit / count if count else None,
                "ap": ap if count else None,
            }
        )
    return rows


def _as_coco_matches(protocol: Protocol) -> Protocol:
    """The protocol with the only rules that know sizes."""
    return replace(protocol, duplicates="best_free", overlaps="double")


def confused_classes(numbers: Mapping[str, Any], classes: int, most: int) -> list[int]:
    """The labels to show in a table of limited size: those with the most mistakes, in the order of the classes."""
    wrong: Counter[int] = Counter()
    for cell in numbers["cells"]:
        if cell["object"] != cell["detection"]:
            wrong.update({label: cell["count"] for label in (cell["object"], cell["detection"]) if label is not None})
    return sorted(sorted(range(classes), key=lambda label: (-wrong[label], label))[:most])
