"""Writing a COCO folder: annotations/instances_SPLIT.json and images/SPLIT."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepgrad.data.convert.layout import homes, stems_by_home
from stepgrad.data.convert.notes import Notes
from stepgrad.data.convert.objects import Difficult, objects_in, tidy, without_flags
from stepgrad.data.convert.pictures import PictureFiles
from stepgrad.data.convert.source import Source, SourcePicture
from stepgrad.names import file_name


def write_coco(
    source: Source, out: Path, files: PictureFiles, difficult: Difficult, notes: Notes, tick: Callable[[], None]
) -> None:
    """Write the whole dataset into an empty folder."""
    home = homes(source)
    stems = stems_by_home(source, home, notes)
    categories = source.category_ids or tuple(range(1, len(source.class_names) + 1))
    entries: dict[SourcePicture, dict[str, Any]] = {}
    objects: dict[SourcePicture, list[dict[str, Any]]] = {}
    for picture in source.pictures:
        image = f"{home[picture]}/{stems[picture]}{files.suffix(picture)}"
        width, height = files.put(picture, out / "images" / image)
        entries[picture] = {"file_name": image, "width": width, "height": height}
        objects[picture] = _annotations(picture, categories, difficult, notes)
        tick()
    (out / "annotations").mkdir()
    numbered: set[SourcePicture] = set()  # a picture of several splits counts once
    for name, pictures in source.splits.items():
        ids = image_numbers(pictures, notes)
        numbered |= {picture for picture, number in zip(pictures, ids, strict=True) if picture.number != number}
        content = _content(name, pictures, ids, entries, objects)
        content["categories"] = [
            {"id": category, "name": text} for category, text in zip(categories, source.class_names, strict=True)
        ]
        place = out / "annotations" / f"instances_{file_name(name)}.json"
        place.write_bytes(json.dumps(content).encode())
    notes.add("numbered", len(numbered))


def _annotations(
    picture: SourcePicture, categories: tuple[int, ...], difficult: Difficult, notes: Notes
) -> list[dict[str, Any]]:
    objects = without_flags(objects_in(picture), difficult, notes)
    return [
        {
            "category_id": categories[label],
            "bbox": [tidy(x1), tidy(y1), tidy(x2 - x1), tidy(y2 - y1)],
            "area": tidy(area),
            "iscrowd": int(crowd),
        }
        for (x1, y1, x2, y2), label, crowd, area in zip(
            objects.boxes.tolist(), objects.labels.tolist(), objects.crowd.tolist(), objects.area.tolist(), strict=True
        )
    ]


def _content(
    split: str,
    pictures: list[SourcePicture],
    ids: list[int],
    entries: dict[SourcePicture, dict[str, Any]],
    objects: dict[SourcePicture, list[dict[str, Any]]],
) -> dict[str, Any]:
    """One file. File names are relative to images/SPLIT if all images are there, else to images."""
    inside = f"{file_name(split)}/"
    all_inside = all(entries[picture]["file_name"].startswith(inside) for picture in pictures)
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for picture, number in zip(pictures, ids, strict=True):
        entry = {"id": number, **entries[picture]}
        if all_inside:
            entry["file_name"] = entry["file_name"].removeprefix(inside)
        if picture.number != number:
            entry["name"] = picture.name
        images.append(entry)
        for annotation in objects[picture]:
            annotations.append({"id": len(annotations) + 1, "image_id": number, **annotation})
    return {"images": images, "annotations": annotations}


def image_numbers(pictures: list[SourcePicture], notes: Notes) -> list[int]:
    """The ids of the images where they are numbers, each once; else 1, 2, ... in the order of the split."""
    numbers = [picture.number for picture in pictures]
    known = [number for number in numbers if number is not None]
    if len(set(known)) == len(pictures):
        notes.add("order", int(known != sorted(known)))
        return known
    return list(range(1, len(pictures) + 1))
