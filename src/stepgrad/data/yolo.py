"""YOLO datasets: a data.yaml, folders or lists of images, and a text file of labels for each image."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from stepgrad.data.base import DatasetTarget, FileDataset, ImageObjects, Transforms, make_objects
from stepgrad.data.images import read_as_shown, read_facts
from stepgrad.data.problems import Complaints, Degenerate, Report, loading_report, raise_errors
from stepgrad.data.regions import REGIONS_FILE, Regions, read_regions
from stepgrad.data.yolo_images import image_ids_of, label_file, list_images, region_key
from stepgrad.data.yolo_txt import YOLOLabels, read_labels
from stepgrad.data.yolo_yaml import DataYaml, read_data_yaml
from stepgrad.errors import ConfigError, DataError, suggest
from stepgrad.number_text import part_counted


@dataclass(frozen=True)
class YOLOImage:
    """One image with its labels; R ignored regions."""

    path: Path
    size: tuple[int, int] | None
    """Width and height as viewers show it; None if it cannot be read."""
    label_path: Path
    labels: YOLOLabels | None
    """None if there is no label file; then the image has no objects."""
    regions: NDArray[np.float64]
    """(R, 4) regions that are crowds of every class."""

    def objects(self, classes: int) -> ImageObjects:
        """The labelled objects, then each region once per class; nothing if the size is not known."""
        if self.size is None:
            return make_objects([], [])
        found = self.labels or YOLOLabels({})
        boxes = np.concatenate([found.shares * np.tile(self.size, 2), np.repeat(self.regions, classes, axis=0)])
        labels = np.concatenate([found.labels, np.tile(np.arange(classes), len(self.regions))])
        return make_objects(boxes, labels, crowd=np.arange(len(boxes)) >= len(found.labels))


class YOLODataset(FileDataset):
    """Images and objects of a data.yaml, as YOLO tools use it.

    Boxes are relative to the size of the image, so the header of every image is read when the dataset is opened. They belong
    to the picture as viewers show it: if EXIF turns an image, it is turned here, too. Ids are the names of the files without
    suffix; if two images of the split have the same name, all ids are paths. An `ignored_regions.json` next to the data.yaml
    holds regions that are crowds of every class.

    Args:
        path: the data.yaml.
        split: train, val, test or another split of the file; None takes all of them.
        degenerate: "error" refuses boxes without width or height, "drop" leaves those objects out.
        transforms: called with (image, target).
        images_outside: True lets `path:`, splits, lists and links point outside the folder of data.yaml. Otherwise that is
            refused, because the author of the data would choose what is read and shown in reports.
    """

    def __init__(
        self,
        path: str | Path,
        split: str | None = None,
        degenerate: Degenerate = "error",
        transforms: Transforms | None = None,
        images_outside: bool = False,
    ) -> None:
        report = loading_report(degenerate)
        data = read_data_yaml(Path(path), images_outside, report)
        assert data is not None, "loading raises where the doctor continues"
        check_split(data, split)
        self.data, self.path, self.root, self.split = data, data.path, data.root, split
        self.transforms = transforms
        self.name = dataset_name(data, split)
        self.class_names = data.class_names
        self.images: list[YOLOImage] = read_images(data, split, report)
        self.ids: list[str] = image_ids_of([image.path for image in self.images], self.root)
        for image in self.images:
            if image.size is None:
                read_as_shown(image.path)  # says what is wrong with it
                raise DataError(f"{image.path}: its size cannot be read; export the image again")

    def objects(self, index: int) -> ImageObjects:
        return self.images[index].objects(len(self.class_names))

    def target(self, index: int) -> DatasetTarget:
        return self.objects(index).target(self.ids[index])

    def image_size(self, index: int) -> tuple[int, int] | None:
        return self.images[index].size

    def image_path(self, index: int) -> Path:
        return self.images[index].path

    def image(self, index: int) -> Image.Image:
        return read_as_shown(self.image_path(index))

    def source(self, index: int) -> str:
        return str(self.images[index].label_path)

    @cached_property
    def positions(self) -> dict[str, int]:
        """The position of each image by its id; `000123` is also found as 123, as YOLO tools write it."""
        found = {image_id: i for i, image_id in enumerate(self.ids)}
        numbers = {image_id: str(int(image_id)) for image_id in self.ids if is_number(image_id)}
        if len(set(numbers.values())) == len(numbers):
            found = {number: found[image_id] for image_id, number in numbers.items()} | found
        return found


def is_number(name: str) -> bool:
    """Whether a name is a whole number that other formats can have as an id.

    >>> is_number("000123"), is_number("a1"), is_number("²")
    (True, False, False)
    """
    return name.isascii() and name.isdigit() and len(name) <= 18


def dataset_name(data: DataYaml, split: str | None) -> str:
    """The folder's name, and the split's."""
    return f"{data.root.resolve().name}{f' {split}' if split else ''}"


def check_split(data: DataYaml, split: str | None) -> None:
    """Raise ConfigError if a data.yaml has no such split."""
    if split is not None and split not in data.splits:
        have = ", ".join(data.splits) or "none"
        raise ConfigError(f"{data.path}: has no split {split!r}; it has {have}.{suggest(split, list(data.splits))}")


def read_images(data: DataYaml, split: str | None, report: Report = raise_errors) -> list[YOLOImage]:
    """The images of a split with their labels, handing every problem to `report`."""
    regions = read_regions(data.path.parent / REGIONS_FILE, data.own, report)
    paths = list_images(data, split, report)
    images = [_read_image(path, data, regions, report) for path in paths]
    missing = [image for image in images if image.labels is None]
    if missing:
        count = part_counted(len(missing), len(images), "image", "have")
        defect = f"{count} no label file, first {missing[0].label_path}"
        complain = Complaints(data.path, report)
        if len(missing) == len(images):
            fix = "put the labels where `images` in the path of an image becomes `labels`"
            complain(defect, fix, "label-missing")
        else:
            fix = "they count as background; restore the files if that is wrong"
            complain(defect, fix, "label-missing", "warning")
    return images


def _read_image(path: Path, data: DataYaml, regions: Regions, report: Report) -> YOLOImage:
    where = label_file(path)
    labels = read_labels(where, len(data.class_names), data.own, data.keypoint_numbers, report)
    try:
        size = read_facts(path).upright_size
    except Exception:  # decoders raise whatever they stumble over; who needs the image says what is wrong
        size = None
    return YOLOImage(path, size, where, labels, regions.get(region_key(path), np.zeros((0, 4))))
