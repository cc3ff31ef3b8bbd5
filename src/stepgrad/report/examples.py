"""The images a detector does best and worst on, and the detections and missed objects to draw on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepgrad.evaluation.found import countable, found_objects
from stepgrad.evaluation.judge import ClassJudgement, Counting, judge
from stepgrad.evaluation.records import Evidence
from stepgrad.evaluation.result import Cut, EvaluationResult, best_cut, result_from
from stepgrad.kernels.matching import TRUE_POSITIVE
from stepgrad.metric.protocol import Protocol
from stepgrad.report.draw import Verdict

RULE = (
    "Each class has the score threshold that makes its F1 largest over all images; only detections that reach it are "
    "shown. An image's F is 2 right / (2 right + wrong + missed), over all its classes. Best: the largest F, then the "
    "most objects found. Worst: the smallest F, then the most mistakes. Objects the protocol sets aside (difficult "
    "ones, COCO's crowds), and detections of them, neither count nor show."
)


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
    """Continuous boxes judged under one protocol."""

    evidence: Evidence
    seen: Evidence  # the boxes as the protocol sees them
    rows: list[ClassJudgement]
    result: EvaluationResult

    @classmethod
    def under(cls, protocol: Protocol, evidence: Evidence) -> JudgedEvidence:
        seen = evidence.shrunk(protocol.pixel_offset)
        rows = judge(seen, Counting.of(protocol))
        return cls(evidence, seen, rows, result_from(rows, seen, protocol))

    def cuts(self) -> list[Cut]:
        """The cut of every class, at the first match threshold."""
        return cuts_of(self.evidence, self.rows)

    def marks(self) -> list[list[Mark]]:
        """What to draw on every image."""
        return marks_by_image(self.evidence, self.seen, self.rows, self.cuts(), self.result.protocol)


def cuts_of(evidence: Evidence, judged: Sequence[ClassJudgement]) -> list[Cut]:
    """The cut of every class, at the first match threshold."""
    return [best_cut(evidence.detections.scores[row.detections], row.verdicts[0], row.P) for row in judged]


def marks_by_image(
    evidence: Evidence, seen: Evidence, judged: Sequence[ClassJudgement], cuts: Sequence[Cut], protocol: Protocol
) -> list[list[Mark]]:
    """For every image: right detections, wrong ones, missed objects. `seen` has the boxes as the protocol sees them."""
    marks: list[list[Mark]] = [[] for _ in range(evidence.num_images)]
    missed = countable(evidence, protocol)
    for row, cut in zip(judged, cuts, strict=True):
        found_by = found_objects(seen, row, protocol)[: cut.passing]
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


def best_and_worst(marks: Sequence[Sequence[Mark]], shown: int) -> tuple[list[int], list[int]]:
    """Positions of up to `shown` images each, none in both; images with nothing to find or to show are left out."""
    counts = {i: tally(of_image) for i, of_image in enumerate(marks) if of_image}
    best = sorted(counts, key=lambda i: (-_f(*counts[i]), -counts[i][0], i))
    top = best[: min(shown, (len(best) + 1) // 2)]
    rest = sorted(best[len(top) :], key=lambda i: (_f(*counts[i]), -counts[i][1] - counts[i][2], i))
    return top, rest[:shown]


def describe_image(evidence: Evidence, position: int, marks: Sequence[Mark]) -> dict[str, Any]:
    """One image for the JSON."""
    right, wrong, missed = tally(marks)
    return {
        "image": str(evidence.image_ids[position]),
        "f": _f(right, wrong, missed),
        "right": right,
        "wrong": wrong,
        "missed": missed,
        "boxes": describe_boxes(evidence, marks),
    }


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


def _f(right: int, wrong: int, missed: int) -> float:
    return 2 * right / (2 * right + wrong + missed)
