"""The fusion of several models' detections, tuned on some of the images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from stepgrad.errors import ConfigError, InputError
from stepgrad.evaluation.evaluator import Evaluator
from stepgrad.models.rescore.fuse import Detections, Fusion, fusions_tried, tuned_fusion
from stepgrad.progress import bar, ticker

_MOST = 500
"""Images by which weights are tuned."""


def fitted_fusion(
    several: Sequence[Detections],
    targets: Detections,
    new_evaluator: Callable[[], Evaluator],
    seed: int,
    show_progress: bool,
) -> tuple[Fusion, list[float]]:
    """The fusion, and the mAP of each model by itself and of the fusion on the images that it was tuned on."""
    if new_evaluator().overlap.key != "boxes":
        raise ConfigError(
            f"Expected task='boxes' for several models, whose boxes are averaged, but got {new_evaluator().overlap.key!r}."
        )
    if len(several) < 2:
        raise InputError(f"Expected detections of at least two models but got {len(several)}.")
    order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(seed)).tolist()[:_MOST]
    objects = [{name: value for name, value in targets[i].items() if name != "image_id"} for i in order]
    some = [[found[i] for i in order] for found in several]

    def value(found: Sequence[Any]) -> float:
        evaluator = new_evaluator()
        evaluator.update(found, objects)
        return float(evaluator.compute().map)

    with bar(show_progress) as watch:
        fusion = tuned_fusion(some, value, ticker(watch, "tuning the fusion", fusions_tried(len(several))))
    return fusion, [*map(value, some), value(fusion.apply(some)[0])]
