"""The detections of a file one by one, whatever its format: checked, and put together as arrays."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from stepgrad.data.base import DetectionDataset
from stepgrad.data.coco import COCODataset
from stepgrad.data.problems import brief
from stepgrad.data.shape_fields import shapes_of
from stepgrad.errors import DataError, suggest
from stepgrad.evaluation.other_readings import BoxOrder
from stepgrad.evaluation.records import Detections
from stepgrad.metric.boxes import LARGEST_AREA, sizes_of
from stepgrad.overlaps.base import Overlap
from stepgrad.overlaps.batch import BOXES

DetectionRow = tuple[int, int, float, Sequence[float] | None, Any]
"""Image (its position), label, score, the four numbers of a box or None, and the shape that the task is about, if it is."""
_NO_BOX = (math.nan,) * 4
ANY_BOX = (0.0, 0.0, 1.0, 1.0)
"""A box that passes every check, for detections that have none."""


def detections_from(
    rows: Iterable[DetectionRow], overlap: Overlap = BOXES, where: str = "", written: BoxOrder = "xyxy"
) -> Detections:
    """The detections as arrays; the numbers stay as they are, and those without a box get the one around their shape."""
    listed = list(rows)
    images, labels, scores, given, shapes = ([row[column] for row in listed] for column in range(5))
    boxes = np.array([_NO_BOX if box is None else box for box in given], dtype=np.float64).reshape(-1, 4)
    sizes = boxes[:, 2:].copy() if written == "xywh" else sizes_of(boxes)
    if written == "xywh":
        boxes = np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], axis=1)
    kept = None if overlap is BOXES else shapes_of(overlap, shapes, where)
    if kept is not None:
        boxes, without = np.where(np.isnan(boxes), overlap.boxes(kept), boxes), np.isnan(sizes)
        sizes = np.where(without, sizes_of(boxes), sizes)
    return Detections(
        np.array(images, dtype=np.int32),
        np.array(labels, dtype=np.int64),
        np.array(scores, dtype=np.float64),
        boxes,
        sizes,
        kept,
    )


def text_lines(path: Path) -> Iterator[tuple[str, str]]:
    """The lines of a text that are not empty, each with its place for messages."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as text ({error}); write it again") from error
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            yield f"{path}, line {number}", line.strip()


def numbers_in(words: Sequence[str]) -> list[float]:
    """The words as numbers; nothing if one of them is none."""
    try:
        return [float(word) for word in words]
    except ValueError:
        return []


@dataclass(frozen=True)
class DetectionChecks:
    """Checks the image, the score and the box of each detection in a file; errors name the place in the file."""

    dataset: DetectionDataset
    empty_boxes: str
    """"count" lets boxes without width or height pass; "error" refuses them."""

    def image(self, image_id: object, where: str) -> int:
        """The position of an image. Ids compare as text: a text file cannot tell 7 from "7"."""
        positions = self.dataset.positions
        position = positions.get(str(image_id)) if isinstance(image_id, (str, int, float)) else None
        if position is None and isinstance(image_id, str):
            position = self._stems.get(image_id)
        if position is None:
            near = isinstance(image_id, (str, int)) and len(positions) < 10_000
            close = suggest(str(image_id), list(positions)) if near else ""
            raise DataError(
                f"{where}: image {brief(image_id)} is not among the {len(positions)} images of {self.dataset.name}; "
                f"check that detections and data are of the same split.{close}"
            )
        return position

    @cached_property
    def _stems(self) -> dict[str, int]:
        """Images by the name of their file without suffix, as YOLO tools call them; names that several have are left out."""
        if not isinstance(self.dataset, COCODataset):
            return {}
        names = [Path(image.file_name).stem for image in self.dataset.images]
        times = Counter(names)
        return {name: i for i, name in enumerate(names) if times[name] == 1}

    def numbers(self, score: float, box: Sequence[float], where: str) -> None:
        """Raise DataError for a score or box that no protocol can judge; `box` is x, y, width, height."""
        if not math.isfinite(score):
            raise DataError(f"{where}: expected a finite score but got {score}; remove the line or fix the detector")
        if not all(math.isfinite(value) for value in box):
            raise DataError(f"{where}: expected a finite box but got {list(box)}; remove the line or fix the detector")
        size = f"the box is {box[2]:g} wide and {box[3]:g} high"
        if box[2] < 0.0 or box[3] < 0.0:
            raise DataError(f"{where}: {size}; swap its corners or remove it")
        if self.empty_boxes == "error" and (box[2] == 0.0 or box[3] == 0.0):
            way_out = "remove it, or count such boxes as false alarms with --empty_boxes count"
            raise DataError(f"{where}: {size}; {way_out}")
        edges = float(box[0]) + box[2], float(box[1]) + box[3]
        area = float(box[2]) * box[3]
        lost = area == 0.0 and box[2] > 0.0 and box[3] > 0.0  # the rule of `unmeasurable`, for one box
        if not all(map(math.isfinite, edges)) or area > LARGEST_AREA or lost:
            raise DataError(
                f"{where}: the box {list(box)} is too {'small' if lost else 'large'} for double precision; expected pixels, "
                "so fix the detector"
            )
