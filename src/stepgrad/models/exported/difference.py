"""Two pipelines on the same pictures: both results, what each cause makes of the difference, and the first image that differs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepgrad.data.base import DetectionDataset, ImageId
from stepgrad.data.judged_files import evidence_from
from stepgrad.data.read_detections import FileDetections
from stepgrad.evaluation.result import evaluate_under
from stepgrad.evaluation.tables import plain_table
from stepgrad.metric.protocol import Protocol
from stepgrad.models.exported.causes import CauseStage, Views, partners, stages_between
from stepgrad.models.exported.limits import Detected
from stepgrad.models.exported.pipeline import Pipeline, as_detections
from stepgrad.number_text import per_cent

SURE = 0.25
"""The score from which on a detection is looked at when images are compared."""


@dataclass(frozen=True)
class CausePart:
    """What one cause changes, all those before it changed already."""

    cause: str
    group: str
    before: str
    after: str
    map: float
    """mAP once it is changed."""
    points: float


@dataclass(frozen=True)
class FirstImage:
    """The first image in which one of the two detects something that the other does not."""

    image_id: ImageId
    index: int
    class_name: str
    score: float
    box: tuple[float, ...]
    only: str
    """Which of the two has it."""
    cause: str
    """The first change that makes it appear or vanish."""
    found: tuple[Detected, Detected]
    """All detections of the image that are looked at, of both."""

    def __str__(self) -> str:
        box = " ".join(f"{value:.0f}" for value in self.box)
        return (
            f"first image that differs: {self.image_id}: {self.class_name} {self.score:.3f} at {box} is detected by {self.only} "
            f"only, because of: {self.cause}"
        )


@dataclass(frozen=True)
class Difference:
    """The way from one result to another."""

    names: tuple[str, str]
    protocol: str
    map: float
    """Of the pipeline where the way begins."""
    parts: tuple[CausePart, ...]
    first: FirstImage | None
    detections: tuple[FileDetections, FileDetections]

    @property
    def points(self) -> float:
        """Points of mAP from the first to the second; the parts add up to it."""
        return 100.0 * ((self.parts[-1].map if self.parts else self.map) - self.map)

    def groups(self) -> dict[str, float]:
        """Points of each group of causes."""
        found: dict[str, float] = {}
        for part in self.parts:
            found[part.group] = found.get(part.group, 0.0) + part.points
        return found

    def __str__(self) -> str:
        start, end = self.names
        last = self.parts[-1].map if self.parts else self.map
        head = f"mAP ({self.protocol}): {start} {per_cent(self.map)}, {end} {per_cent(last)}: {self.points:+.2f} points"
        rows = [
            [part.group, part.cause, part.before, part.after, per_cent(part.map), f"{part.points:+.2f}"]
            for part in self.parts
        ]
        table = (
            plain_table(["group", "cause", start, end, "mAP", "change"], rows)
            if rows
            else "nothing differs between them"
        )
        first = str(self.first) if self.first else f"no image differs in detections of a score of at least {SURE}"
        return f"{head}\n\n{table}\n\n{first}"

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for json."""
        first = self.first
        return {
            "models": list(self.names),
            "protocol": self.protocol,
            "map": self.map,
            "points": self.points,
            "parts": [vars(part) for part in self.parts],
            "first_image": first and {key: value for key, value in vars(first).items() if key != "found"},
        }


def difference(
    start: Pipeline,
    end: Pipeline,
    dataset: DetectionDataset,
    protocol: Protocol,
    tick: Callable[[], object] = lambda: None,
    names: tuple[str, str] | None = None,
) -> Difference:
    """Run both and every stage between them on all pictures of the data."""
    stages = stages_between(start, end)
    names = names or (start.network.name, end.network.name)
    found: list[list[Detected]] = [[] for _ in stages]
    first = None
    for i in range(len(dataset)):
        views = Views(dataset.image(i))
        for stage, of_images in zip(stages, found, strict=True):
            of_images.append(stage.detect(views))
        first = first or _first_difference(dataset, i, stages, [of_images[i] for of_images in found], names)
        tick()
    detections = [as_detections(of_images) for of_images in found]
    maps = [evaluate_under(evidence_from(dataset, made), protocol).map for made in detections]
    parts = tuple(
        CausePart(stage.cause, stage.group, stage.before, stage.after, now, 100.0 * (now - was))
        for stage, was, now in zip(stages[1:], maps, maps[1:], strict=False)
    )
    return Difference(names, protocol.name, maps[0], parts, first, (detections[0], detections[-1]))


def _first_difference(
    dataset: DetectionDataset,
    index: int,
    stages: Sequence[CauseStage],
    found: Sequence[Detected],
    names: tuple[str, str],
) -> FirstImage | None:
    """The detection of the highest score that only one of both ends has; None if there is none in this image."""
    sure = [one.take(one.scores >= SURE) for one in found]
    best: tuple[float, int, int] | None = None
    for side, (own, other) in enumerate(((sure[0], sure[-1]), (sure[-1], sure[0]))):
        alone = np.flatnonzero(partners(own, other) < 0)
        if len(alone):
            row = int(alone[own.scores[alone].argmax()])
            best = max(best or (-1.0, 0, 0), (float(own.scores[row]), side, row))
    if best is None:
        return None
    score, side, row = best
    own = sure[0] if side == 0 else sure[-1]
    the_one = own.take(np.array([row]))
    there = [bool(partners(the_one, one)[0] >= 0) for one in sure]
    changed = next((s for s in range(1, len(stages)) if there[s] != there[0]), len(stages) - 1)
    return FirstImage(
        image_id=dataset.ids[index],
        index=index,
        class_name=dataset.class_names[int(own.labels[row])],
        score=score,
        box=tuple(own.boxes[row].tolist()),
        only=names[side],
        cause=stages[changed].cause,
        found=(sure[0], sure[-1]),
    )
