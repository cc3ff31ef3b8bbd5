"""The splits of a dataset that was loaded as a whole."""

from __future__ import annotations

import os

from stepgrad.data.base import DetectionDataset
from stepgrad.data.problems import Complaints, Report
from stepgrad.data.voc import VOCDataset, image_ids, list_splits
from stepgrad.data.yolo import YOLODataset
from stepgrad.data.yolo_images import list_images


def splits_of(dataset: DetectionDataset, report: Report) -> dict[str, list[int]]:
    """The positions of each split's images, in its order; nothing for a dataset that is one split, or that has none."""
    if isinstance(dataset, VOCDataset) and dataset.split is None:
        return {split: _positions_in(dataset, split, report) for split in list_splits(dataset.root)}
    if isinstance(dataset, YOLODataset) and dataset.split is None:
        places = {os.path.abspath(image.path): i for i, image in enumerate(dataset.images)}
        listed = {split: list_images(dataset.data, split, report) for split in dataset.data.splits}
        found = {split: [places.get(os.path.abspath(path)) for path in paths] for split, paths in listed.items()}
        return {split: [i for i in positions if i is not None] for split, positions in found.items()}
    return {}


def _positions_in(dataset: VOCDataset, split: str, report: Report) -> list[int]:
    ids = image_ids(dataset.root, split, dataset.own, report)
    unknown = next((image_id for image_id in ids if image_id not in dataset.positions), None)
    if unknown is not None:
        complain = Complaints(dataset.root, report)
        defect = f"{split}.txt lists {unknown!r}, which has no annotation"
        complain(defect, "annotate it, or remove it from the list", "no-annotation")
    return [dataset.positions[image_id] for image_id in ids if image_id in dataset.positions]


def images_of_splits(dataset: DetectionDataset) -> dict[str, set[int]]:
    """As `splits_of`, whatever is wrong with the lists: problems of other splits do not matter to the images in use."""
    return {split: set(positions) for split, positions in splits_of(dataset, lambda problem: None).items()}
