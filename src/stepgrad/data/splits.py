"""The splits of a dataset that was loaded as a whole."""

from __future__ import annotations

import os

from stepgrad.data.base import DetectionDataset
from stepgrad.data.voc import VOCDataset, image_ids, list_splits
from stepgrad.data.yolo import YOLODataset
from stepgrad.data.yolo_images import list_images
from stepgrad.data.yolo_yaml import read_data_yaml


def images_of_splits(dataset: DetectionDataset) -> dict[str, set[int]]:
    """The positions of each split's images; nothing for a dataset that is one split, or that has none."""
    if isinstance(dataset, VOCDataset) and dataset.split is None:
        ids = {split: image_ids(dataset.root, split, dataset.own, _pass_over) for split in list_splits(dataset.root)}
        return {split: {dataset.positions[i] for i in found if i in dataset.positions} for split, found in ids.items()}
    if isinstance(dataset, YOLODataset) and dataset.split is None:
        places = {os.path.abspath(image.path): i for i, image in enumerate(dataset.images)}
        data = read_data_yaml(dataset.path, True, _pass_over)  # the dataset has been loaded: its images are allowed
        assert data is not None, "it has been read before"
        paths = {split: list_images(data, split, _pass_over) for split in data.splits}
        found = {split: [places.get(os.path.abspath(path)) for path in listed] for split, listed in paths.items()}
        return {split: {i for i in positions if i is not None} for split, positions in found.items()}
    return {}


def _pass_over(_: object) -> None:
    """Problems were reported when the dataset was loaded, or concern other splits only."""
