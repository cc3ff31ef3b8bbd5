"""Detections from disk: COCO's result json and VOC's `comp4` text files, with every defect named."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stepgrad.data.base import DetectionDataset
from stepgrad.data.bulk_results import boxes_at_once, load_json, shapes_besides
from stepgrad.data.coco import COCODataset
from stepgrad.data.detection_rows import ANY_BOX, DetectionChecks, DetectionRow, detections_from, numbers_in, text_lines
from stepgrad.data.problems import brief
from stepgrad.data.read_yolo_detections import (
    labels_of_categories,
    read_yolo_results,
    unknown_category,
    used_categories,
    yolo_text_files,
)
from stepgrad.data.segments import SegmentDataset, read_segment_results
from stepgrad.data.shape_fields import LARGEST, BadShapeError, ShapeReader, is_number, quad_defect
from stepgrad.data.yolo import YOLODataset
from stepgrad.errors import DataError, suggest
from stepgrad.evaluation.other_readings import BoxOrder
from stepgrad.evaluation.records import Detections
from stepgrad.names import file_name, name_in
from stepgrad.overlaps.base import Boxes
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
    unread: tuple[str, ...] = ()
    """Masks or keypoints that the file has and the task is not about."""
    category_ids: tuple[int, ...] | None = None
    """The category id that each label has in the file; None: the file goes by names or labels."""
    by_box_area: bool = False
    """Whether masks and poses are small or large by the areas of their boxes, as in pycocotools where a file has boxes."""

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
    if isinstance(dataset, SegmentDataset):
        return FileDetections(read_segment_results(place, dataset, empty_boxes), inclusive=False)
    if place.suffix.lower() == ".json":
        return read_coco_results(place, dataset, empty_boxes)
    of_images = yolo_text_files(place, dataset)
    if of_images:
        found = read_yolo_results(of_images, dataset, empty_boxes)
        return FileDetections(found, inclusive=False, written="cxcywh")
    files = voc_files(place, dataset.class_names)
    missing = tuple(name for name in dataset.class_names if name not in files)
    found = read_voc_results(files, dataset, empty_boxes)
    return FileDetections(found, inclusive=dataset.task == "boxes", missing=missing)


def read_coco_results(path: Path, dataset: DetectionDataset, empty_boxes: str = "count") -> FileDetections:
    """Read a list of {image_id, category_id, bbox [x, y, width, height], score}, or the same under "annotations".

    For other tasks than boxes, each has `segmentation`, `keypoints`, `poly` or `rbox`, and need not have a bbox.
    """
    entries = json_entries(path)
    labels: dict[Any, int] = {category: label for label, category in enumerate(category_ids(dataset))}
    if isinstance(dataset, YOLODataset):
        labels = labels_of_categories(used_categories(entries), dataset)
    if dataset.task == "boxes" and type(dataset.overlap()) is Boxes:
        positions = {image_id: i for i, image_id in enumerate(dataset.ids)}
        at_once = boxes_at_once(entries, positions, labels, empty_boxes)
        if at_once is not None:
            unread = shapes_besides(entries)
            return FileDetections(at_once, False, "xywh", (), unread, tuple(labels), by_box_area=True)
    checks, shapes, sizes = DetectionChecks(dataset, empty_boxes), ShapeReader(dataset.task), _sizes(dataset)
    shapes.keypoints = dataset.keypoints
    rows: list[DetectionRow] = []
    for number, entry in enumerate(entries):
        where = f"{path}: detection {number}"
        box, score, category = _coco_fields(entry, where, dataset.task)
        if isinstance(category, (list, dict)) or category not in labels:
            why = unknown_category(used_categories(entries), labels, dataset)
            raise DataError(f"{where}: unknown category_id {brief(category)}; {why}")
        image = checks.image(entry["image_id"], where)
        checks.numbers(score, box or ANY_BOX, f"{where}: image {entry['image_id']}")
        try:
            shape = shapes.read(entry, sizes[image]).get(dataset.task)
        except BadShapeError as error:
            raise DataError(f"{where}: {error}; {shapes.way_out}") from None
        rows.append((image, labels[category], score, box, shape))
    found = detections_from(rows, dataset.overlap(), str(path), "xywh")
    first = rows[0][3] if rows else None
    return FileDetections(
        found,
        inclusive=False,
        written="xywh",
        unread=tuple(kind for kind in shapes.seen if kind != dataset.task),
        category_ids=tuple(labels),
        by_box_area=first is not None,
    )


def _sizes(dataset: DetectionDataset) -> list[tuple[int, int] | None]:
    """Width and height of each image, where masks need them."""
    return [dataset.image_size(i) if dataset.task == "masks" else None for i in range(len(dataset))]


def json_entries(path: Path) -> list[Any]:
    """The list in a file of COCO's results."""
    try:
        content = load_json(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: is not JSON ({error}); was it written to the end? Export it again") from error
    if isinstance(content, dict):
        content = content.get("annotations")
    if not isinstance(content, list):
        got = type(content).__name__
        raise DataError(f"{path}: expected a list of detections (COCO's result format) but got {got}")
    return content


def _coco_fields(entry: Any, where: str, task: str) -> tuple[list[float] | None, float, Any]:
    """Box, score and category; masks, poses and oriented boxes may come without a box."""
    keys = ("image_id", "category_id", *(["bbox"] if task == "boxes" else []), "score")
    if not isinstance(entry, dict) or any(key not in entry for key in keys):
        got = sorted(entry) if isinstance(entry, dict) else type(entry).__name__
        raise DataError(
            f"{where}: expected {', '.join(keys)} but got {got}; detections need a score, objects have none"
        )
    box, score = entry.get("bbox"), entry["score"]
    has_box = task == "boxes" or bool(box)
    if has_box and (not isinstance(box, list) or len(box) != 4 or not all(is_number(value) for value in box)):
        raise DataError(f"{where}: expected bbox [x, y, width, height] but got {brief(box)}")
    if not is_number(score):
        raise DataError(f"{where}: expected a number as score but got {brief(score)}")
    numbers = [_bounded(value) for value in box or []] if has_box else None
    return numbers, float(_bounded(score)), entry["category_id"]


def _bounded(value: float) -> float:
    """The number, or an infinity where it is a whole number beyond all doubles."""
    try:
        float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    return value


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
    spellings = {spelling: name for name in class_names for spelling in (name.replace(" ", "-"), name)}
    fitting = fitting or [name for text, name in spellings.items() if _ends_in(file.stem, text)]  # others quote nothing
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
    """Read the lines `image score xmin ymin xmax ymax` of one file per class; the numbers stay as they are.

    Oriented boxes are lines `image score x1 y1 x2 y2 x3 y3 x4 y4`, as in DOTA's Task1_CLASS.txt.
    """
    if dataset.task not in ("boxes", "oriented"):
        some = next(iter(files.values()))
        raise DataError(f"{some}: text files for each class have no {dataset.task}; expected a result .json of COCO")
    checks = DetectionChecks(dataset, empty_boxes)
    of_classes = [(label, files[name]) for label, name in enumerate(dataset.class_names) if name in files]
    rows = (row for label, file in of_classes for row in _voc_rows(file, label, checks))
    return detections_from(rows, dataset.overlap(), "the detections")


def _voc_rows(file: Path, label: int, checks: DetectionChecks) -> Iterator[DetectionRow]:
    for where, line in text_lines(file):
        word, *words = line.split()
        values = numbers_in(words)
        if checks.dataset.task == "oriented":
            if len(values) != 9 or not all(abs(value) < LARGEST for value in values):
                raise DataError(f"{where}: expected `image score x1 y1 x2 y2 x3 y3 x4 y4` but got {brief(line)}")
            checks.numbers(values[0], ANY_BOX, where)
            corners = np.array(values[1:])
            if quad_defect(corners):
                raise DataError(f"{where}: {quad_defect(corners)}, but got {brief(line)}; fix the detector")
            yield checks.image(word, where), label, values[0], None, corners
            continue
        if len(values) != 5:
            raise DataError(f"{where}: expected `image score xmin ymin xmax ymax` but got {line!r}")
        score, x1, y1, x2, y2 = values
        checks.numbers(score, (x1, y1, x2 - x1 + 1.0, y2 - y1 + 1.0), where)
        image_id = name_in(word)  # our own files quote ids with white space; others quote nothing
        image = checks.image(image_id if image_id in checks.dataset.positions else word, where)
        yield image, label, score, (x1, y1, x2, y2), None
