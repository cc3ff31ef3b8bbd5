"""Reads the VOC 2012 subset with its selective-search windows; no images are decoded here.

The folder is the usual VOC layout (ImageSets/Main, Annotations, JPEGImages) plus `selective_search_fast.npz`, which
holds sorted `ids`, `offsets` and continuous `boxes`: the windows of image i are boxes[offsets[i]:offsets[i + 1]].
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import torch
from torch import Tensor

from stepgrad.errors import DataError

CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)


@dataclass(frozen=True)
class WindowedImage:
    """One image's windows and objects; every box is xyxy in continuous pixels."""

    id: str
    file: Path
    windows: Tensor  # (N, 4)
    boxes: Tensor  # (G, 4)
    labels: Tensor  # (G,)
    difficult: Tensor  # (G,) bool

    @property
    def target(self) -> dict[str, Tensor]:
        return {"boxes": self.boxes, "labels": self.labels, "difficult": self.difficult}


def read_split(root: Path, split: str, count: int | None) -> list[WindowedImage]:
    """The first `count` images of a split (the lists are shuffled, so any prefix is a fair sample)."""
    list_file = root / "ImageSets" / "Main" / f"{split}.txt"
    if not list_file.is_file():
        raise DataError(f"Expected the image list {list_file}; pass the folder that holds VOC2012-320 as --data.")
    ids = list_file.read_text(encoding="utf-8").split()[:count]
    archive = np.load(root / "selective_search_fast.npz")
    rows = np.searchsorted(archive["ids"], ids)
    offsets, windows = archive["offsets"], archive["boxes"]
    return [_read_image(root, i, windows[offsets[r] : offsets[r + 1]]) for i, r in zip(ids, rows, strict=True)]


def _read_image(root: Path, image_id: str, windows: np.ndarray) -> WindowedImage:
    xml = root / "Annotations" / f"{image_id}.xml"
    objects = ElementTree.parse(xml).getroot().findall("object")
    boxes = torch.tensor([_read_box(o) for o in objects], dtype=torch.float32).reshape(-1, 4)
    labels = torch.tensor([CLASSES.index(o.findtext("name", "")) for o in objects], dtype=torch.int64)
    difficult = torch.tensor([o.findtext("difficult", "0").strip() == "1" for o in objects], dtype=torch.bool)
    file = root / "JPEGImages" / f"{image_id}.jpg"
    return WindowedImage(image_id, file, torch.from_numpy(windows.astype(np.float32)), boxes, labels, difficult)


def _read_box(element: ElementTree.Element) -> list[float]:
    """VOC counts pixels from 1 and includes both ends; continuous corners start one lower and end where they end."""
    corner = {name: float(element.findtext(f"bndbox/{name}", "nan")) for name in ("xmin", "ymin", "xmax", "ymax")}
    return [corner["xmin"] - 1, corner["ymin"] - 1, corner["xmax"], corner["ymax"]]
