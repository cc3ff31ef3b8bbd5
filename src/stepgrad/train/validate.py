"""Running a detector over a dataset, and what its scores are worth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from stepgrad.evaluation import Evaluator
from stepgrad.evaluation.result import ClassResult, EvaluationResult
from stepgrad.train.features import ImageSource
from stepgrad.train.inputs import Data
from stepgrad.train.progress import Progress, QuietProgress

if TYPE_CHECKING:
    from stepgrad.detector import FastRCNN

IMAGES_AT_ONCE = 4


@torch.no_grad()
def validate(
    model: FastRCNN,
    data: Data,
    protocols: Sequence[str],
    progress: Progress | None = None,
    source: ImageSource | None = None,
    between: Callable[[], None] = lambda: None,
    what: str = "validating",
) -> Evaluator:
    """Detect on every image of `data`; the evaluator that comes back has seen all of it.

    Args:
        between: called now and then; may raise to cut the work short.
    """
    source = source or ImageSource()
    evaluator = Evaluator(len(data.dataset.class_names), list(protocols), data.dataset.class_names, boxes="continuous")
    training = model.training
    model.eval()
    try:
        with (progress or QuietProgress()).stage(what, len(data)) as tick:
            for first in range(0, len(data), IMAGES_AT_ONCE):
                examples = [source.example(data, i) for i in range(first, min(first + IMAGES_AT_ONCE, len(data)))]
                detections = model([e.image for e in examples], [e.windows for e in examples])
                evaluator.update(detections, [e.target for e in examples])
                for _ in examples:
                    tick()
                between()
    finally:
        model.train(training)
    return evaluator


def best_thresholds(result: EvaluationResult) -> dict[str, float]:
    """By class, the score at which F1 is best; classes never found have none."""
    found = {row.name: _best_threshold(row) for row in result.classes}
    return {name: score for name, score in found.items() if score is not None}


def _best_threshold(row: ClassResult) -> float | None:
    curve = row.curve()
    if row.objects == 0 or not (curve.recall > 0).any():
        return None
    f1 = 2 * curve.precision * curve.recall / np.maximum(curve.precision + curve.recall, 1e-12)
    return float(curve.scores[int(np.argmax(f1))])
