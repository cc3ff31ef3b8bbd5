"""Several trainings of one detector in numbers: means over seeds, gains seed by seed, precision over recall."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np

from stepgrad.evaluation.records import Evidence
from stepgrad.evaluation.result import ClassResult, EvaluationResult
from stepgrad.metric.protocol import Protocol
from stepgrad.number_text import mean_and_spread

LEVELS = 101
"""Recalls at which curves are read, 0 and 1 among them."""
STRICT_IOU = 0.75
"""The second threshold that curves are drawn at, or the one nearest to it."""


@dataclass(frozen=True)
class Arm:
    """One of several trainings of a detector, judged on the same test images as the others."""

    name: str
    note: str
    """One line: what was done."""
    runs: Sequence[Mapping[str, float]]
    """One per seed: name of a protocol -> mAP (0 to 1). Gains pair the runs at the same position, so arms list their
    seeds in the same order; weights that were not trained are listed once per seed."""
    evidence: Evidence
    """Detections of the first seed, continuous boxes: `Evaluator.evidence()`."""
    seconds: float | None = None
    """Of training, the mean per seed."""
    training: str = ""
    """What was done, in words that stand behind the name in a sentence."""


def describe_arms(arms: Sequence[Arm], reference: int, protocols: Sequence[Protocol]) -> list[dict[str, Any]]:
    """The table: per protocol mean and standard deviation over runs, and gains over the reference."""
    names = [p.name for p in protocols]
    return [
        {
            "name": arm.name,
            "note": arm.note,
            "training": arm.training,
            "runs": [dict(run) for run in arm.runs],
            "maps": {name: spread([run[name] for run in arm.runs if _has(run, name)]) for name in names},
            "gains": {name: None if k == reference else _gain(arm, arms[reference], name) for name in names},
            "seconds": arm.seconds,
            "detections": len(arm.evidence.detections),
        }
        for k, arm in enumerate(arms)
    ]


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Mean and sample standard deviation; None where there are too few values.

    >>> spread([0.25, 0.75])["mean"], spread([0.5])
    (0.5, {'mean': 0.5, 'sd': None, 'seeds': 1})
    """
    mean, sd = mean_and_spread(values) if values else (None, None)
    return {"mean": mean, "sd": sd if len(values) > 1 else None, "seeds": len(values)}


def _has(run: Mapping[str, float], name: str) -> bool:
    """Whether a run has this mAP. NaN, which is that of images without objects, is none."""
    return math.isfinite(run.get(name, math.nan))


def differences(arm: Arm, other: Arm, protocol: str) -> list[float]:
    """mAP of the one minus that of the other, seed by seed, for the seeds that both have."""
    pairs = zip(arm.runs, other.runs, strict=False)
    return [a[protocol] - b[protocol] for a, b in pairs if _has(a, protocol) and _has(b, protocol)]


def _gain(arm: Arm, reference: Arm, protocol: str) -> dict[str, Any]:
    each = differences(arm, reference, protocol)
    return {**spread(each), "ahead": sum(difference > 0 for difference in each), "each": each}


def winner(arms: Sequence[Arm], protocol: str) -> int | None:
    """The arm that beats every other by more than the standard deviation of the difference, seed by seed.

    It must have the largest mean too. One seed has no standard deviation, so it decides nothing.
    """
    means = [spread([run[protocol] for run in arm.runs if _has(run, protocol)])["mean"] for arm in arms]
    if len(arms) < 2 or None in means:
        return None
    best = max(range(len(arms)), key=means.__getitem__)
    others = [other for k, other in enumerate(arms) if k != best]
    return best if all(_beats(spread(differences(arms[best], other, protocol))) for other in others) else None


def _beats(difference: Mapping[str, Any]) -> bool:
    return difference["sd"] is not None and difference["mean"] > difference["sd"]


def describe_curves(results: Sequence[EvaluationResult], reference: int, chosen: int) -> list[dict[str, Any]]:
    """Precision at evenly spaced recalls, for one or two IoU thresholds: mean over classes, then class by class."""
    protocol = results[0].protocol
    return [
        {
            "iou": iou,
            "maps": [result.map_at(iou) for result in results],
            "mean": [mean_precision([precision_at_levels(row, iou, protocol) for row in r.classes]) for r in results],
            "classes": [
                _class_curves([result.classes[c] for result in results], iou, protocol, reference, chosen)
                for c in range(len(results[0].classes))
            ],
        }
        for iou in curve_thresholds(protocol)
    ]


def curve_thresholds(protocol: Protocol) -> list[float]:
    """The first match threshold and, of several, the one nearest to 0.75.

    >>> from stepgrad.metric.protocol import COCO, VOC12
    >>> curve_thresholds(COCO), curve_thresholds(VOC12)
    ([0.5, 0.75], [0.5])
    """
    thresholds = protocol.match_thresholds
    return list(dict.fromkeys([thresholds[0], min(thresholds, key=lambda t: abs(t - STRICT_IOU))]))


def precision_at_levels(row: ClassResult, iou: float, protocol: Protocol) -> list[float] | None:
    """The best precision at each recall or beyond, 0 where it is never reached; None for a class without objects."""
    if row.objects == 0:
        return None
    curve = row.curve(iou)
    counts, _ = replace(protocol, recall_levels=LEVELS).level_counts(row.objects)
    needed = np.repeat(np.arange(len(counts)), counts)  # true positives that each level asks for
    true_positives = np.rint(curve.recall * row.objects)
    best = np.append(curve.interpolated, 0.0)[np.searchsorted(true_positives, needed)]
    return [float(value) for value in best]


def mean_precision(curves: Sequence[list[float] | None]) -> list[float] | None:
    """The mean over the classes that have objects."""
    present = [curve for curve in curves if curve is not None]
    return [fmean(values) for values in zip(*present, strict=True)] if present else None


def _class_curves(
    rows: Sequence[ClassResult], iou: float, protocol: Protocol, reference: int, chosen: int
) -> dict[str, Any]:
    present = rows[0].objects > 0
    aps = [row.ap_by_threshold[iou] if present else None for row in rows]
    change = rows[chosen].ap_by_threshold[iou] - rows[reference].ap_by_threshold[iou]
    return {
        "name": rows[0].name,
        "objects": rows[0].objects,
        "aps": aps,
        "change": change if present and chosen != reference else None,
        "precision": [precision_at_levels(row, iou, protocol) for row in rows],
    }
