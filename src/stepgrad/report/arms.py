"""Several trainings of one detector in numbers: means over seeds, and gains seed by seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepgrad.evaluation.records import Evidence
from stepgrad.metric.protocol import Protocol
from stepgrad.number_text import mean_and_spread


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

    def maps(self, protocol: str) -> list[float]:
        """mAP of every seed, NaN where it was not measured or there are no objects."""
        return [run.get(protocol, math.nan) for run in self.runs]


def describe_arms(arms: Sequence[Arm], reference: int, protocols: Sequence[Protocol]) -> list[dict[str, Any]]:
    """The table: per protocol mean and standard deviation over runs, and gains over the reference."""
    names = [p.name for p in protocols]
    return [
        {
            "name": arm.name,
            "note": arm.note,
            "training": arm.training,
            "runs": [dict(run) for run in arm.runs],
            "maps": {name: spread(_finite(arm.maps(name))) for name in names},
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


def _finite(values: Sequence[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def _gain(arm: Arm, reference: Arm, protocol: str) -> dict[str, Any]:
    """mAP minus that of the reference, seed by seed, for the seeds that both have."""
    pairs = zip(arm.maps(protocol), reference.maps(protocol), strict=False)
    each = _finite([a - b for a, b in pairs])
    return {**spread(each), "ahead": sum(difference > 0 for difference in each), "each": each}


def winner(arms: Sequence[Arm], protocol: str) -> int | None:
    """The arm that beats every other by more than the standard deviation of the difference, seed by seed.

    It must have the largest mean too. One seed has no standard deviation, so it decides nothing.
    """
    means = [spread(_finite(arm.maps(protocol)))["mean"] for arm in arms]
    if len(arms) < 2 or None in means:
        return None
    best = max(range(len(arms)), key=means.__getitem__)
    gains = [_gain(arms[best], other, protocol) for k, other in enumerate(arms) if k != best]
    return best if all(gain["sd"] is not None and gain["mean"] > gain["sd"] for gain in gains) else None
