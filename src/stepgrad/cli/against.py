"""`stepgrad evaluate --against`: two files of detections on the same images, and whether these can tell which is better."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepgrad.cli.certainty import DrawnImages
from stepgrad.errors import ConfigError, DataError
from stepgrad.evaluation.intervals import FEW_IMAGES, affordable
from stepgrad.evaluation.paired import PairedComparison, compare
from stepgrad.evaluation.records import Evidence
from stepgrad.evaluation.result import EvaluationResult, evaluate_under
from stepgrad.evaluation.tables import plain_table
from stepgrad.metric.list_metric import ListMetric
from stepgrad.metric.metrics import AVERAGE_PRECISION
from stepgrad.metric.protocol import Protocol
from stepgrad.number_text import counted, metric_text, part_counted

SHOWN = 5
"""Images that made the difference, unless another number is asked for."""


@dataclass(frozen=True)
class Against:
    """Two results, compared by mAP and by the metrics that were asked for."""

    results: tuple[EvaluationResult, EvaluationResult]
    comparisons: list[PairedComparison]
    effects: list[tuple[Any, float]] | None
    """Images, or the first of each group, with what they made of the difference of mAP; None where they were not looked for."""
    notes: list[str]

    def __str__(self) -> str:
        texts = list(map(str, self.comparisons))
        if self.effects:
            rows = [[str(image), metric_text("ap", change)] for image, change in self.effects]
            texts.insert(1, plain_table(["image", "what it made of the difference"], rows))
        return "\n\n".join(texts)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and lists for json."""
        effects = self.effects or []
        return {
            "comparisons": [found.to_dict() for found in self.comparisons],
            "images": [{"image": str(image), "difference": change} for image, change in effects],
            "results": [result.to_dict() for result in self.results],
        }


def compare_with(
    evidences: tuple[Evidence, Evidence],
    names: tuple[str, str],
    protocol: Protocol,
    metrics: Sequence[ListMetric],
    draws: DrawnImages,
    images: int | None,
) -> Against:
    """Judge both and compare them; `images` is how many of those that made the difference to look for."""
    if draws.resamples == 0:
        raise ConfigError(
            "resamples: expected at least 1 with --against, whose interval is found by resampling, but got 0."
        )
    notes = list(_on_different_images(evidences, names))
    a, b = (evaluate_under(evidence, protocol, metrics) for evidence in evidences)
    comparisons = [
        compare(a, b, metric=metric, resamples=draws.number, seed=draws.seed, groups=draws.groups, names=names)
        for metric in dict.fromkeys([AVERAGE_PRECISION, *metrics])
    ]
    first = comparisons[0]
    if first.images < FEW_IMAGES:
        notes.append(f"too few images ({first.images}) to say how sure this is")
    wanted = images if images is not None else SHOWN if _quick(a, b, first.images) else None
    if wanted is None:
        notes.append(
            f"images that made the difference were left out, since they take long to find; --images {SHOWN} finds them"
        )
    return Against((a, b), comparisons, None if wanted is None else first.effects(wanted), notes)


def _quick(a: EvaluationResult, b: EvaluationResult, units: int) -> bool:
    """Whether leaving out every image in turn takes no longer than the evaluation."""
    return affordable(a.detections + b.detections, 2 * len(a.classes), a.protocol, [AVERAGE_PRECISION], units)


def _on_different_images(evidences: tuple[Evidence, Evidence], names: tuple[str, str]) -> Iterator[str]:
    """A note where only one of the two has detections of an image; DataError where no image has detections of both."""
    a, b = (set(np.unique(evidence.detections.images).tolist()) for evidence in evidences)
    if a and b and not a & b:
        raise DataError(
            f"{names[0]} and {names[1]} have detections on no common image: the first on {counted(len(a), 'image')}, the second "
            f"on {counted(len(b), 'other image')}; run both detectors on the same images"
        )
    for name, missing in zip(names, (b - a, a - b), strict=True):
        if missing:
            example = evidences[0].image_ids[min(missing)]
            said = part_counted(len(missing), evidences[0].num_images, "image", "have")
            yield f"{said} detections of the other file but none of {name}, such as {example}: counted as nothing found there"
