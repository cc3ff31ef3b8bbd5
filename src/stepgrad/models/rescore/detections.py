"""Detections of files as dicts per image, and back: entries of COCO's results keep everything but their score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from stepgrad.data.base import DetectionDataset
from stepgrad.data.read_detections import category_ids, json_entries, read_detections
from stepgrad.data.shape_fields import BadShapeError, keypoints_of, mask_of
from stepgrad.errors import DataError

Entries = list[dict[str, Any]]


class FileOfDetections:
    """The entries of a file, and which of them belong to which image.

    Args:
        entries: as COCO's results have them, in the order of the file.
        images: the position of each entry's image.
        labels: the label of each entry.
        count: how many images there are.
    """

    def __init__(self, entries: Entries, images: NDArray[np.int64], labels: NDArray[np.int64], count: int) -> None:
        self.entries, self.labels, self.count = entries, labels, count
        order = np.argsort(images, kind="stable")
        self.rows = np.split(order, np.searchsorted(images[order], np.arange(1, count)))

    def by_image(self, task: str) -> list[dict[str, Any]]:
        """A dict per image, as `Evaluator.update` takes it."""
        return [self._image(rows, task) for rows in self.rows]

    def split(self, features: NDArray[np.float64]) -> list[torch.Tensor]:
        """Features of the entries, by image."""
        return [torch.from_numpy(features[rows]).float() for rows in self.rows]

    def rescored(self, images: Sequence[Mapping[str, Any]]) -> Entries:
        """The entries with the scores of these images, in the order of the file."""
        scores = np.zeros(len(self.entries))
        for rows, image in zip(self.rows, images, strict=True):
            scores[rows] = np.asarray(image["scores"], dtype=np.float64)
        return [{**entry, "score": score} for entry, score in zip(self.entries, scores.tolist(), strict=True)]

    def _image(self, rows: NDArray[np.int64], task: str) -> dict[str, Any]:
        entries = [self.entries[i] for i in rows.tolist()]
        image: dict[str, Any] = {
            "scores": torch.tensor([entry["score"] for entry in entries], dtype=torch.float64),
            "labels": torch.from_numpy(self.labels[rows].astype(np.int64)),
        }
        if all(entry.get("bbox") for entry in entries):
            sides = torch.tensor([entry["bbox"] for entry in entries], dtype=torch.float64).reshape(-1, 4)
            image["boxes"] = torch.cat([sides[:, :2], sides[:, :2] + sides[:, 2:]], dim=1)
        if task == "masks":
            image["masks"] = [mask_of(entry["segmentation"], None) for entry in entries]
        if task == "keypoints":
            points = [keypoints_of(entry["keypoints"]) for entry in entries]
            image["keypoints"] = torch.from_numpy(np.array(points)) if points else torch.zeros(0, 0, 3)
        if entries and all("class_scores" in entry for entry in entries):
            image["class_scores"] = torch.tensor([entry["class_scores"] for entry in entries], dtype=torch.float64)
        return image


def read_with_data(path: Path, dataset: DetectionDataset) -> FileOfDetections:
    """The detections of a file in any form that `stepgrad evaluate` reads, by the images of a dataset."""
    found = read_detections(path, dataset)
    detections = found.boxes(inclusive=False)
    if path.suffix.lower() == ".json":
        entries = json_entries(path)
    else:
        categories = category_ids(dataset)
        entries = [
            {
                "image_id": dataset.ids[image],
                "category_id": categories[label],
                "bbox": [x1, y1, x2 - x1, y2 - y1],
                "score": s,
            }
            for image, label, (x1, y1, x2, y2), s in zip(
                *(c.tolist() for c in (detections.images, detections.labels, detections.boxes, detections.scores)),
                strict=True,
            )
        ]
    return FileOfDetections(entries, detections.images.astype(np.int64), detections.labels, len(dataset))


def read_alone(path: Path, categories: Sequence[int], order: dict[Any, int]) -> FileOfDetections:
    """The detections of a json file without its data; `order` numbers the images as they come, over several files."""
    entries = json_entries(path)
    label = {category: c for c, category in enumerate(categories)}
    images, labels = [], []
    for number, entry in enumerate(entries):
        where = f"{path}: detection {number}"
        missing = [
            key for key in ("image_id", "category_id", "score") if not isinstance(entry, dict) or key not in entry
        ]
        if missing:
            raise DataError(f"{where}: expected image_id, category_id, bbox and score but it has no {missing[0]}")
        if entry["category_id"] not in label:
            raise DataError(
                f"{where}: unknown category_id {entry['category_id']!r}; the rescorer was fitted to {list(categories)}"
            )
        images.append(order.setdefault(entry["image_id"], len(order)))
        labels.append(label[entry["category_id"]])
    return FileOfDetections(entries, np.array(images, dtype=np.int64), np.array(labels, dtype=np.int64), len(order))


def checked_images(found: FileOfDetections, task: str, path: Path) -> list[dict[str, Any]]:
    """Its images; a DataError names the file where a shape cannot be read."""
    try:
        return found.by_image(task)
    except (BadShapeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: cannot be read for task {task} ({error}); expected COCO's results") from error


def entries_of(images: Sequence[Mapping[str, Any]], ids: Sequence[Any], categories: Sequence[int]) -> Entries:
    """Entries of joined detections, image by image."""
    return [
        {"image_id": image_id, "category_id": categories[label], "bbox": [x1, y1, x2 - x1, y2 - y1], "score": score}
        for image_id, image in zip(ids, images, strict=True)
        for (x1, y1, x2, y2), label, score in zip(
            image["boxes"].tolist(), image["labels"].tolist(), image["scores"].tolist(), strict=True
        )
    ]
