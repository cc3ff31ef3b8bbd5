"""Writing a COCO folder: annotations/instances_SPLIT.json and images/SPLIT."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from stepgrad.data.convert.notes import Difficult, Notes, tidy, without_difficult
from stepgrad.data.convert.source import Source, SourcePicture
from stepgrad.data.shape_fields import quad_of
from stepgrad.names import file_name
from stepgrad.overlaps.keypoints import COCO_SIGMAS
from stepgrad.overlaps.masks import coco_counts, runs_of_dense


def write_coco(source: Source, out: Path, difficult: Difficult, notes: Notes) -> None:
    """Write the annotations of all pictures, a file per split."""
    (out / "annotations").mkdir()
    objects = {picture: _annotations(picture, source.category_ids, difficult, notes) for picture in source.pictures}
    named = zip(source.category_ids, source.class_names, strict=True)
    said = {tuple(picture.dataset.sigmas or ()) for picture in source.pictures if picture.dataset.task == "keypoints"}
    sigmas: dict[str, Any] = {"sigmas": list(*said)} if len(said) == 1 and not said <= {(), COCO_SIGMAS} else {}
    categories = [{"id": category, "name": name, **sigmas} for category, name in named]
    numbered: set[SourcePicture] = set()  # a picture of several splits counts once
    for split, pictures in source.splits.items():
        numbers = image_numbers(pictures, notes)
        members = list(zip(pictures, numbers, strict=True))
        numbered |= {picture for picture, number in members if picture.number != number}
        listed = [{"image_id": number, **entry} for picture, number in members for entry in objects[picture]]
        content = {
            "images": _images(split, members),
            "annotations": [{"id": i, **entry} for i, entry in enumerate(listed, 1)],
            "categories": categories,
        }
        place = out / "annotations" / f"instances_{file_name(split)}.json"
        place.write_bytes(json.dumps(content).encode())
    notes.add("numbered", len(numbered))


def _annotations(
    picture: SourcePicture, category_ids: tuple[int, ...], difficult: Difficult, notes: Notes
) -> list[dict[str, Any]]:
    objects = without_difficult(picture.objects, difficult, notes)
    columns = objects.boxes, objects.labels, objects.crowd, objects.area
    shapes = [_shape_fields(picture.dataset.task, shape) for shape in objects.shapes]
    return [
        {
            "category_id": category_ids[label],
            "bbox": [tidy(x1), tidy(y1), tidy(x2 - x1), tidy(y2 - y1)],
            "area": tidy(area),
            "iscrowd": int(crowd),
            **fields,
        }
        for (x1, y1, x2, y2), label, crowd, area, fields in zip(
            *(column.tolist() for column in columns), shapes, strict=True
        )
    ]


def _shape_fields(task: str, shape: Any) -> dict[str, Any]:
    """What COCO's json says of a mask, a pose or an oriented box."""
    if task == "masks":
        if isinstance(shape, np.ndarray):  # pixels, as the built-in set has them
            runs = runs_of_dense(shape[None], "a mask")
            return {"segmentation": {"size": runs.sizes[0].tolist(), "counts": coco_counts(runs, 0)}}
        polygons = [[tidy(value) for value in polygon] for polygon in shape.get("polygons", ())]
        return {"segmentation": polygons or shape}
    if task == "keypoints":
        points = [tidy(value) for value in shape.reshape(-1).tolist()]
        return {"keypoints": points, "num_keypoints": int((shape[:, 2] > 0).sum())}
    if task == "oriented":
        corners = [tidy(value) for value in quad_of(shape).tolist()]
        return {"segmentation": [corners], "poly": corners}
    return {}


def _images(split: str, members: list[tuple[SourcePicture, int]]) -> list[dict[str, Any]]:
    """The entries of a split. File names are relative to images/SPLIT if all images are there, else to images."""
    all_inside = all(picture.home == file_name(split) for picture, _ in members)
    images = []
    for picture, number in members:
        width, height = picture.size
        file = picture.file if all_inside else f"{picture.home}/{picture.file}"
        called = {} if picture.number == number else {"name": picture.name}
        images.append({"id": number, "file_name": file, "width": width, "height": height, **called})
    return images


def image_numbers(pictures: list[SourcePicture], notes: Notes) -> list[int]:
    """The ids of the images where they are numbers, each once; else 1, 2, ... in the order of the split."""
    known = [picture.number for picture in pictures if picture.number is not None]
    if len(set(known)) == len(pictures):
        notes.add("order", int(known != sorted(known)))
        return known
    return list(range(1, len(pictures) + 1))
