"""A dataset as the doctor sees it, whatever its format, and counts of its images, objects, classes and sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepgrad.data.base import ImageId, ImageObjects, join_objects
from stepgrad.data.images import ImageFacts
from stepgrad.data.problems import Problem, Report
from stepgrad.number_text import agreeing, counted


@dataclass(frozen=True)
class ExaminedImage:
    """The readable part of an image's record; G objects."""

    image_id: ImageId
    source: str
    """The annotation file, and the image in it where it holds many."""
    image: Path | None
    """The file of the picture; None where it is missing or not asked for."""
    size: tuple[int, int] | None
    """As the annotation gives it."""
    objects: ImageObjects
    class_names: tuple[str, ...]
    """Of the labels, those of unknown classes too."""
    numbers: tuple[int, ...]
    """What the annotation calls each object, see `word`; regions that are crowds of every class come last and have none."""
    as_shown: bool = False
    """Whether size and boxes are of the picture as viewers show it (YOLO), EXIF orientation applied, or as it is stored."""
    word: str = "object"
    """What the numbers count: objects of a file, lines of a label file, or annotations by their ids."""
    shapes: tuple[Mapping[str, Any], ...] = ()
    """Per object its masks, keypoints, oriented box; those of ignored regions are missing."""

    def place(self, index: int) -> str:
        """Where to find an object in the annotation, and its class."""
        if index >= len(self.numbers):
            return "an ignored region"
        return f"{self.word} {self.numbers[index]} ({self.class_names[self.objects.labels[index]]})"


Splits = dict[str, dict[str, Path | None]]
"""Of each split, the file of every image, by the id or path that makes it one image; None for files that are not looked at."""


@dataclass(frozen=True)
class ExaminedDataset:
    """A whole dataset as the doctor sees it."""

    kind: str
    name: str
    entries: list[ExaminedImage]
    class_names: tuple[str, ...]
    splits: Splits = field(default_factory=dict)
    """The images of train, val and test, of those that there are."""


@dataclass(frozen=True)
class ClassSummary:
    """One class; sides are square roots of box areas, in pixels, smallest, median and largest. Crowds are no objects."""

    name: str
    images: int
    objects: int
    difficult: int
    crowd: int
    """Number of crowd regions. A region that is a crowd of every class counts once in the row of all classes."""
    sides: tuple[float, float, float] | None


@dataclass(frozen=True)
class Summary:
    """The counts of a whole dataset."""

    kind: str
    name: str
    images: int
    without_objects: int
    classes: tuple[ClassSummary, ...]
    total: ClassSummary
    smallest: tuple[int, int] | None
    """Least width and least height of the images whose size is known."""
    largest: tuple[int, int] | None
    modes: dict[str, int]
    """Number of images by Pillow mode, of those that were opened."""


def summarise(records: ExaminedDataset, facts: dict[ImageId, ImageFacts]) -> Summary:
    """Count images, objects and classes; a size is the picture's own where it was opened."""
    entries = records.entries
    known_sizes = [facts[e.image_id].size if e.image_id in facts else e.size for e in entries]
    sizes = np.array([size for size in known_sizes if size], dtype=np.int64).reshape(-1, 2)
    objects = join_objects([entry.objects for entry in entries])
    images = np.repeat(np.arange(len(entries)), [len(entry.objects) for entry in entries])
    of_class = [objects.labels == label for label in range(len(records.class_names))]
    total = _count("all", objects, images)
    return Summary(
        kind=records.kind,
        name=records.name,
        images=len(entries),
        without_objects=len(entries) - total.images,
        classes=tuple(
            _count(name, objects[rows], images[rows]) for name, rows in zip(records.class_names, of_class, strict=True)
        ),
        total=total,
        smallest=_pair(sizes.min(axis=0)) if len(sizes) else None,
        largest=_pair(sizes.max(axis=0)) if len(sizes) else None,
        modes=dict(Counter(fact.mode for fact in facts.values()).most_common()),
    )


def _pair(values: NDArray[np.int64]) -> tuple[int, int]:
    return int(values[0]), int(values[1])


def _count(title: str, objects: ImageObjects, images: NDArray[np.int64]) -> ClassSummary:
    """Counts of the objects of one class, or of all, in these images."""
    counted_ones = objects[~objects.crowd]
    sides = np.sqrt((counted_ones.boxes[:, 2:] - counted_ones.boxes[:, :2]).prod(axis=1))
    crowds = np.column_stack([images, objects.boxes])[objects.crowd]
    return ClassSummary(
        name=title,
        images=len(np.unique(images[~objects.crowd])),
        objects=len(sides),
        difficult=int(counted_ones.difficult.sum()),
        crowd=len(np.unique(crowds, axis=0)),
        sides=(float(sides.min()), float(np.median(sides)), float(sides.max())) if len(sides) else None,
    )


def report_counts(summary: Summary, where: str, report: Report) -> None:
    """Report a dataset without objects, and classes without objects that count."""
    if summary.images and not summary.total.objects:
        defect = f"none of {counted(summary.images, 'image')} has an object"
        report(Problem(where, defect, "check that the annotations belong to the images", "error", "no-objects-at-all"))
        return
    empty = [row.name for row in summary.classes if row.objects == row.difficult]
    if empty:
        defect = f"{counted(len(empty), 'class')} {agreeing(len(empty), 'have')} no objects that are counted: {', '.join(empty)}"
        fix = "the protocol sets their AP to 0 or leaves them out of the mean; annotate some objects, or remove the classes"
        report(Problem(where, defect, fix, "warning", "class-empty"))
