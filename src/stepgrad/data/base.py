"""The base class of every dataset of stepgrad: images, and targets in the style of torchvision."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from PIL import Image
from torch import Tensor

from stepgrad.data.images import file_fingerprint, image_to_tensor, read_image
from stepgrad.data.shape_fields import column_of, overlap_for
from stepgrad.errors import DataError, InputError, suggest
from stepgrad.names import ImageId as ImageId
from stepgrad.names import is_number
from stepgrad.number_text import counted
from stepgrad.overlaps.base import Overlap


class BoxTarget(TypedDict):
    """The G objects of one image; G may be 0."""

    boxes: Tensor
    """(G, 4) float32, x1 y1 x2 y2, continuous: the left edge of the image is 0, the right edge its width."""
    labels: Tensor
    """(G,) int64 in [0, K), indices of `class_names`."""
    difficult: Tensor
    """(G,) bool: VOC's difficult objects; finding or missing one is neither right nor wrong."""
    iscrowd: Tensor
    """(G,) int64: 1 for COCO's crowd regions, which are not the same as difficult objects."""
    area: Tensor
    """(G,) float32: the file's `area` in COCO, the area of the box elsewhere."""
    image_id: ImageId
    """The id that the dataset itself uses: a string in VOC, the integer of the file in COCO."""


class DatasetTarget(BoxTarget, total=False):
    """The same with the shapes of the objects, if the dataset was loaded for a task that needs them."""

    masks: Any
    """(G, H, W) bool, or a list of G masks in COCO's form: see `sg.overlaps.Masks`."""
    keypoints: Tensor
    """(G, k, 3) x, y, and 0 for a keypoint that is not labelled, 1 if it is hidden, 2 if it can be seen."""
    oriented: Tensor
    """(G, 5) boxes (cx, cy, w, h, angle in radians), or (G, 8) corners."""
    segments: Tensor
    """(G, 2) begin and end."""


Transforms = Callable[[Tensor, DatasetTarget], tuple[Any, Any]]


@dataclass(frozen=True)
class ImageObjects:
    """The G objects of one image as the files have them: targets are float32, which moves boxes with decimals."""

    boxes: NDArray[np.float64]
    """(G, 4) continuous x1 y1 x2 y2."""
    labels: NDArray[np.int64]
    difficult: NDArray[np.bool_]
    crowd: NDArray[np.bool_]
    area: NDArray[np.float64]
    shapes: NDArray[np.object_]
    """Per object what the dataset's task is about: a mask in COCO's form, keypoints (k, 3), corners (8,); None for boxes."""

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows: NDArray[np.bool_]) -> ImageObjects:
        return ImageObjects(*(getattr(self, column.name)[rows] for column in fields(self)))

    def target(self, image_id: ImageId, task: str = "boxes") -> DatasetTarget:
        """The same as tensors, with the shapes of a task."""
        target = DatasetTarget(
            boxes=torch.from_numpy(self.boxes.astype(np.float32)),
            labels=torch.from_numpy(self.labels.copy()),
            difficult=torch.from_numpy(self.difficult.copy()),
            iscrowd=torch.from_numpy(self.crowd.astype(np.int64)),
            area=torch.from_numpy(self.area.astype(np.float32)),
            image_id=image_id,
        )
        if task == "masks":
            target["masks"] = list(self.shapes)
        elif task == "keypoints":
            points = np.array(list(self.shapes), dtype=np.float32)
            target["keypoints"] = torch.from_numpy(points.reshape(len(self), -1 if len(self) else 0, 3))
        elif task == "oriented":
            target["oriented"] = torch.from_numpy(np.array(list(self.shapes), dtype=np.float32).reshape(-1, 8))
        return target


