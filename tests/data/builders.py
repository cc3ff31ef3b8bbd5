"""Small datasets on disk, good ones: each test spoils its own."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

SIZE = (60, 40)

VOCObject = tuple[str, Any, Any, Any, Any]
"""name, xmin, ymin, xmax, ymax: written as they are."""

DOG: VOCObject = ("dog", 11, 6, 30, 25)
CAT: VOCObject = ("cat", 1, 1, 60, 40)


def voc_xml(objects: Sequence[VOCObject], size: tuple[int, int] | None = SIZE, difficult: str | None = "0") -> str:
    """An annotation; difficult None leaves the tag out."""
    flag = "" if difficult is None else f"<difficult>{difficult}</difficult>"
    width, height = size or (0, 0)
    parts = [f"<annotation><size><width>{width}</width><height>{height}</height><depth>3</depth></size>"]
    for name, *corners in objects:
        tags = zip(("xmin", "ymin", "xmax", "ymax"), corners, strict=True)
        box = "".join(f"<{tag}>{value}</{tag}>" for tag, value in tags)
        parts.append(f"<object><name>{name}</name>{flag}<bndbox>{box}</bndbox></object>")
    return "\n".join([*parts, "</annotation>"])


def write_image(path: Path, size: tuple[int, int] = SIZE, mode: str = "RGB", seed: int = 0, **options: Any) -> None:
    """Noise, so that no two images are the same and none compresses to nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(path, **options)


def write_voc(
    root: Path,
    objects: Mapping[str, Sequence[VOCObject]] | None = None,
    splits: Mapping[str, str] | None = None,
) -> Path:
    """A devkit folder with one annotation and image an entry; splits are the texts of the lists."""
    objects = objects or {"a": [DOG, CAT], "b": [DOG]}
    for folder in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (root / folder).mkdir(parents=True)
    for seed, (image_id, found) in enumerate(objects.items()):
        (root / "Annotations" / f"{image_id}.xml").write_text(voc_xml(found))
        write_image(root / "JPEGImages" / f"{image_id}.jpg", seed=seed)
    for split, text in (splits or {"train": "a\nb\n"}).items():
        path = root / "ImageSets" / "Main" / f"{split}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return root


def coco_content() -> dict[str, Any]:
    """Two images, two categories in an order that is not that of their ids, three objects."""
    return {
        "images": [
            {"id": 9, "file_name": "nine.jpg", "width": SIZE[0], "height": SIZE[1]},
            {"id": 4, "file_name": "four.jpg", "width": SIZE[0], "height": SIZE[1]},
        ],
        "categories": [{"id": 18, "name": "dog"}, {"id": 17, "name": "cat"}],
        "annotations": [
            {"id": 1, "image_id": 9, "category_id": 17, "bbox": [1, 2, 10, 20], "area": 77.5, "iscrowd": 0},
            {"id": 2, "image_id": 9, "category_id": 18, "bbox": [5.5, 5, 20, 20], "iscrowd": 1},
            {"id": 3, "image_id": 4, "category_id": 18, "bbox": [0, 0, 60, 40]},
        ],
    }


def write_coco(root: Path, content: Any = None, images: str = "images") -> Path:
    """A json file with its images beside it."""
    root.mkdir(parents=True, exist_ok=True)
    path = root / "instances.json"
    path.write_text(json.dumps(coco_content() if content is None else content))
    for seed, name in enumerate(("nine.jpg", "four.jpg")):
        write_image(root / images / name, seed=seed)
    return path


def shared_data(name: str) -> Path:
    """Data that cannot be part of the project; the test is left out where it is absent."""
    root = os.environ.get("STEPGRAD_DATA")
    path = Path(root or "absent") / name
    if not path.exists():
        pytest.skip(f"needs {name}: set STEPGRAD_DATA to the folder that holds it")
    return path


YOLO_YAML = "path: .\ntrain: images/train\nval: images/val\nnames: [cat, dog]\n"
YOLO_LABELS = {
    "train/a": "1 0.5 0.5 0.5 0.25\n0 0.25 0.5 0.5 1\n",
    "train/b": "1 0.5 0.5 0.5 0.5\n",
    "val/c": "0 .5 .5 1 1",
}


def write_yolo(root: Path, yaml: str = YOLO_YAML, labels: Mapping[str, str] | None = None) -> Path:
    """A data.yaml with images/ and labels/ beside it; gives the yaml file."""
    for seed, (name, text) in enumerate((YOLO_LABELS if labels is None else labels).items()):
        write_image(root / "images" / f"{name}.jpg", seed=seed)
        path = root / "labels" / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "data.yaml").write_text(yaml)
    return root / "data.yaml"
