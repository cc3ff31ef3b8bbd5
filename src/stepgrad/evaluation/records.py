"""Detections and objects of all images as flat arrays, and what no protocol can judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepgrad.errors import InputError, NonFiniteError
from stepgrad.metric.boxes import MEASURABLE, areas_of, sizes_of, unmeasurable
from stepgrad.names import ImageId
from stepgrad.overlaps.base import Overlap
from stepgrad.overlaps.batch import BOXES

ImageDict = Mapping[str, Any]
"""The detections or the objects of one image: tensors by name, as torchmetrics has them."""


class _FlatBoxes:
    """The boxes of many images in one array."""

    boxes: NDArray[np.float64]
    sizes: NDArray[np.float64]

    def __post_init__(self) -> None:
        if self.sizes is None:
            object.__setattr__(self, "sizes", sizes_of(self.boxes))

    def take(self, rows: NDArray[Any], overlap: Overlap = BOXES) -> Any:
        """Some of the rows, in this order."""
        columns = {name: values[rows] for name, values in vars(self).items() if name != "shapes"}
        shapes = vars(self)["shapes"]
        kind: Any = type(self)
        return kind(**columns, shapes=None if shapes is None else overlap.take(shapes, rows))

    def with_boxes(self, boxes: NDArray[np.float64]) -> Any:
        """The same with other corners, from which the sizes follow."""
        return replace(self, boxes=boxes, sizes=None)  # type: ignore[type-var]


@dataclass(frozen=True)
class Detections(_FlatBoxes):
    """M detections of all images and classes. Equal scores rank by their order here."""

    images: NDArray[np.int32]
    labels: NDArray[np.int64]
    scores: NDArray[np.float64]
    boxes: NDArray[np.float64]  # (M, 4) x1 y1 x2 y2
    sizes: NDArray[np.float64] = None  # type: ignore[assignment]
    """(M, 2) width and height as the source wrote them; of boxes written as corners, what the corners give.

    COCO's files say x, y, width, height. Where these have decimals, (x + width) - x need not be the width that was
    written, and pycocotools takes areas from the latter: enough to push an overlap over a threshold.
    """
    shapes: Any = None
    """Masks, poses or oriented boxes, as the evidence's overlap keeps them; None: the boxes."""

    def __len__(self) -> int:
        return len(self.scores)


@dataclass(frozen=True)
class GroundTruth(_FlatBoxes):
    """G objects of all images and classes."""

    images: NDArray[np.int32]
    labels: NDArray[np.int64]
    boxes: NDArray[np.float64]  # (G, 4) x1 y1 x2 y2
    difficult: NDArray[np.bool_]
    crowd: NDArray[np.bool_]
    area: NDArray[np.float64]  # as annotated, which may be that of a mask: what COCO's small, medium and large go by
    sizes: NDArray[np.float64] = None  # type: ignore[assignment]
    """(G, 2) as for `Detections`."""
    shapes: Any = None
    """As for `Detections`."""

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class LookedFor:
    """Pairs of image and label about which more is known than the objects say (LVIS)."""

    absent: NDArray[np.int64]  # (N, 2): looked for, and not there
    partly: NDArray[np.int64]  # (N, 2): there, but not all of it is annotated


@dataclass(frozen=True)
class Evidence:
    """Detections and objects of the same images: everything a protocol judges by."""

    detections: Detections
    objects: GroundTruth
    image_ids: Sequence[ImageId]
    class_names: tuple[str, ...]
    pixel_offset: float | None = None
    """What has to be added to widths and heights to make them right: 0 for continuous boxes, 1 for inclusive pixels.
    None: every protocol uses the numbers as they are."""
    looked_for: LookedFor | None = None
    """Which classes the annotators looked for in which images; None: all classes in all images."""
    limits: NDArray[np.float64] | None = None
    """(images, 2, 4) lowest and highest x1 y1 x2 y2 of boxes in each image, nan where its size is not known. Inclusive pixels
    have other limits for the two corners: a box without area ends a pixel before it begins."""
    overlap: Overlap = BOXES
    """What detections and objects are compared by."""
    by_box_area: bool = False
    """Whether detections of shapes are small or large by the areas of their boxes, as in pycocotools where files have boxes."""
    resizings: NDArray[np.float64] | None = None
    """(images, 4) factors of x and y, then what is added, from each image to the resized one in which a tool counted it."""

    @property
    def num_images(self) -> int:
        return len(self.image_ids)

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def has_shapes(self) -> bool:
        """Whether something else than boxes is compared."""
        return self.objects.shapes is not None

    def detection_areas(self, pixel_offset: float) -> NDArray[np.float64]:
        """(M,) areas of the detections, which COCO's small, medium and large go by."""
        if self.has_shapes and not self.by_box_area:
            return self.overlap.areas(self.detections.shapes)
        return areas_of(self.detections.sizes, 0.0 if self.has_shapes else pixel_offset)

    def seen_with(self, pixel_offset: float) -> Evidence:
        """The boxes as a protocol that adds `pixel_offset` expects them; boxes that need no change stay the same to the last bit.

        Inclusive pixels that start at 1 still do: all boxes are moved a pixel right and down, which changes no overlap.
        """
        return self if self.pixel_offset is None else self.shrunk(pixel_offset - self.pixel_offset)

    def shrunk(self, pixels: float) -> Evidence:
        """The same with right and lower edges moved in, which turns continuous boxes into inclusive ones."""
        if pixels == 0.0:
            return self
        corner = np.array([0.0, 0.0, pixels, pixels])
        return replace(
            self,
            pixel_offset=None if self.pixel_offset is None else self.pixel_offset + pixels,
            detections=self.detections.with_boxes(self.detections.boxes - corner),
            objects=self.objects.with_boxes(self.objects.boxes - corner),
            limits=None if self.limits is None else self.limits - corner,
        )