def make_objects(
    boxes: ArrayLike,
    labels: ArrayLike,
    difficult: ArrayLike | None = None,
    crowd: ArrayLike | None = None,
    area: ArrayLike | None = None,
    shapes: Sequence[Any] | None = None,
) -> ImageObjects:
    """Objects from plain lists; areas are those of the boxes unless they are given."""
    xyxy = np.asarray(boxes, dtype=np.float64).reshape(-1, 4)
    G = len(xyxy)
    return ImageObjects(
        boxes=xyxy,
        labels=_column(labels, G, np.int64),
        difficult=_column(difficult, G, np.bool_),
        crowd=_column(crowd, G, np.bool_),
        area=(xyxy[:, 2:] - xyxy[:, :2]).prod(axis=1) if area is None else _column(area, G, np.float64),
        shapes=column_of([None] * G if shapes is None else shapes),
    )


def join_objects(of_images: Sequence[ImageObjects]) -> ImageObjects:
    """The objects of several images, one image after the other."""
    parts = [make_objects([], []), *of_images]  # also of no image at all
    return ImageObjects(*(np.concatenate([getattr(part, c.name) for part in parts]) for c in fields(ImageObjects)))


def make_target(
    boxes: ArrayLike,
    labels: ArrayLike,
    image_id: ImageId,
    difficult: ArrayLike | None = None,
    iscrowd: ArrayLike | None = None,
    area: ArrayLike | None = None,
) -> DatasetTarget:
    """A target of the right types from plain lists.

    >>> make_target([[0, 0, 4, 2]], [1], "a")["area"]
    tensor([8.])
    """
    return make_objects(boxes, labels, difficult, iscrowd, area).target(image_id)


def _column(values: ArrayLike | None, G: int, dtype: type) -> NDArray[Any]:
    """(G,) array of `values`, zeros for None."""
    column: NDArray[Any] = np.zeros(G, dtype=dtype) if values is None else np.array(values, dtype=dtype).reshape(-1)
    if len(column) != G:
        raise InputError(f"Expected one value for each of {counted(G, 'box')} but got {len(column)}.")
    return column


