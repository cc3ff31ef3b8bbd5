"""Detections as YOLO tools save them: categories of their predictions.json, and a text file for each image."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stepgrad.data.base import DetectionDataset
from stepgrad.data.yolo import YOLODataset
from stepgrad.errors import DataError
from stepgrad.evaluation.swapped_format import image_sizes

if TYPE_CHECKING:
    from stepgrad.evaluation.read_files import _Reader

_NOT_USED = {12, 26, 29, 30, 45, 66, 68, 69, 71, 83}
COCO_CATEGORIES = tuple(c for c in range(1, 91) if c not in _NOT_USED)
"""The category ids of COCO's 80 classes in the order of the classes."""


def labels_of_categories(categories: Iterable[Any], dataset: YOLODataset) -> dict[Any, int]:
    """The label of each category id in a result file for data that has class names but no ids.

    Tools number the classes from 1, some (older ultralytics) from 0, and for COCO's 80 classes by its own ids. A file with a
    0 is of the second kind, one with more ids than classes can have is of the third; every other is of the first.
    """
    K = len(dataset.class_names)
    used = {c for c in categories if isinstance(c, int) and not isinstance(c, bool)}
    if 0 in used and max(used) < K:
        return {label: label for label in range(K)}
    if len(COCO_CATEGORIES) == K < max(used, default=0) and used <= set(COCO_CATEGORIES):
        return {category: label for label, category in enumerate(COCO_CATEGORIES)}
    return {label + 1: label for label in range(K)}


def yolo_text_files(path: Path, dataset: DetectionDataset) -> list[tuple[Path, int]]:
    """The text files of a folder that are named after images, with the position of each; none if most are not."""
    folder = path / "labels" if (path / "labels").is_dir() else path
    if not folder.is_dir():
        return []
    files = sorted(folder.glob("*.txt"))
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


def yolo_rows(
    files: list[tuple[Path, int]], dataset: DetectionDataset, reader: _Reader
) -> Iterator[tuple[int, int, float, NDArray[np.float64]]]:
    """Image, label, score and box (x1, y1, x2, y2 in pixels) of each line `class cx cy w h conf`, in shares of the image."""
    sizes = image_sizes(dataset)
    for file, image in files:
        if not math.isfinite(sizes[image, 0]):
            raise DataError(
                f"{file}: has boxes relative to the size of image {dataset.ids[image]}, but the annotations do not give "
                "that size; evaluate on a data.yaml, or on annotations with image sizes"
            )
        for number, line in enumerate(_lines(file), 1):
            if line.strip():
                label, score, shares = _numbers(line, f"{file}, line {number}", len(dataset.class_names))
                centre, size = shares[:2] * sizes[image], shares[2:] * sizes[image]
                box = np.concatenate([centre - size / 2, centre + size / 2])
                reader.numbers(score, [*box[:2].tolist(), *size.tolist()], f"{file}, line {number}")
                yield image, label, score, box


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: cannot be read as text ({error}); write it again") from error


def _numbers(line: str, where: str, classes: int) -> tuple[int, float, NDArray[np.float64]]:
    try:
        values = [float(part) for part in line.split()]
    except ValueError:
        values = []
    if len(values) == 5:
        raise DataError(
            f"{where}: there is no score in {line.strip()!r}; save the scores, too: `yolo val save_txt save_conf`"
        )
    if len(values) != 6:
        raise DataError(f"{where}: expected `class cx cy w h conf` but got {line.strip()!r}")
    if values[0] not in range(classes):
        raise DataError(f"{where}: expected a class from 0 to {classes - 1} but got {line.split()[0]}")
    return int(values[0]), values[5], np.array(values[1:5])
