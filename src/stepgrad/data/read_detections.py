"""Detections from disk: COCO's result json and VOC's `comp4` text files, with every defect named."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepgrad.data.base import DetectionDataset
from stepgrad.data.coco import COCODataset, xyxy_from_xywh
from stepgrad.data.problems import brief
from stepgrad.data.read_yolo_detections import (
    labels_of_categories,
    unknown_category,
    used_categories,
    yolo_rows,
    yolo_text_files,
)
from stepgrad.data.yolo import YOLODataset
from stepgrad.errors import DataError, suggest
from stepgrad.evaluation.other_readings import BoxOrder
from stepgrad.evaluation.records import Detections
from stepgrad.metric.boxes import LARGEST_AREA
from stepgrad.names import file_name, name_in
from stepgrad.pixels import continuous_from_devkit, devkit_from_continuous


@dataclass(frozen=True)
class FileDetections:
    """Detections as a file has them."""

    detections: Detections
    inclusive: bool
    """VOC files number pixels from 1 and include both corners; COCO files have continuous boxes."""
    written: BoxOrder = "xyxy"
    """The order of the four numbers of a box in the file."""
    missing: tuple[str, ...] = ()
    """Classes that VOC files should have but have not."""

    def boxes(self, inclusive: bool) -> Detections:
        """The detections in the convention asked for; numbers that are in it already stay to the last bit."""
        if inclusive == self.inclusive:
            return self.detections
        convert = devkit_from_continuous if inclusive else continuous_from_devkit
        return self.detections.with_boxes(convert(self.detections.boxes))


def read_detections(path: str | Path, dataset: DetectionDataset, empty_boxes: str = "count") -> FileDetections:
    """Read a COCO result file, VOC text files (a folder, one file, or a pattern such as `out/comp4_det_val_*.txt`), or the
    folder of YOLO's text files, one per image with lines `class cx cy w h conf`.

    Args:
        path: where the detections are.
        dataset: what they were made on; its images and classes are the ones that are known.
        empty_boxes: "count" lets boxes without width or height pass, as false positives; "error" refuses them.
    """
    place = Path(path).expanduser()
    if place.suffix.lower() == ".json":
        return FileDetections(read_coco_results(place, dataset, empty_boxes), inclusive=False, written="xywh")
    of_images = yolo_text_files(place, dataset)
    if of_images:
        found = _read_yolo_results(of_images, dataset, empty_boxes)
        return FileDetections(found, inclusive=False, written="cxcywh")
    files = voc_files(place, dataset.class_names)
    missing = tuple(name for name in dataset.class_names if name not in files)
    return FileDetections(read_voc_results(files, dataset, empty_boxes), inclusive=True, missing=missing)


@dataclass(frozen=True)
class _Reader:
    """Checks the image, the score and the box of each detection in a file; errors name the place in the file."""

    dataset: DetectionDataset
    empty_boxes: str

    def image(self, image_id: object, where: str) -> int:
        """The position of an image. Ids compare as text: a text file cannot tell 7 from "7"."""
        positions = self.dataset.positions
        position = positions.get(str(image_id)) if isinstance(image_id, (str, int, float)) else None
        if position is None and isinstance(image_id, str):
            position = self.stems.get(image_id)
        if position is None:
            near = isinstance(image_id, (str, int)) and len(positions) < 10_000
            close = suggest(str(image_id), list(positions)) if near else ""
            raise DataError(
                f"{where}: image {brief(image_id)} is not among the {len(positions)} images of {self.dataset.name}; "
                f"check that detections and data are of the same split.{close}"
            )
        return position

    @cached_property
    def stems(self) -> dict[str, int]:
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
        if box[2] < 0.0 or box[3] < 0.0:
            raise DataError(f"{where}: the box is {box[2]:g} wide and {box[3]:g} high; swap its corners or remove it")
        if self.empty_boxes == "error" and (box[2] == 0.0 or box[3] == 0.0):
            raise DataError(
                f"{where}: the box is {box[2]:g} wide and {box[3]:g} high; remove it, or count such boxes as false "
                "alarms with --empty_boxes count"
            )
        edges = float(box[0]) + box[2], float(box[1]) + box[3]
        area = float(box[2]) * box[3]
        lost = area == 0.0 and box[2] > 0.0 and box[3] > 0.0  # the rule of `unmeasurable`, for one box
        if not all(map(math.isfinite, edges)) or area > LARGEST_AREA or lost:
            raise DataError(
                f"{where}: the box {list(box)} is too {'small' if lost else 'large'} for double precision; expected pixels, "
                "so fix the detector"
            )


def read_coco_results(path: Path, dataset: DetectionDataset, empty_boxes: str = "count") -> Detections:
    """Read a list of {image_id, category_id, bbox [x, y, width, height], score}, or the same under "annotations"."""
    entries = _json_entries(path)
    labels: dict[Any, int] = {category: label for label, category in enumerate(category_ids(dataset))}
    if isinstance(dataset, YOLODataset):
        labels = labels_of_categories(used_categories(entries), dataset)
    reader = _Reader(dataset, empty_boxes)
    images: list[int] = []
    found_labels: list[int] = []
    scores: list[float] = []
    boxes: list[list[float]] = []
    for number, entry in enumerate(entries):
        where = f"{path}: detection {number}"
        box, score, category = _coco_fields(entry, where)
        if isinstance(category, (list, dict)) or category not in labels:
            why = unknown_category(used_categories(entries), labels, dataset)
            raise DataError(f"{where}: unknown category_id {brief(category)}; {why}")
        images.append(reader.image(entry["image_id"], where))
        reader.numbers(score, box, f"{where}: image {entry['image_id']}")
        found_labels.append(labels[category])
        scores.append(score)
        boxes.append(box)
    xywh = np.array(boxes, dtype=np.float64).reshape(-1, 4)
    return replace(_arrays(images, found_labels, scores, xyxy_from_xywh(xywh)), sizes=xywh[:, 2:])


def _json_entries(path: Path) -> list[Any]:
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: is not JSON ({error}); was it written to the end? Export it again") from error
    if isinstance(content, dict):
        content = content.get("annotations")
    if not isinstance(content, list):
        raise DataError(
            f"{path}: expected a list of detections (COCO's result format) but got {type(content).__name__}"
        )
    return content


def _coco_fields(entry: Any, where: str) -> tuple[list[float], float, Any]:
    keys = ("image_id", "category_id", "bbox", "score")
    if not isinstance(entry, dict) or any(key not in entry for key in keys):
        got = sorted(entry) if isinstance(entry, dict) else type(entry).__name__
        raise DataError(
            f"{where}: expected {', '.join(keys)} but got {got}; detections need a score, objects have none"
        )
    box, score = entry["bbox"], entry["score"]
    if not isinstance(box, list) or len(box) != 4 or not all(_is_number(value) for value in box):
        raise DataError(f"{where}: expected bbox [x, y, width, height] but got {brief(box)}")
    if not _is_number(score):
        raise DataError(f"{where}: expected a number as score but got {brief(score)}")
    return [_bounded(value) for value in box], float(_bounded(score)), entry["category_id"]


def _bounded(value: float) -> float:
    """The number, or an infinity where it is a whole number beyond all doubles."""
    try:
        float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def category_ids(dataset: DetectionDataset) -> tuple[int, ...]:
    """The category id of each label: COCO files bring their own, other datasets number their classes from 1."""
    if isinstance(dataset, COCODataset):
        return dataset.category_ids
    return tuple(range(1, len(dataset.class_names) + 1))


def voc_files(path: Path, class_names: Sequence[str]) -> dict[str, Path]:
    """The text file of each class: its name ends in `_CLASS.txt`, as in comp4_det_test_dog.txt."""
    files: dict[str, Path] = {}
    for file in _text_files(path):
        name = _class_of(file, class_names)
        if name is None:
            continue
        if name in files:
            raise DataError(
                f"{file}: {files[name].name} holds detections of {name!r} too; name one set with a pattern, "
                f"for example --detections '{file.parent}/comp4_det_test_*.txt'"
            )
        files[name] = file
    if not files:
        raise DataError(
            f"{path}: no detections found; expected a COCO result .json, VOC text files named like "
            f"comp4_det_test_{class_names[0]}.txt with lines `image score xmin ymin xmax ymax`, or YOLO text files named "
            "after the images with lines `class cx cy w h conf`"
        )
    return files


def _text_files(path: Path) -> list[Path]:
    if "*" in path.name:
        return sorted(path.parent.glob(path.name))
    if path.is_dir():
        return sorted(path.glob("*.txt"))
    if not path.is_file():
        close = suggest(path.name, [entry.name for entry in path.parent.glob("*")])
        raise DataError(f"{path}: no such file or folder.{close}")
    return [path]


def _class_of(file: Path, class_names: Sequence[str]) -> str | None:
    unquoted = name_in(file.stem)
    fitting = [name for name in class_names if _ends_in(unquoted, name) or _ends_in(file.stem, file_name(name))]
    fitting = fitting or [name for name in class_names if _ends_in(file.stem, name)]  # others quote nothing
    if fitting:
        return max(fitting, key=len)  # `motor_bike` before `bike`
    if "_det_" in file.name:
        word = file.stem.rsplit("_", 1)[-1]
        raise DataError(
            f"{file}: {word!r} is not a class of the data, which has {', '.join(class_names)}."
            f"{suggest(word, list(class_names))}"
        )
    return None


def _ends_in(stem: str, name: str) -> bool:
    return stem == name or stem.endswith(f"_{name}")


def read_voc_results(files: dict[str, Path], dataset: DetectionDataset, empty_boxes: str = "count") -> Detections:
    """Read the lines `image score xmin ymin xmax ymax` of one file per class; the numbers stay as they are."""
    reader = _Reader(dataset, empty_boxes)
    images: list[int] = []
    labels: list[int] = []
    numbers: list[list[float]] = []
    for label, name in enumerate(dataset.class_names):
        for image, values in _voc_lines(files[name], reader) if name in files else ():
            images.append(image)
            labels.append(label)
            numbers.append(values)
    table = np.array(numbers, dtype=np.float64).reshape(-1, 5)
    return _arrays(images, labels, table[:, 0], table[:, 1:])


def _read_yolo_results(files: list[tuple[Path, int]], dataset: DetectionDataset, empty_boxes: str) -> Detections:
    rows = list(yolo_rows(files, dataset, _Reader(dataset, empty_boxes)))
    images, labels, scores, boxes = ([row[column] for row in rows] for column in range(4))
    return _arrays(images, labels, scores, np.array(boxes, dtype=np.float64).reshape(-1, 4))  # type: ignore[arg-type]


def _voc_lines(path: Path, reader: _Reader) -> Iterator[tuple[int, list[float]]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as text ({error}); write it again") from error
    for number, line in enumerate(text.splitlines(), 1):
        parts = line.split()
        if not parts:
            continue
        where = f"{path}, line {number}"
        try:
            values = [float(part) for part in parts[1:]]
        except ValueError:
            values = []
        if len(values) != 5:
            raise DataError(f"{where}: expected `image score xmin ymin xmax ymax` but got {line.strip()!r}")
        score, x1, y1, x2, y2 = values
        reader.numbers(score, (x1, y1, x2 - x1 + 1.0, y2 - y1 + 1.0), where)
        image_id = name_in(parts[0])  # our own files quote ids with white space; others quote nothing
        yield reader.image(image_id if image_id in reader.dataset.positions else parts[0], where), values


def _arrays(images: list[int], labels: list[int], scores: Any, boxes: NDArray[np.float64]) -> Detections:
    return Detections(
        np.array(images, dtype=np.int32),
        np.array(labels, dtype=np.int64),
        np.array(scores, dtype=np.float64),
        np.ascontiguousarray(boxes),
    )
