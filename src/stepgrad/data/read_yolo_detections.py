"""Detections as YOLO tools save them: categories of their predictions.json, and a text file for each image."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepgrad.data.base import DetectionDataset, image_sizes
from stepgrad.data.detection_rows import ANY_BOX, DetectionChecks, DetectionRow, detections_from, numbers_in, text_lines
from stepgrad.data.problems import brief
from stepgrad.data.shape_fields import LARGEST
from stepgrad.data.yolo import YOLODataset, yolo_shape
from stepgrad.errors import DataError
from stepgrad.evaluation.records import Detections
from stepgrad.overlaps.keypoints import COCO_SIGMAS

_NOT_USED = {12, 26, 29, 30, 45, 66, 68, 69, 71, 83}
COCO_CATEGORIES = tuple(c for c in range(1, 91) if c not in _NOT_USED)
"""The category ids of COCO's 80 classes in the order of the classes."""


_MOST_LISTED = 12  # classes that a message lists; of more it gives the first and the last


def used_categories(entries: Iterable[Any]) -> set[int]:
    """The whole numbers that entries of a result file have as category_id."""
    found = (entry.get("category_id") for entry in entries if isinstance(entry, dict))
    return {category for category in found if isinstance(category, int) and not isinstance(category, bool)}


def labels_of_categories(used: set[int], dataset: YOLODataset) -> dict[Any, int]:
    """The label of each category id in a result file for data that has class names but no ids.

    Tools number the classes from 1, some (older ultralytics) from 0, and for COCO's 80 classes by its own ids. A file with a
    0 is of the second kind, one with more ids than classes can have is of the third; every other is of the first.
    """
    K = len(dataset.class_names)
    if 0 in used and max(used) < K:
        return {label: label for label in range(K)}
    if len(COCO_CATEGORIES) == K < max(used, default=0) and used <= set(COCO_CATEGORIES):
        return {category: label for label, category in enumerate(COCO_CATEGORIES)}
    return {label + 1: label for label in range(K)}


def unknown_category(used: set[int], labels: Mapping[Any, int], dataset: DetectionDataset) -> str:
    """What is wrong with the category ids of a file, some of which no class has, and how to mend it."""
    K = len(labels)
    named = {category: f"{category} {dataset.class_names[label]}" for category, label in labels.items()}
    all_of_them = ", ".join(named.values())
    ends = f"{K} classes from {named[min(labels)]} to {named[max(labels)]}"
    known = f"{dataset.name} has {all_of_them if K <= _MOST_LISTED else ends}"
    if not used:
        return known
    its_own = f"{known}. The file has ids from {min(used)} to {max(used)}"
    for by, do in ((1, "add 1 to"), (-1, "subtract 1 from")):
        if {category + by for category in used} <= set(labels):
            return f"{its_own}: {do} each"
    for start in (0, 1):
        if used <= set(range(start, start + K)):
            positions = f"look like positions of the classes, counted from {start}"
            return f"{its_own}, which {positions}: write the id of each class instead"
    return its_own


def yolo_text_files(path: Path, dataset: DetectionDataset) -> list[tuple[Path, int]]:
    """The text files of a folder that are named after images, with the position of each; none if most are not."""
    folder = path / "labels" if (path / "labels").is_dir() else path
    if not folder.is_dir():
        return []
    files = sorted(file for file in folder.glob("*.txt") if file.is_file())  # neither pipes nor devices
    names = _names_of_images(dataset)
    found = [(file, names[file.stem]) for file in files if file.stem in names]
    return found if 2 * len(found) > len(files) else []


def _names_of_images(dataset: DetectionDataset) -> dict[str, int]:
    """The position of each image by its id, and by its path with `_` between the folders: val/a/1.jpg is a_1 too."""
    names: dict[str, int] = {}
    if isinstance(dataset, YOLODataset):
        for i, image in enumerate(dataset.images):
            parts = image.path.with_suffix("").parts
            for start in range(len(parts) - 1, max(len(parts) - 4, 0), -1):
                names.setdefault("_".join(parts[start:]), i)
    return names | dataset.positions


