"""The detections and missed objects to draw on an image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepgrad.engine.matching import TRUE_POSITIVE
from stepgrad.evaluation.class_result import Cut, best_cut
from stepgrad.evaluation.counted import countable
from stepgrad.evaluation.edges import seen_by
from stepgrad.evaluation.judge import ClassJudgement, judge
from stepgrad.evaluation.records import Evidence
from stepgrad.evaluation.result import EvaluationResult, result_from
from stepgrad.metric.protocol import Protocol
from stepgrad.report.draw import Verdict


@dataclass(frozen=True)
class Mark:
    """One box on an image."""

    verdict: Verdict
    label: int
    score: float | None  # None: a missed object
    box: tuple[float, float, float, float]
    object: int | None  # row of the object that was found or missed


@dataclass(frozen=True)
class JudgedEvidence:
    """Detections judged under one protocol."""

    evidence: Evidence
    seen: Evidence  # the boxes as the protocol sees them
    rows: list[ClassJudgement]
    result: EvaluationResult

    @classmethod
    def under(cls, protocol: Protocol, evidence: Evidence) -> JudgedEvidence:
        seen = seen_by(evidence, protocol)
        rows = judge(seen, protocol)
        return cls(evidence, seen, rows, result_from(rows, seen, protocol))

    def cuts(self) -> list[Cut]:
        """The cut of every class, at the first match threshold."""
        return cuts_of(self.evidence, self.rows)

    def marks(self) -> list[list[Mark]]:
        """What to draw on every image."""
        return marks_by_image(self.evidence, self.rows, self.cuts(), self.result.protocol)


def cuts_of(evidence: Evidence, judged: Sequence[ClassJudgement]) -> list[Cut]:
    """The cut of every class, at the first match threshold."""
    return [best_cut(evidence.detections.scores[row.detections], row.verdicts[0], row.P) for row in judged]


def marks_by_image(
    evidence: Evidence, judged: Sequence[ClassJudgement], cuts: Sequence[Cut], protocol: Protocol
) -> list[list[Mark]]:
    """For every image: right detections, wrong ones, missed objects."""
    marks: list[list[Mark]] = [[] for _ in range(evidence.num_images)]
    missed = countable(evidence, protocol)
    for row, cut in zip(judged, cuts, strict=True):
        found_by = row.found[0, : cut.passing]
        for place in np.flatnonzero(row.verdicts[0, : cut.passing] <= TRUE_POSITIVE).tolist():
            detection, target = int(row.detections[place]), int(found_by[place])
            right = target >= 0
            if right:
                missed[target] = False
            box, score = evidence.detections.boxes[detection], float(evidence.detections.scores[detection])
            marks[int(evidence.detections.images[detection])].append(
                Mark("right" if right else "wrong", row.label, score, _corners(box), target if right else None)
            )
    objects = evidence.objects
    for target in np.flatnonzero(missed).tolist():
        box = _corners(objects.boxes[target])
        marks[int(objects.images[target])].append(Mark("missed", int(objects.labels[target]), None, box, target))
    return marks


def _corners(box: NDArray[np.float64]) -> tuple[float, float, float, float]:
    x1, y1, x2, y2 = box.tolist()
    return x1, y1, x2, y2


def describe_boxes(evidence: Evidence, marks: Sequence[Mark]) -> list[dict[str, Any]]:
    """The boxes of one image for the JSON."""
    return [
        {
            "verdict": mark.verdict,
            "class": evidence.class_names[mark.label],
            "score": mark.score,
            "box": list(mark.box),
        }
        for mark in marks
    ]


def tally(marks: Sequence[Mark]) -> tuple[int, int, int]:
    """How many are right, wrong and missed."""
    kinds = [mark.verdict for mark in marks]
    return kinds.count("right"), kinds.count("wrong"), kinds.count("missed")
