"""Writing a YOLO dataset: data.yaml, images/SPLIT, labels/SPLIT, and lists where folders cannot say it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepgrad.data.base import ImageObjects
from stepgrad.data.convert.notes import Difficult, Notes, note_areas, tidy, without_difficult
from stepgrad.data.convert.source import Source
from stepgrad.data.regions import REGIONS_FILE
from stepgrad.data.shape_fields import quad_of
from stepgrad.data.yolo_txt import TOLERANCE
from stepgrad.data.yolo_yaml import RESERVED_KEYS
from stepgrad.extras import need
from stepgrad.names import file_name, to_utf8
from stepgrad.overlaps.keypoints import COCO_SIGMAS

DECIMALS = 12
"""Of a share: an image of 100,000 pixels gets its boxes back to a ten-millionth of a pixel."""


def write_yolo(source: Source, out: Path, difficult: Difficult, notes: Notes) -> None:
    """Write the labels of all pictures, the ignored regions and data.yaml."""
    regions: dict[str, list[list[Any]]] = {}
    for picture in source.pictures:
        objects = without_difficult(picture.objects, difficult, notes)
        ignored = _regions(objects, source.class_names)
        if ignored:
            regions[f"{picture.home}/{picture.stem}"] = ignored
        kept = objects[~objects.crowd]
        task = picture.dataset.task
        if task == "boxes":
            lines = _lines(kept, picture.size, notes)
        else:
            lines = [line for i in range(len(kept)) for line in _shape_line(kept, i, task, picture.size, notes)]
        label = out / "labels" / picture.home / f"{picture.stem}.txt"
        label.parent.mkdir(parents=True, exist_ok=True)
        label.write_bytes("".join(f"{line}\n" for line in lines).encode())
    if regions:
        (out / REGIONS_FILE).write_bytes(json.dumps(regions).encode())
    _write_yaml(source, out)


def _lines(objects: ImageObjects, size: tuple[int, int], notes: Notes) -> list[str]:
    note_areas(objects, notes)
    shares = objects.boxes / np.array([*size, *size])
    lines = []
    for label, corners in zip(objects.labels.tolist(), shares, strict=True):
        numbers = _centre_and_size(corners)
        if numbers.max() > 1 + TOLERANCE or numbers.min() < -TOLERANCE:
            numbers = _centre_and_size(np.clip(corners, 0.0, 1.0))
            if min(numbers[2:]) <= 0:
                notes.add("outside")
                continue
            notes.add("cut")
        elif numbers.max() > 1 or numbers.min() < 0:
            notes.add("beyond")
        lines.append(" ".join([str(label), *map(_share, numbers)]))
    return lines


def _shape_line(objects: ImageObjects, i: int, task: str, size: tuple[int, int], notes: Notes) -> list[str]:
    """The line of a mask, a pose or an oriented box; none for a mask that is no polygon."""
    shape, scale = objects.shapes[i], np.array(size, dtype=np.float64)
    before: list[float] = []
    if task == "keypoints":
        before = _centre_and_size(objects.boxes[i] / np.tile(scale, 2)).tolist()
        numbers = np.column_stack([shape[:, :2] / scale, shape[:, 2]]).reshape(-1)
    elif task == "oriented":
        numbers = (quad_of(shape).reshape(-1, 2) / scale).reshape(-1)
    elif isinstance(shape, dict) and "polygons" in shape:
        notes.add("parts", int(len(shape["polygons"]) > 1))
        numbers = (joined_parts(shape["polygons"]) / scale).reshape(-1)
    else:
        notes.add("runs")
        return []
    if task != "keypoints" and (numbers.max() > 1 + TOLERANCE or numbers.min() < -TOLERANCE):
        notes.add("cut")
        numbers = np.clip(numbers, 0.0, 1.0)
    return [" ".join([str(objects.labels[i]), *map(_share, [*before, *numbers.tolist()])])]


def joined_parts(polygons: list[list[float]]) -> NDArray[np.float64]:
    """(n, 2) one outline around several parts: each is closed before the way leads on, so that these ways enclose nothing.

    >>> joined_parts([[0, 0, 2, 0, 2, 2], [5, 5, 6, 5, 6, 6]]).astype(int).tolist()
    [[0, 0], [2, 0], [2, 2], [0, 0], [5, 5], [6, 5], [6, 6], [5, 5]]
    """
    parts = [np.array(polygon, dtype=np.float64).reshape(-1, 2) for polygon in polygons]
    return parts[0] if len(parts) == 1 else np.concatenate([np.concatenate([part, part[:1]]) for part in parts])


def _centre_and_size(corners: NDArray[np.float64]) -> NDArray[np.float64]:
    low, high = corners[:2], corners[2:]
    return np.concatenate([(low + high) / 2, high - low])


def _share(value: float) -> str:
    return f"{value:.{DECIMALS}f}".rstrip("0").rstrip(".")


def _regions(objects: ImageObjects, class_names: Sequence[str]) -> list[list[Any]]:
    """Regions that are crowds of every class, and those of single classes with their names."""
    crowds = objects[objects.crowd]
    labels_of: dict[tuple[float, ...], set[int]] = {}
    for box, label in zip(crowds.boxes.tolist(), crowds.labels.tolist(), strict=True):
        labels_of.setdefault(tuple(box), set()).add(label)
    listed: list[list[Any]] = []
    for box, labels in labels_of.items():
        place = [tidy(value) for value in box]
        every = len(labels) == len(class_names)
        listed += [place] if every else [[*place, class_names[label]] for label in sorted(labels)]
    return listed


def _write_yaml(source: Source, out: Path) -> None:
    """A split is its folder if that holds the same images in the same order, else a list."""
    need("yaml", purpose="writing data.yaml of YOLO datasets")
    import yaml

    content: dict[str, Any] = {}  # no `path`: ultralytics sees one from the working directory, not from this file
    for name, pictures in source.splits.items():
        key = f"split_{name}" if name in RESERVED_KEYS else name
        inside = [picture for picture in source.pictures if picture.home == file_name(name)]
        if pictures == sorted(inside, key=lambda picture: picture.file):
            content[key] = f"images/{file_name(name)}"
        else:
            content[key] = f"{file_name(name)}.txt"
            lines = "".join(f"./images/{picture.home}/{picture.file}\n" for picture in pictures)
            (out / content[key]).write_bytes(to_utf8(lines))
    dataset = next((picture.dataset for picture in source.pictures), None)
    if dataset is not None and dataset.keypoints and dataset.task == "keypoints":
        content["kpt_shape"] = [dataset.keypoints, 3]
        if dataset.sigmas not in (None, COCO_SIGMAS):
            content["kpt_oks_sigmas"] = list(dataset.sigmas or ())
    content["names"] = dict(enumerate(source.class_names))
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    (out / "data.yaml").write_bytes(to_utf8(text))
