"""The rules of PASCAL VOC's evaluator, in the order in which its code goes through them, and those of its Python port.

The devkit (VOCevaldet.m of 2007, VOCap.m of 2010): one class at a time, detections from one file by decreasing confidence
(a stable sort, so equal ones stay in the order of the file), corners included in the box, overlap compared with >=.
The port found in py-faster-rcnn and detectron2: the same, but overlap compared with >, recall levels from a float range,
and no protection against 0 / 0. How the devkit spaces its eleven levels in floating point is not settled, so here they
are the fractions 0/10 to 10/10.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

Box = Sequence[float]
NAN = math.nan


@dataclass(frozen=True)
class Truth:
    """The objects of one class in one image."""

    boxes: Sequence[Box]
    difficult: Sequence[bool]


@dataclass(frozen=True)
class Line:
    """One line of a results file."""

    image: str
    confidence: float
    box: Box


@dataclass(frozen=True)
class Curve:
    """Counts after each detection; `positives` is what there was to find."""

    true: list[int]
    false: list[int]
    positives: int

    def precision(self) -> list[float]:
        """0 / 0 is nan, as in the devkit: nothing has been counted yet."""
        return [t / (t + f) if t + f else NAN for t, f in zip(self.true, self.false, strict=True)]

    def recall(self) -> list[Fraction | None]:
        return [Fraction(t, self.positives) if self.positives else None for t in self.true]


def largest(values: Sequence[float]) -> float:
    """The devkit's language passes over nan when it looks for the largest; 0 where there is nothing to look at."""
    numbers = [v for v in values if not math.isnan(v)]
    return max(numbers) if numbers else 0.0


def find_overlap(box: Box, other: Box) -> float | None:
    """Overlap of two boxes whose corners are part of them; None if they do not meet."""
    left, top = max(box[0], other[0]), max(box[1], other[1])
    right, bottom = min(box[2], other[2]), min(box[3], other[3])
    width, height = right - left + 1, bottom - top + 1
    if not (width > 0 and height > 0):
        return None
    own = (box[2] - box[0] + 1) * (box[3] - box[1] + 1)
    others = (other[2] - other[0] + 1) * (other[3] - other[1] + 1)
    return width * height / (own + others - width * height)


def detection_curve(
    truths: dict[str, Truth], lines: Sequence[Line], least: float, enough: Callable[[float, float], bool]
) -> Curve:
    """Go through the detections by decreasing confidence and give each to its object."""
    positives = sum(not hard for truth in truths.values() for hard in truth.difficult)
    detected = {image: [False] * len(truth.boxes) for image, truth in truths.items()}
    true, false = 0, 0
    curve = Curve([], [], positives)
    for line in sorted(lines, key=lambda line: -line.confidence):
        truth = truths[line.image]
        best, which = -math.inf, -1
        for j, box in enumerate(truth.boxes):
            overlap = find_overlap(line.box, box)
            if overlap is not None and overlap > best:
                best, which = overlap, j
        if enough(best, least):
            if not truth.difficult[which]:
                if not detected[line.image][which]:
                    true += 1
                    detected[line.image][which] = True
                else:
                    false += 1  # found before
        else:
            false += 1
        curve.true.append(true)
        curve.false.append(false)
    return curve


def devkit_curve(truths: dict[str, Truth], lines: Sequence[Line], least: float = 0.5) -> Curve:
    return detection_curve(truths, lines, least, lambda overlap, wanted: overlap >= wanted)


def port_curve(truths: dict[str, Truth], lines: Sequence[Line], least: float = 0.5) -> Curve:
    return detection_curve(truths, lines, least, lambda overlap, wanted: overlap > wanted)


def devkit_ap11(curve: Curve) -> float:
    """The mean over eleven recall levels of the best precision at that recall or beyond.

    >>> devkit_ap11(Curve([1, 1, 1, 2], [0, 1, 2, 2], 2)) == (6 * 1 + 5 * 0.5) / 11
    True
    """
    precision, recall = curve.precision(), curve.recall()
    best = [
        largest([p for p, r in zip(precision, recall, strict=True) if r is not None and r >= Fraction(q, 10)])
        for q in range(11)
    ]
    return math.fsum(best) / 11


def devkit_area(curve: Curve) -> float:
    """The area under the curve made to fall: between two recalls, the best precision further on.

    >>> devkit_area(Curve([1, 1, 1, 2], [0, 1, 2, 2], 2))
    0.75
    """
    if not curve.positives:
        return 0.0
    recall = [Fraction(0), *(r for r in curve.recall() if r is not None), Fraction(1)]
    precision = [0.0, *curve.precision(), 0.0]
    for i in range(len(precision) - 2, -1, -1):
        precision[i] = largest([precision[i], precision[i + 1]])
    steps = [i for i in range(1, len(recall)) if recall[i] != recall[i - 1]]
    return math.fsum(float(recall[i] - recall[i - 1]) * precision[i] for i in steps)


def port_ap11(curve: Curve, safe: bool = True) -> float:
    """Eleven levels 0, 0.1, ... as floats. The first port was not `safe`: 0 / 0 gave nan, and nan spread."""
    true, false = np.array(curve.true, dtype=np.float64), np.array(curve.false, dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):  # some versions of NumPy warn of either
        recall = true / np.float64(curve.positives)
        counted = np.maximum(true + false, np.finfo(np.float64).eps) if safe else true + false
        precision = true / counted
    total = 0.0
    for level in np.arange(0.0, 1.1, 0.1):
        reached = recall >= level
        total += (np.max(precision[reached]) if reached.any() else 0.0) / 11.0
    return float(total)


def port_area(curve: Curve) -> float:
    """The area as the port has it; nan for a class without objects."""
    true, false = np.array(curve.true, dtype=np.float64), np.array(curve.false, dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):  # some versions of NumPy warn of either
        recall = np.concatenate([[0.0], true / np.float64(curve.positives), [1.0]])
        precision = np.concatenate([[0.0], true / np.maximum(true + false, np.finfo(np.float64).eps), [0.0]])
        envelope = np.maximum.accumulate(precision[::-1])[::-1]
        moved = np.flatnonzero(recall[1:] != recall[:-1])
        return float(np.sum((recall[moved + 1] - recall[moved]) * envelope[moved + 1]))
