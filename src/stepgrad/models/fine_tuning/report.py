"""The page of a fine-tuning: every way side by side on the images that were held out of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from stepgrad.models.fine_tuning.result import CROSS_FITTED, MAP, START, STOCK, FineTuned
from stepgrad.models.fine_tuning.training import Task, detections
from stepgrad.models.fine_tuning.ways import FineTuning
from stepgrad.models.fine_tuning.windows import Labelled
from stepgrad.report import Arm, write_comparison

if TYPE_CHECKING:
    from stepgrad.data.base import DetectionDataset

_NOTES = {
    START: "the head as it was given",
    STOCK: "from there, at its best rate",
    MAP: "from there, mAP on as many images, at its best rate",
    CROSS_FITTED: "a correction, trained on scores of heads that had not seen the image",
}


def write(
    folder: Path, tuning: FineTuning, tuned: FineTuned, pictures: DetectionDataset | None, settings: Mapping[str, Any]
) -> Path:
    """report.html and what belongs to it; returns the path of the page."""
    task, images = tuning.task, tuning.images.test or tuning.images.val
    seeds = len(tuning.budget.seeds)
    arms = []
    for name, way in tuned.ways.items():
        maps = way.test or {task.protocol.name: way.val}
        head = tuning.heads[name][0]
        arms.append(arm(name, _NOTES[name], repeated(maps, seeds), head, images, task, way.seconds, pictures))
    names = list(tuned.ways)
    looked_at = tuned.chosen if tuned.chosen not in (START, STOCK) else MAP
    return write_comparison(
        folder,
        title="Fine-tuning for mAP",
        sentence=tuned.sentence,
        arms=arms,
        reference=names.index(STOCK),
        chosen=names.index(looked_at),
        protocols=task.reported if tuning.images.test else [task.protocol],
        dataset=pictures,
        config=settings,
    )


def arm(
    name: str,
    note: str,
    maps: Mapping[str, Sequence[float]],
    head: nn.Module,
    images: Sequence[Labelled],
    task: Task,
    seconds: float,
    pictures: DetectionDataset | None,
) -> Arm:
    """One way of training as the page shows it: numbers of all seeds, detections of the first."""
    runs = [dict(zip(maps, values, strict=True)) for values in zip(*maps.values(), strict=True)]
    found = detections(head, images, task, None if pictures is None else pictures.ids)
    return Arm(name, note, runs, found.evidence(), seconds)


def repeated(maps: Mapping[str, Sequence[float]], seeds: int) -> dict[str, Sequence[float]]:
    """What was not trained has one value for all seeds."""
    return {name: list(values) * seeds if len(values) == 1 else values for name, values in maps.items()}
