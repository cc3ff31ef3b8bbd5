"""The page of a fine-tuning: every way side by side on the images that were held out of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepgrad.models.fine_tuning.result import CROSS_FITTED, MAP, START, STOCK, FineTuned, Trained
from stepgrad.models.fine_tuning.training import Task, detections
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
    folder: Path,
    tuned: FineTuned,
    images: Mapping[str, list[Labelled]],
    task: Task,
    pictures: DetectionDataset | None,
    settings: Mapping[str, Any],
) -> Path:
    """report.html and what belongs to it; returns the path of the page."""
    judged = images.get("test", images["val"])
    seeds = max(len(way.val) for way in tuned.ways.values())
    names = list(tuned.ways)
    looked_at = tuned.chosen if tuned.chosen not in (START, STOCK) else MAP
    return write_comparison(
        folder,
        title="Fine-tuning for mAP",
        sentence=tuned.sentence,
        arms=[arm(way, _NOTES[name], seeds, judged, task, pictures) for name, way in tuned.ways.items()],
        reference=names.index(STOCK),
        chosen=names.index(looked_at),
        protocols=task.reported if "test" in images else [task.protocol],
        dataset=pictures,
        config=settings,
    )


def arm(
    way: Trained,
    note: str,
    seeds: int,
    images: Sequence[Labelled],
    task: Task,
    pictures: DetectionDataset | None,
) -> Arm:
    """One way of training as the page shows it: numbers of all seeds, detections of the first."""
    maps = way.test or {task.protocol.name: way.val}
    # What was not trained has one value for all seeds.
    by_seed = [values * seeds if len(values) == 1 else values for values in maps.values()]
    runs = [dict(zip(maps, values, strict=True)) for values in zip(*by_seed, strict=True)]
    found = detections(way.heads[0], images, task, None if pictures is None else pictures.ids)
    return Arm(way.name, note, runs, found.evidence(), way.seconds)
