"""A dataset as the doctor sees it, whatever its format, and counts of its images, objects, classes and sizes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stepgrad.data.base import ImageId
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
    names: tuple[str, ...]
    numbers: tuple[int, ...]
    """What the annotation calls each object, see `word`; regions that are crowds of every class come last and have none."""
    boxes: NDArray[np.float64]
    difficult: NDArray[np.bool_]
    crowd: NDArray[np.bool_]
    as_shown: bool = False
    """Whether size and boxes are of the picture as viewers show it (YOLO), EXIF orientation applied, or as it is stored."""
    word: str = "object"
    """What the numbers count: objects of a file, lines of a label file, or annotations by their ids."""

    def place(self, index: int) -> str:
        """Where to find an object in the annotation, and its class."""
        if index >= len(self.numbers):
            return "an ignored region"
        return f"{self.word} {self.numbers[index]} ({self.names[index]})"


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
    return Summary(
        kind=records.kind,
        name=records.name,
        images=len(entries),
        without_objects=sum(bool(entry.crowd.all()) for entry in entries),
        classes=tuple(_count(name, entries, name) for name in records.class_names),
        total=_count("all", entries, None),
        smallest=_pair(sizes.min(axis=0)) if len(sizes) else None,
        largest=_pair(sizes.max(axis=0)) if len(sizes) else None,
        modes=dict(Counter(fact.mode for fact in facts.values()).most_common()),
    )


def _pair(values: np.ndarray) -> tuple[int, int]:
    return int(values[0]), int(values[1])


def _count(title: str, entries: list[ExaminedImage], name: str | None) -> ClassSummary:
    """Counts of one class, or of all."""
    of_class = [
        np.array([name is None or object_name == name for object_name in entry.names], dtype=np.bool_)
        for entry in entries
    ]
    pairs = [(entry, mask & ~entry.crowd) for entry, mask in zip(entries, of_class, strict=True)]
    areas = [(entry.boxes[mask, 2:] - entry.boxes[mask, :2]).prod(axis=1) for entry, mask in pairs]
    sides = np.sqrt(np.concatenate([np.zeros(0), *areas]))
    crowds = [entry.boxes[mask & entry.crowd] for entry, mask in zip(entries, of_class, strict=True)]
    return ClassSummary(
        name=title,
        images=sum(bool(mask.any()) for _, mask in pairs),
        objects=len(sides),
        difficult=sum(int(entry.difficult[mask].sum()) for entry, mask in pairs),
        crowd=sum(len(np.unique(boxes, axis=0)) for boxes in crowds if len(boxes)),
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
