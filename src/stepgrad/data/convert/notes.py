"""What a format cannot hold, told once per kind with counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Literal

import numpy as np

from stepgrad.data.base import ImageObjects
from stepgrad.number_text import agreeing, counted

Format = Literal["yolo", "voc", "coco"]
Difficult = Literal["keep", "drop", "ignore"]
FORMATS = {"yolo": "YOLO", "voc": "VOC", "coco": "COCO"}
_TEXTS = {
    "difficult-kept": ("difficult object", "{n} {was} written as ordinary, since {format} has no such mark"),
    "difficult-dropped": ("difficult object", "{n} {was} left out"),
    "difficult-ignored": ("difficult object", "{n} {was} written as an ignored region of its class"),
    "crowd": ("crowd region", "{n} {was} left out, since {format} cannot store them"),
    "area": ("area", "{n} {was} lost: {format} stores only boxes, and these have other areas"),
    "masks-unread": ("mask", "{n} {was} left out: `--task masks` keeps them in COCO and YOLO"),
    "keypoints-unread": ("pose", "{n} {was} left out: `--task keypoints` keeps them in COCO and YOLO"),
    "oriented-unread": (
        "oriented box",
        "{n} {was} written as upright boxes: `--task oriented` keeps them in COCO and YOLO",
    ),
    "parts": ("mask", "{n} of several parts {was} written as one polygon, parts joined by lines without width"),
    "runs": ("mask", "{n} {was} left out with their objects, since they are run lengths and {format} stores polygons"),
    "category": ("category id", "{n} {was} not kept, since {format} numbers classes by their order"),
    "numbered": ("image", "{n} got a number from 1 as id, as in COCO; the entry keeps the name"),
    "named": ("image file", "{n} {was} named after the id, since file names are the ids in {format}"),
    "renamed": ("image", "{n} {was} renamed, since the names of files must be valid and different"),
    "stored": ("image", "{n} {was} saved again, since {format} tools treat EXIF orientation differently"),
    "encoded": ("image", "{n} {was} saved again, in a format that {format} tools read"),
    "linked": ("image", "{n} {was} linked: use this dataset with --images_outside (images_outside=True in Python)"),
    "narrow": ("box", "{n} less than a pixel wide {was} made a pixel wide, the smallest width that VOC can store"),
    "beyond": (
        "box",
        "{n} beyond the edge {was} written with numbers outside 0 to 1; YOLO tools leave out such images",
    ),
    "cut": ("box", "{n} far beyond the edge {was} cut there, since YOLO's numbers go from 0 to 1"),
    "outside": ("object", "{n} outside the image {was} left out"),
    "order": ("split", "{n} {was} ordered by id"),
}
"""Of each kind, what is counted and what is said about it."""
_SAME_AREA = 1e-6
"""Share of the area by which rounding may move it."""


class Notes:
    """Counts by kind."""

    def __init__(self, to: Format) -> None:
        self.to = to
        self.counts: Counter[str] = Counter()

    def add(self, kind: str, count: int = 1) -> None:
        """So many more of a kind."""
        assert kind in _TEXTS, kind
        if count:
            self.counts[kind] += count

    def lines(self) -> list[str]:
        """A line for each kind, in a fixed order."""
        return [
            text.format(n=counted(count, noun), was=agreeing(count, "were"), format=FORMATS[self.to])
            for kind, (noun, text) in _TEXTS.items()
            if (count := self.counts[kind])
        ]


def without_difficult(objects: ImageObjects, difficult: Difficult, notes: Notes) -> ImageObjects:
    """Objects for a format that knows no difficult ones: they become ordinary, crowds of their class, or are dropped."""
    kind = {"keep": "kept", "drop": "dropped", "ignore": "ignored"}[difficult]
    notes.add(f"difficult-{kind}", int(objects.difficult.sum()))
    if difficult == "ignore":
        nothing = np.zeros_like(objects.difficult)
        return replace(objects, crowd=objects.crowd | objects.difficult, difficult=nothing)
    return objects[~objects.difficult] if difficult == "drop" else objects


def note_areas(objects: ImageObjects, notes: Notes) -> None:
    """Count the areas that do not follow from the boxes."""
    of_boxes = (objects.boxes[:, 2:] - objects.boxes[:, :2]).prod(axis=1)
    notes.add("area", int((np.abs(objects.area - of_boxes) > _SAME_AREA * of_boxes).sum()))


def tidy(value: float) -> int | float:
    """A coordinate to a billionth of a pixel; whole ones as whole numbers.

    >>> tidy(15.000000000000002), tidy(0.1 + 0.2)
    (15, 0.3)
    """
    rounded = round(float(value), 9)
    return int(rounded) if rounded == int(rounded) else rounded
