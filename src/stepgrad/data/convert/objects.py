"""The objects of one picture in double precision, as far as a format can hold them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stepgrad.data.coco import COCODataset
from stepgrad.data.convert.notes import Notes
from stepgrad.data.convert.source import SourcePicture

Difficult = Literal["keep", "drop"]
_SAME_AREA = 1e-6
"""Share of the area by which rounding may move it."""


@dataclass(frozen=True)
class SourceObjects:
    """G objects."""

    boxes: NDArray[np.float64]
    """(G, 4) continuous x1 y1 x2 y2."""
    labels: NDArray[np.int64]
    difficult: NDArray[np.bool_]
    crowd: NDArray[np.bool_]
    area: NDArray[np.float64]

    def __getitem__(self, rows: NDArray[np.bool_]) -> SourceObjects:
        return SourceObjects(
            self.boxes[rows], self.labels[rows], self.difficult[rows], self.crowd[rows], self.area[rows]
        )


def objects_in(picture: SourcePicture) -> SourceObjects:
    """The objects of a picture."""
    target, boxes = picture.dataset.target(picture.index), picture.dataset.exact_boxes(picture.index)
    area = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
    if isinstance(picture.dataset, COCODataset):
        annotations = picture.dataset.images[picture.index].annotations
        area = np.array([annotation.area for annotation in annotations], dtype=np.float64)
    return SourceObjects(
        boxes=boxes,
        labels=target["labels"].numpy(),
        difficult=target["difficult"].numpy(),
        crowd=target["iscrowd"].numpy() != 0,
        area=area,
    )


def without_flags(objects: SourceObjects, difficult: Difficult, notes: Notes) -> SourceObjects:
    """SourceObjects for a format that knows no difficult ones: they become ordinary, or are dropped."""
    count = int(objects.difficult.sum())
    if difficult == "drop":
        notes.add("difficult-dropped", count)
        return objects[~objects.difficult]
    notes.add("difficult-kept", count)
    return objects


def note_areas(objects: SourceObjects, notes: Notes) -> None:
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
