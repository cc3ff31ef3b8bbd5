"""YOLO datasets: a data.yaml, folders or lists of images, and a text file of labels for each image."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from stepgrad.data.base import DatasetTarget, FileDataset, ImageObjects, Transforms, make_objects
from stepgrad.data.images import read_as_shown, read_facts
from stepgrad.data.problems import Complaints, Degenerate, Report, loading_report, raise_errors
from stepgrad.data.regions import REGIONS_FILE, ImageRegions, Regions, no_regions, read_regions
from stepgrad.data.shape_fields import TASKS, Task, in_pixels, pixels_of, polygon_mask
from stepgrad.data.yolo_images import image_ids_of, label_file, list_images, region_key
from stepgrad.data.yolo_txt import YOLOLabels, read_labels
from stepgrad.data.yolo_yaml import DataYaml, read_data_yaml
from stepgrad.errors import ConfigError, DataError, one_of, suggest
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
    regions: ImageRegions
    """Regions that are crowds of every class, or of one."""

    def objects(self, classes: int, task: str = "boxes", keypoints: tuple[int, int] | None = None) -> ImageObjects:
        """The labelled objects, then each region once per class of its; nothing if the size is not known.

        Shapes are those of a task; poses have `keypoints` points of so many numbers.
        """
        if self.size is None:
            return make_objects([], [])
        found = self.labels or YOLOLabels({})
        rows, of_regions = self.regions.by_class(classes)
        boxes = np.concatenate([found.shares * np.tile(self.size, 2), self.regions.boxes[rows]])
        labels = np.concatenate([found.labels, of_regions])
        shapes = (
            None if task == "boxes" else [*self.shapes(task, keypoints), *self._region_shapes(task, keypoints, rows)]
        )
        area = pixels_of(shapes, str(self.label_path)) if task == "masks" and shapes else None
        return make_objects(boxes, labels, crowd=np.arange(len(boxes)) >= len(found.labels), area=area, shapes=shapes)

    def shapes(self, task: str, keypoints: tuple[int, int] | None) -> list[Any]:
        """The shape of each labelled object in pixels."""
        return [
            yolo_shape(task, values, self.size or (1, 1), keypoints)
            for values in (self.labels.values if self.labels else ())
        ]

    def _region_shapes(self, task: str, keypoints: tuple[int, int] | None, rows: NDArray[np.int64]) -> list[Any]:
        """The shapes of these ignored regions."""
        corners = self.regions.boxes[:, [0, 1, 2, 1, 2, 3, 0, 3]]
        made: list[Any] = list(corners)
        if task == "masks":
            made = [polygon_mask([outline.tolist()], self.size) for outline in corners]
        elif task == "keypoints" and keypoints:
            made = [np.zeros((keypoints[0], 3))] * len(corners)
        return [made[row] for row in rows]


def yolo_shape(task: str, values: NDArray[np.float64], size: tuple[int, int], keypoints: tuple[int, int] | None) -> Any:
    """A shape in pixels from the numbers of a line, in shares of the image: of a label, or of a detection."""
    if task != "keypoints" or keypoints is None:
        points = in_pixels(values, size).reshape(-1)
        return polygon_mask([points.tolist()], size) if task == "masks" else points
    points = in_pixels(values[4:], size, keypoints[1])
    if keypoints[1] == 2:  # no visibility: negative numbers mean that a point is not labelled, as in YOLO tools
        points = np.column_stack([points, 2.0 * (points >= 0.0).all(axis=1)])
    return points[:, :3]


class YOLODataset(FileDataset):
    """Images and objects of a data.yaml, as YOLO tools use it.

    Boxes are relative to the size of the image, so the header of every image is read when the dataset is opened. They belong
    to the picture as viewers show it: if EXIF turns an image, it is turned here, too. Ids are the names of the files without
    suffix; if two images of the split have the same name, all ids are paths. An `ignored_regions.json` next to the data.yaml
    holds regions that are crowds of every class, or of one.

    Args:
        path: the data.yaml.
        split: train, val, test or another split of the file; None takes all of them.
        degenerate: "error" refuses boxes without width or height, "drop" leaves those objects out.
        transforms: called with (image, target).
        images_outside: True lets `path:`, splits, lists and links point outside the folder of data.yaml. Otherwise that is
            refused, because the author of the data would choose what is read and shown in reports.
        task: what targets have besides boxes: "masks" (labels are polygons), "keypoints" (data.yaml has `kpt_shape`), "oriented"
            (labels are four corners); every label must be so.
    """

    def __init__(
        self,
        path: str | Path,
        split: str | None = None,
        degenerate: Degenerate = "error",
        transforms: Transforms | None = None,
        images_outside: bool = False,
        task: Task = "boxes",
    ) -> None:
        one_of("task", task, list(TASKS))
        report = loading_report(degenerate)
        data = read_data_yaml(Path(path), images_outside, report)
        assert data is not None, "loading raises where the doctor continues"
        check_split(data, split)
        self.task, self.keypoints = task, data.keypoint_shape[0] if data.keypoint_shape else None
        self.sigmas = data.sigmas
        if task == "keypoints" and (data.keypoint_shape is None or data.keypoint_shape[1] not in (2, 3)):
            raise DataError(f"{data.path}: expected kpt_shape, as in `kpt_shape: [17, 3]`, for keypoints; add it")
        self.data, self.path, self.root, self.split = data, data.path, data.root, split
        self.transforms = transforms
        self.name = dataset_name(data, split)
        self.class_names = data.class_names
        self.images: list[YOLOImage] = read_images(data, split, report, task)
        kinds = Counter(kind for image in self.images if image.labels for kind in image.labels.kinds)
        unread = {"masks": 0 if task == "oriented" else kinds["polygon"], "keypoints": kinds["pose"]}
        self.unread = {kind: count for kind, count in unread.items() if count and kind != task}
        self.ids: list[str] = image_ids_of([image.path for image in self.images], self.root)
        for image in self.images:
            if image.size is None:
                read_as_shown(image.path)  # says what is wrong with it
                raise DataError(f"{image.path}: its size cannot be read; export the image again")

    def objects(self, index: int) -> ImageObjects:
        return self.images[index].objects(len(self.class_names), self.task, self.data.keypoint_shape)

    def target(self, index: int) -> DatasetTarget:
        return self.objects(index).target(self.ids[index], self.task)

    def image_size(self, index: int) -> tuple[int, int] | None:
        return self.images[index].size

    def image_path(self, index: int) -> Path:
        return self.images[index].path

    def image(self, index: int) -> Image.Image:
        return read_as_shown(self.image_path(index))

    def source(self, index: int) -> str:
        return str(self.images[index].label_path)


def dataset_name(data: DataYaml, split: str | None) -> str:
    """The folder's name, and the split's."""
    return f"{data.root.resolve().name}{f' {split}' if split else ''}"


def check_split(data: DataYaml, split: str | None) -> None:
    """Raise ConfigError if a data.yaml has no such split."""
    if split is not None and split not in data.splits:
        have = ", ".join(data.splits) or "none"
        raise ConfigError(f"{data.path}: has no split {split!r}; it has {have}.{suggest(split, list(data.splits))}")


def read_images(
    data: DataYaml, split: str | None, report: Report = raise_errors, task: str | None = "boxes"
) -> list[YOLOImage]:
    """The images of a split with their labels, handing every problem to `report`."""
    regions = read_regions(data.path.parent / REGIONS_FILE, data.own, data.class_names, report)
    paths = list_images(data, split, report)
    images = [_read_image(path, data, regions, report, task) for path in paths]
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


def _read_image(path: Path, data: DataYaml, regions: Regions, report: Report, task: str | None) -> YOLOImage:
    where = label_file(path)
    numbers = math.prod(data.keypoint_shape) if data.keypoint_shape else 0
    labels = read_labels(where, len(data.class_names), data.own, numbers, report, task)
    try:
        size = read_facts(path).upright_size
    except Exception:  # decoders raise whatever they stumble over; who needs the image says what is wrong
        size = None
    return YOLOImage(path, size, where, labels, regions.get(region_key(path), no_regions()))
