"""How sure the numbers of `stepgrad evaluate` are: its images are drawn anew, alone or in groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepgrad.errors import whole_number
from stepgrad.evaluation.intervals import RESAMPLES, affordable
from stepgrad.evaluation.result import EvaluationResult
from stepgrad.metric.metrics import AVERAGE_PRECISION

LEVEL = 0.95
"""The probability of every interval that is printed."""


@dataclass(frozen=True)
class DrawnImages:
    """What was asked for."""

    resamples: int | None
    """None: the usual number, where it takes no longer than the evaluation."""
    seed: int
    groups: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.resamples is not None:
            whole_number("resamples", self.resamples, least=0)
        whole_number("seed", self.seed, least=0)

    @property
    def number(self) -> int:
        return RESAMPLES if self.resamples is None else self.resamples


def with_intervals(results: Sequence[EvaluationResult], draws: DrawnImages) -> tuple[Sequence[EvaluationResult], str]:
    """The results with intervals; or as they are, with a line that says why not."""
    left_out = _why_not(results, draws)
    if left_out is not None:
        return results, left_out
    return [r.with_intervals(LEVEL, resamples=draws.number, seed=draws.seed, groups=draws.groups) for r in results], ""


def _why_not(results: Sequence[EvaluationResult], draws: DrawnImages) -> str | None:
    """Why no intervals are told; empty if nobody asked, None if they are."""
    first = results[0]
    if draws.resamples == 0:
        return ""
    if (first.images if draws.groups is None else len(set(draws.groups))) < 2:
        return "no intervals: a single image, or group of images, does not say how much others would differ"
    if draws.resamples is None and not all(_quick(result) for result in results):
        return (
            f"no intervals: for {first.detections} detections they take longer than the evaluation; "
            f"--resamples {RESAMPLES} finds them"
        )
    return None


def _quick(result: EvaluationResult) -> bool:
    metrics = [found.metric for found in result.metrics.values() if found.metric is not None]
    return affordable(result.detections, len(result.classes), result.protocol, [AVERAGE_PRECISION, *metrics])