class DetectionDataset(torch.utils.data.Dataset[tuple[Any, Any]], ABC):
    """Images with objects. `dataset[i]` is (image, target); `dataset.target(i)` reads no image."""

    name: str
    class_names: tuple[str, ...]
    ids: Sequence[ImageId]
    task: str = "boxes"
    """What targets have besides boxes: "masks", "keypoints", "oriented" or "segments"; "boxes": nothing."""
    keypoints: int | None = None
    """Number of keypoints of an object, if the task is about them."""
    sigmas: Sequence[float] | None = None
    """How far annotators differ about each keypoint, which OKS needs; None: nobody said."""
    unread: Mapping[str, int] = {}
    """How many masks and keypoints the files have that the task is not about."""
    transforms: Transforms | None = None
    """If given, it is called with (image, target) and returns the pair that `dataset[i]` gives."""

    @abstractmethod
    def target(self, index: int) -> DatasetTarget:
        """The objects of one image."""

    def objects(self, index: int) -> ImageObjects:
        """The objects of one image in the precision of the files."""
        target = self.target(index)
        flags = target["difficult"].numpy(), target["iscrowd"].numpy()
        shapes: Any = None if self.task == "boxes" else target[self.task]  # type: ignore[literal-required]
        return make_objects(
            target["boxes"].numpy(),
            target["labels"].numpy(),
            *flags,
            area=target["area"].numpy() if self.task == "masks" else None,
            shapes=None if shapes is None else [shape.numpy() for shape in shapes],
        )

    def exact_boxes(self, index: int) -> NDArray[np.float64]:
        """(G, 4) the boxes of the target in double precision."""
        return self.objects(index).boxes

    def image_size(self, index: int) -> tuple[int, int] | None:
        """Width and height of an image, if they are known without reading it."""
        return None

    @abstractmethod
    def image(self, index: int) -> Image.Image:
        """The picture in RGB."""

    @abstractmethod
    def fingerprint(self, index: int) -> str:
        """A hash of the picture, which proposal caches are checked against."""

    def source(self, index: int) -> str:
        """Where the picture comes from, for messages."""
        return f"{self.name}, image {self.ids[index]}"

    def overlap(self) -> Overlap:
        """What its objects and detections are compared by."""
        if self.task == "keypoints" and self.keypoints is not None and self.sigmas is None:
            raise DataError(
                f"{self.name}: OKS needs a sigma for each of {counted(self.keypoints, 'keypoint')} (how far annotators differ "
                "about it), and the data has none; write them into the json, as `sigmas` of the category, or pass --sigmas "
                "(in Python: dataset.sigmas = ...)"
            )
        return overlap_for(self.task, self.sigmas)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        """Image, a (3, H, W) uint8 tensor, and its target; after `transforms` if there are any."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"image {index} of {len(self)}")
        index %= len(self)
        image, target = self.image(index), self.target(index)
        self._check_inside(target, image.size, index)
        pair = (image_to_tensor(image), target)
        return self.transforms(*pair) if self.transforms else pair

    def _check_inside(self, target: DatasetTarget, size: tuple[int, int], index: int) -> None:
        """Raise DataError if an object lies wholly outside: it belongs to another image, or to another size of this one."""
        outside = lies_outside(target["boxes"].numpy(), size)
        if outside.any():
            box = target["boxes"][int(outside.argmax())].tolist()
            raise DataError(
                f"{self.source(index)}: box {box} lies outside the {size[0]} x {size[1]} image; "
                "check with `stepgrad doctor` whether image and annotation belong together"
            )

    @cached_property
    def positions(self) -> dict[str, int]:
        """The position of each image by its id as text; `000123` is also found as 123, as YOLO tools write it."""
        found = {str(image_id): i for i, image_id in enumerate(self.ids)}
        numbers = {image_id: str(int(image_id)) for image_id in found if is_number(image_id)}
        if len(set(numbers.values())) == len(numbers):
            found = {number: found[image_id] for image_id, number in numbers.items()} | found
        return found

    def index_of(self, image_id: ImageId) -> int:
        """The position of an image id.

        Ids compare as text, so that detections read from a text file find COCO's integer ids.
        """
        try:
            return self.positions[str(image_id)]
        except KeyError:
            hint = suggest(str(image_id), list(self.positions))
            raise DataError(
                f"{self.name} has no image {image_id!r} among its {counted(len(self), 'image')}.{hint}"
            ) from None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {counted(len(self), 'image')}, {counted(len(self.class_names), 'class')})"


class FileDataset(DetectionDataset):
    """A dataset whose images are files."""

    @abstractmethod
    def image_path(self, index: int) -> Path:
        """The file of one image; DataError if the dataset was loaded without images."""

    def image(self, index: int) -> Image.Image:
        return read_image(self.image_path(index))

    def fingerprint(self, index: int) -> str:
        return file_fingerprint(self.image_path(index))

    def no_images(self) -> DataError:
        return DataError(f"{self.name} was loaded with need_images=False; load it with the images to read them")


def lies_outside(boxes: NDArray[Any], size: tuple[int, int]) -> NDArray[np.bool_]:
    """Which boxes share no area with an image of (width, height).

    >>> lies_outside(np.array([[-1, 0, 5, 5], [10, 0, 12, 5]]), (10, 10))
    array([False,  True])
    """
    width, height = size
    outside: NDArray[np.bool_] = (
        (boxes[:, 0] >= width) | (boxes[:, 1] >= height) | (boxes[:, 2] <= 0) | (boxes[:, 3] <= 0)
    )
    return outside


def image_sizes(dataset: DetectionDataset) -> NDArray[np.float64]:
    """(images, 2) width and height, nan where the annotations do not say."""
    sizes = [dataset.image_size(i) or (np.nan, np.nan) for i in range(len(dataset))]
    return np.array(sizes, dtype=np.float64).reshape(-1, 2)