def read_yolo_results(files: list[tuple[Path, int]], dataset: DetectionDataset, empty_boxes: str) -> Detections:
    """Read the lines `class cx cy w h conf`, in shares of the image, of one file per image.

    For other tasks than boxes they are `class x1 y1 x2 y2 ... conf` (a polygon, or four corners), and `class cx cy w h x1 y1 v1
    ... conf` (keypoints).
    """
    checks, sizes = DetectionChecks(dataset, empty_boxes), image_sizes(dataset)
    rows = (row for file, image in files for row in _rows(file, image, sizes[image], checks))
    return detections_from(rows, dataset.overlap(), f"the detections in {files[0][0].parent}")


def _rows(file: Path, image: int, size: NDArray[np.float64], checks: DetectionChecks) -> Iterator[DetectionRow]:
    if not math.isfinite(size[0]):
        raise DataError(
            f"{file}: has boxes relative to the size of image {checks.dataset.ids[image]}, but the annotations do not give "
            "that size; evaluate on a data.yaml, or on annotations with image sizes"
        )
    task, points = checks.dataset.task, checks.dataset.keypoints or 0
    for where, line in text_lines(file):
        if task != "boxes":
            label, *values, score = _shape_numbers(line, where, checks.dataset)
            checks.numbers(score, ANY_BOX, where)
            shape = yolo_shape(task, np.array(values), (int(size[0]), int(size[1])), _per_point(len(values), points))
            yield image, int(label), score, None, shape
            continue
        label, cx, cy, width, height, score = _six_numbers(line, where, len(checks.dataset.class_names))
        centre, sides = np.array([cx, cy]) * size, np.array([width, height]) * size
        box = [*(centre - sides / 2).tolist(), *(centre + sides / 2).tolist()]
        checks.numbers(score, [*box[:2], *sides.tolist()], where)
        yield image, int(label), score, box, None


def _per_point(count: int, points: int) -> tuple[int, int] | None:
    """Keypoints of a line, and numbers of each: two where the detector says nothing about visibility."""
    return (points, 2 if count == 4 + 2 * points else 3) if points else None


def _shape_numbers(line: str, where: str, dataset: DetectionDataset) -> list[float]:
    """The class, the numbers of a mask, of a pose or of an oriented box, and the score."""
    values, k = numbers_in(line.split()), dataset.keypoints or len(COCO_SIGMAS)
    form, right = {
        "masks": ("class x1 y1 x2 y2 x3 y3 ... conf", len(values) >= 8 and len(values) % 2 == 0),
        "keypoints": (f"class cx cy w h x1 y1 v1 ... conf, with {k} keypoints", len(values) in (6 + 2 * k, 6 + 3 * k)),
        "oriented": ("class x1 y1 x2 y2 x3 y3 x4 y4 conf", len(values) == 10),
    }[dataset.task]
    if not right or not all(abs(value) < LARGEST for value in values):
        raise DataError(
            f"{where}: expected `{form}` but got {brief(line)}; save them with `yolo val save_txt save_conf`, or judge boxes: "
            "--task boxes"
        )
    return _with_class(values, line, where, len(dataset.class_names))


def _six_numbers(line: str, where: str, classes: int) -> list[float]:
    values = numbers_in(line.split())
    if len(values) == 5:
        raise DataError(f"{where}: there is no score in {line!r}; save the scores, too: `yolo val save_txt save_conf`")
    if len(values) != 6:
        more = "; masks, poses and oriented boxes need --task" if len(values) > 6 else ""
        raise DataError(f"{where}: expected `class cx cy w h conf` but got {line!r}{more}")
    return _with_class(values, line, where, classes)


def _with_class(values: list[float], line: str, where: str, classes: int) -> list[float]:
    if values[0] not in range(classes):
        raise DataError(f"{where}: expected a class from 0 to {classes - 1} but got {line.split()[0]}")
    return values
