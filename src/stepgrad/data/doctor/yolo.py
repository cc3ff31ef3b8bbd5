"""`stepgrad doctor` on a data.yaml of YOLO: every problem reported, everything readable returned."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np

from stepgrad.data.doctor.summary import ExaminedDataset, ExaminedImage
from stepgrad.data.problems import Complaints, Report
from stepgrad.data.regions import REGIONS_FILE, read_regions
from stepgrad.data.yolo import YOLOImage, check_split, dataset_name, read_images
from stepgrad.data.yolo_images import image_ids_of, label_file, list_images, region_key
from stepgrad.data.yolo_yaml import SPLITS, DataYaml, read_data_yaml


def examine_yolo(
    path: Path, split: str | None, need_images: bool, images_outside: bool, report: Report
) -> ExaminedDataset:
    """Read the files; return the readable images, and report every problem."""
    data = read_data_yaml(path, images_outside, report)
    if data is None:
        return ExaminedDataset("YOLO dataset", path.stem, [], ())
    check_split(data, split)
    images = read_images(data, split, images_outside, report)
    if split is None:
        _check_overlaps(data, images_outside, report)
        _check_spare(data, images, report)
    ids = image_ids_of([image.path for image in images], data.root)
    entries = [
        _entry(image_id, image, data.class_names, need_images) for image_id, image in zip(ids, images, strict=True)
    ]
    return ExaminedDataset("YOLO dataset", dataset_name(data, split), entries, data.class_names)


def _entry(image_id: str, image: YOLOImage, class_names: tuple[str, ...], need_images: bool) -> ExaminedImage:
    classes = len(class_names)
    boxes = image.boxes(classes)
    return ExaminedImage(
        image_id=image_id,
        source=str(image.labels.path),
        image=image.path if need_images or image.size is None else None,
        size=image.size,
        names=tuple(class_names[label] for label in image.classes_of_boxes(classes).tolist()),
        boxes=boxes,
        difficult=np.zeros(len(boxes), dtype=np.bool_),
        crowd=image.crowd(classes).astype(np.bool_),
        as_shown=True,
    )


def _check_overlaps(data: DataYaml, images_outside: bool, report: Report) -> None:
    """Report images that train, val and test share."""
    lists = {
        name: {str(path.resolve()) for path in list_images(data, name, images_outside, lambda problem: None)}
        for name in SPLITS
        if name in data.splits
    }
    for first, second in combinations(lists, 2):
        common = sorted(lists[first] & lists[second])
        if common:
            defect = f"{first} shares {len(common)} images with {second}, first {common[0]}"
            fix = "remove them from one of the two, or the scores will be too high"
            Complaints(data.path, report)(defect, fix, "splits-overlap", "warning")


def _check_spare(data: DataYaml, images: list[YOLOImage], report: Report) -> None:
    """Report label files and ignored regions without an image."""
    labels = {image.labels.path for image in images}
    for folder in sorted({label_file(image.path).parent for image in images}):
        spare = sorted(path for path in folder.glob("*.txt") if path not in labels and path.name != "classes.txt")
        if spare and not any(image.path.parent == folder for image in images):
            defect = f"{len(spare)} label files have no image, first {spare[0].name!r}"
            Complaints(folder, report)(defect, "they are not used; restore the images", "label-spare", "warning")
    place = data.path.parent / REGIONS_FILE
    unknown = sorted(set(read_regions(place, lambda problem: None)) - {region_key(image.path) for image in images})
    if unknown:
        defect = f"has regions of {len(unknown)} images that are not there, first {unknown[0]!r}"
        fix = 'expected names such as "train/a" for images/train/a.jpg; they are not used'
        Complaints(place, report)(defect, fix, "region-spare", "warning")
