"""Running a detector over a dataset, and what its scores are worth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from stepgrad.evaluation import Evaluator
from stepgrad.evaluation.best_f1 import best_cut
from stepgrad.evaluation.result import EvaluationResult
from stepgrad.losses.collectives import gather_objects, rank, world
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
    """Detect on every image of `data`, each process on its share; the evaluator that comes back has seen all of it.

    Args:
        between: called now and then; may raise to cut the work short.
    """
    source = source or ImageSource()
    evaluator = Evaluator(len(data.dataset.class_names), list(protocols), data.dataset.class_names, boxes="continuous")
    training = model.training
    model.eval()
    found: dict[int, tuple[Any, Any]] = {}
    share = range(len(data))[rank() :: world()]
    try:
        with (progress or QuietProgress()).stage(what, len(share)) as tick:
            for first in range(0, len(share), IMAGES_AT_ONCE):
                chosen = share[first : first + IMAGES_AT_ONCE]
                examples = [source.example(data, i) for i in chosen]
                detections = model([e.image for e in examples], [e.windows for e in examples])
                found.update({i: (d, e.target) for i, d, e in zip(chosen, detections, examples, strict=True)})
                for _ in examples:
                    tick()
                between()
    finally:
        model.train(training)
    for part in gather_objects(found):
        found.update(part)
    in_order = [found[i] for i in range(len(data))]
    evaluator.update([d for d, _ in in_order], [target for _, target in in_order])
    return evaluator


def best_thresholds(result: EvaluationResult) -> dict[str, float]:
    """By class, the score at which F1 is best; classes never found have none."""
    cuts = {row.name: best_cut(row.scores, row.verdicts[0], row.objects) for row in result.classes}
    return {name: cut.threshold for name, cut in cuts.items() if cut.threshold is not None}
