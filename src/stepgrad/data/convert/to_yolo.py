"""Writing a YOLO dataset: data.yaml, images/SPLIT, labels/SPLIT, and lists where folders cannot say it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepgrad.data.convert.layout import homes, note_categories, stems_by_home
from stepgrad.data.convert.notes import Notes
from stepgrad.data.convert.objects import Difficult, SourceObjects, note_areas, objects_in, tidy, without_flags
from stepgrad.data.convert.pictures import PictureFiles
from stepgrad.data.convert.source import Source, SourcePicture
from stepgrad.data.regions import REGIONS_FILE
from stepgrad.data.yolo_txt import TOLERANCE
from stepgrad.data.yolo_yaml import RESERVED_KEYS
from stepgrad.extras import need
from stepgrad.names import file_name, to_utf8

DECIMALS = 12
"""Of a share: an image of 100,000 pixels gets its boxes back to a ten-millionth of a pixel."""


def write_yolo(
    source: Source, out: Path, files: PictureFiles, difficult: Difficult, notes: Notes, tick: Callable[[], None]
) -> None:
    """Write the whole dataset into an empty folder."""
    home = homes(source)
    stems = stems_by_home(source, home, notes)
    note_categories(source, notes)
    regions: dict[str, list[list[float]]] = {}
    image_files: dict[SourcePicture, str] = {}
    for picture in source.pictures:
        place = f"{home[picture]}/{stems[picture]}"
        image_files[picture] = f"{stems[picture]}{files.suffix(picture)}"
        size = files.put(picture, out / "images" / home[picture] / image_files[picture])
        objects = without_flags(objects_in(picture), difficult, notes)
        ignored = _regions(objects, len(source.class_names), notes)
        if len(ignored):
            regions[place] = [[tidy(value) for value in box] for box in ignored]
        lines = _lines(objects[~objects.crowd], size, notes)
        label = out / "labels" / home[picture] / f"{stems[picture]}.txt"
        label.parent.mkdir(parents=True, exist_ok=True)
        label.write_bytes("".join(f"{line}\n" for line in lines).encode())
        tick()
    if regions:
        (out / REGIONS_FILE).write_bytes(json.dumps(regions).encode())
    _write_yaml(source, out, home, image_files)


def _lines(objects: SourceObjects, size: tuple[int, int], notes: Notes) -> list[str]:
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


def _centre_and_size(corners: NDArray[np.float64]) -> NDArray[np.float64]:
    low, high = corners[:2], corners[2:]
    return np.concatenate([(low + high) / 2, high - low])


def _share(value: float) -> str:
    return f"{value:.{DECIMALS}f}".rstrip("0").rstrip(".")


def _regions(objects: SourceObjects, classes: int, notes: Notes) -> list[list[float]]:
    """Regions that are crowds of every class; crowds of single classes have no place."""
    labels_of: dict[tuple[float, ...], set[int]] = {}
    for box, label in zip(objects.boxes[objects.crowd].tolist(), objects.labels[objects.crowd].tolist(), strict=True):
        labels_of.setdefault(tuple(box), set()).add(label)
    ignored = [list(box) for box, labels in labels_of.items() if len(labels) == classes]
    notes.add("crowd", sum(len(labels) for labels in labels_of.values() if len(labels) < classes))
    return ignored


def _write_yaml(
    source: Source, out: Path, home: dict[SourcePicture, str], image_files: dict[SourcePicture, str]
) -> None:
    """A split is its folder if that holds the same images in the same order, else a list."""
    need("yaml", purpose="writing data.yaml of YOLO datasets")
    import yaml

    content: dict[str, Any] = {}  # no `path`: ultralytics sees one from the working directory, not from this file
    for name, pictures in source.splits.items():
        key = f"split_{name}" if name in RESERVED_KEYS else name
        folder = sorted(image_files[picture] for picture in home if home[picture] == file_name(name))
        if all(home[p] == file_name(name) for p in pictures) and folder == [image_files[p] for p in pictures]:
            content[key] = f"images/{file_name(name)}"
        else:
            content[key] = f"{file_name(name)}.txt"
            lines = [f"./images/{home[picture]}/{image_files[picture]}\n" for picture in pictures]
            (out / content[key]).write_bytes(to_utf8("".join(lines)))
    content["names"] = dict(enumerate(source.class_names))
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    (out / "data.yaml").write_bytes(to_utf8(text))