@dataclass(frozen=True)
class InputCheck:
    """Refuses detections and objects that no protocol can judge, with the image and the reason."""

    num_classes: int
    pixel_offset: float = 0.0
    """Objects must have positive width and height after this is added; of detections neither may be negative."""
    empty_boxes: str = "count"
    """"count": a detection without area overlaps nothing, so it is a false positive; "error" refuses it."""

    def check_detections(self, detections: Detections, names: Sequence[ImageId]) -> None:
        """Raise if a detection cannot be judged; `names` are the ids of the images."""
        _check_finite(detections.scores, detections.images, names, "scores", "NaN scores come from a diverged model")
        _check_finite(detections.boxes, detections.images, names, "boxes", "look at the model that made them")
        self._check_labels(detections.labels, detections.images, names, "detection")
        if self.empty_boxes == "error":
            way_out = 'drop it, or count such detections as false alarms with empty_boxes="count"'
            self._check_boxes(detections, names, "detection", "positive", way_out)
        else:
            way_out = "swap its corners or drop it (were sizes given instead of corners?)"
            self._check_boxes(detections, names, "detection", "no negative", way_out)

    def check_objects(self, objects: GroundTruth, names: Sequence[ImageId]) -> None:
        """Raise if an object cannot be found by any detection."""
        _check_finite(objects.boxes, objects.images, names, "target boxes", "fix the annotation")
        self._check_labels(objects.labels, objects.images, names, "object")
        self._check_boxes(objects, names, "object", "positive", "fix or drop the annotation")
        wrong = ~(np.isfinite(objects.area) & (objects.area >= 0.0))
        if wrong.any():
            image, index = _locate(wrong, objects.images)
            raise InputError(
                f"image {names[image]}: expected areas of at least 0 but the area of object {index} is "
                f"{objects.area[wrong][0]}; fix the annotation, or leave its area out to use that of the box."
            )

    def _check_labels(
        self, labels: NDArray[np.int64], images: NDArray[np.int32], names: Sequence[ImageId], kind: str
    ) -> None:
        outside = (labels < 0) | (labels >= self.num_classes)
        if outside.any():
            image, index = _locate(outside, images)
            raise InputError(
                f"image {names[image]}: expected labels in [0, {self.num_classes}) but {kind} {index} has label "
                f"{labels[outside][0]}; labels that count background as 0 need 1 subtracted."
            )

    def _check_boxes(
        self, boxes: Detections | GroundTruth, names: Sequence[ImageId], kind: str, least: str, way_out: str
    ) -> None:
        """`least` is what sizes must be: "positive" or "no negative"."""
        sizes = boxes.sizes + self.pixel_offset
        smallest = np.minimum(sizes[:, 0], sizes[:, 1])
        wrong: NDArray[np.bool_] = smallest <= 0.0 if least == "positive" else smallest < 0.0
        if wrong.any():
            image, index = _locate(wrong, boxes.images)
            raise InputError(
                f"image {names[image]}: expected boxes as (x1, y1, x2, y2) of {least} width and height "
                f"but {kind} {index} is {boxes.boxes[wrong][0].tolist()}; {way_out}."
            )
        wrong = unmeasurable(sizes)
        if wrong.any():
            image, index = _locate(wrong, boxes.images)
            raise InputError(
                f"image {names[image]}: expected {MEASURABLE} but {kind} {index} is "
                f"{boxes.boxes[wrong][0].tolist()}; are these pixels?"
            )


def _locate(wrong: NDArray[np.bool_], images: NDArray[np.int32]) -> tuple[int, int]:
    """Image of the first wrong row, and the row's number within its image."""
    row = int(np.argmax(wrong))
    return int(images[row]), int(np.count_nonzero(images[:row] == images[row]))


def _check_finite(
    values: NDArray[np.float64], images: NDArray[np.int32], names: Sequence[ImageId], kind: str, way_out: str
) -> None:
    if not np.isfinite(values).all():
        wrong: NDArray[np.bool_] = ~np.isfinite(values.reshape(len(values), -1).sum(axis=1))
        image, index = _locate(wrong, images)
        got = values[wrong][0].tolist()
        raise NonFiniteError(f"image {names[image]}: expected finite {kind} but {kind}[{index}] is {got}; {way_out}.")
