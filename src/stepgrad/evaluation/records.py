"""Detections and objects of all images as flat arrays, and the checked tensors that they come from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stepgrad.errors import InputError, NonFiniteError
from stepgrad.metric.boxes import MEASURABLE, areas_of, sizes_of, unmeasurable
from stepgrad.names import ImageId
from stepgrad.overlaps.base import Boxes, Overlap, shapes_in
from stepgrad.overlaps.batch import BOXES
from stepgrad.plain_tensors import refuse_unreadable, tensor_of, widened

ImageDict = Mapping[str, Any]
"""The detections or the objects of one image: tensors by name, as torchmetrics has them."""
_STRETCH = 1 << 14  # numbers; torch takes a second thread from twice as many on


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


def detections_of(
    preds: Sequence[ImageDict], first: int, names: Sequence[ImageId], overlap: Overlap = BOXES
) -> Detections:
    """Flatten torchmetrics' predictions: one dict of boxes (or masks, keypoints), scores and labels per image."""
    preds, shapes = _with_boxes(preds, names, "predictions", overlap, overlap.windows_of)
    boxes, counts = _rows(preds, "boxes", (4,), names, "predictions")
    scores, scored = _rows(preds, "scores", (), names, "predictions")
    labels, labelled = _rows(preds, "labels", (), names, "predictions")
    _check_counts(names, {"boxes": counts, "scores": scored, "labels": labelled})
    images = np.repeat(np.arange(first, first + len(preds), dtype=np.int32), counts)
    return Detections(images, _integers(labels, preds, names), _doubles(scores), _doubles(boxes), shapes=shapes)


def objects_of(
    targets: Sequence[ImageDict], first: int, names: Sequence[ImageId], overlap: Overlap = BOXES
) -> GroundTruth:
    """Flatten the targets: one dict of boxes (or masks, keypoints) and labels per image; difficult, iscrowd and area, or areas,
    may be missing."""
    targets = [{**t, "area": t["areas"]} if isinstance(t, Mapping) and "areas" in t else t for t in targets]
    targets, shapes = _with_boxes(targets, names, "targets", overlap, overlap.objects)
    boxes, counts = _rows(targets, "boxes", (4,), names, "targets")
    labels, labelled = _rows(targets, "labels", (), names, "targets")
    _check_counts(names, {"boxes": counts, "labels": labelled})
    images = np.repeat(np.arange(first, first + len(targets), dtype=np.int32), counts)
    corners = _doubles(boxes)
    with np.errstate(over="ignore", invalid="ignore"):
        box_area = areas_of(np.maximum(sizes_of(corners), 0.0), 0.0)
    return GroundTruth(
        images,
        _integers(labels, targets, names),
        corners,
        _optional(targets, "difficult", counts, names, np.zeros(len(corners))) != 0.0,
        _optional(targets, "iscrowd", counts, names, np.zeros(len(corners))) != 0.0,
        _optional(targets, "area", counts, names, box_area if shapes is None else overlap.areas(shapes)),
        shapes=shapes,
    )


def _with_boxes(
    entries: Sequence[ImageDict],
    names: Sequence[ImageId],
    kind: str,
    overlap: Overlap,
    read: Callable[[ImageDict, str], Any],
) -> tuple[Sequence[ImageDict], Any]:
    """The same dicts with boxes (n, 4), and the shapes of all images as one; None where boxes are all there is."""
    if type(overlap) is Boxes:
        return entries, None
    if isinstance(overlap, Boxes):
        key = [overlap.key if overlap.key in entry else "segments" for entry in entries]
        return [
            {**entry, "boxes": overlap.as_boxes(shapes_in(entry, k, f"image {name}: {kind}"), f"image {name}: {kind}")}
            for entry, k, name in zip(entries, key, names, strict=True)
        ], None
    whole = _read_at_once(entries, overlap) if read in (overlap.windows_of, overlap.objects) else None
    if whole is not None:
        return whole
    parts = [read(entry, f"image {name}: {kind}") for entry, name in zip(entries, names, strict=True)]
    around = [
        entry
        if "boxes" in entry and overlap.key != "boxes"
        else {**entry, "boxes": torch.from_numpy(overlap.boxes(part))}
        for entry, part in zip(entries, parts, strict=True)
    ]
    return around, overlap.join(parts) if parts else overlap.windows(torch.zeros(0), "nothing")


def _read_at_once(entries: Sequence[ImageDict], overlap: Overlap) -> tuple[Sequence[ImageDict], Any] | None:
    """The same for all images together, which is faster; None where they have to be read one by one.

    So it is where shapes are no lists of COCO's masks and no oriented boxes, and where one of them is wrong: its image is named.
    """
    try:
        given = [entry[overlap.key] for entry in entries]
        if all(isinstance(shapes, list) for shapes in given):
            together: Any = [shape for shapes in given for shape in shapes]
        elif all(isinstance(shapes, Tensor) and shapes.ndim == 2 for shapes in given):
            together = torch.cat(given)
        else:
            return None
        shapes = overlap.windows(together, "all images")
        boxes = torch.from_numpy(overlap.boxes(shapes)).split([len(own) for own in given])
    except (KeyError, TypeError, RuntimeError, InputError):
        return None
    if overlap.key == "boxes":
        entries = [{**entry, "boxes": own} for entry, own in zip(entries, boxes, strict=True)]
    else:
        entries = [e if "boxes" in e else {**e, "boxes": own} for e, own in zip(entries, boxes, strict=True)]
    return entries, shapes


def _rows(
    entries: Sequence[ImageDict], key: str, shape: tuple[int, ...], names: Sequence[ImageId], kind: str
) -> tuple[Tensor, NDArray[np.int64]]:
    """The tensors of one name as one, and how many rows each image has."""
    with torch.no_grad():
        return _rows_at_once(entries, key, shape) or _rows_by_image(entries, key, shape, names, kind)


def _rows_at_once(
    entries: Sequence[ImageDict], key: str, shape: tuple[int, ...]
) -> tuple[Tensor, NDArray[np.int64]] | None:
    """The same by one call of torch, some times faster; None if anything is unusual, for an error has to name the image.

    Whatever is wrong with a part (another shape or device, no numbers to read) torch refuses, or it is wrong with the whole.
    Parts without rows have no say, as below.
    """
    try:
        parts = [entry[key] for entry in entries]
        if set(map(type, parts)) != {Tensor}:
            return None
        numbers = np.fromiter(map(Tensor.numel, parts), dtype=np.int64, count=len(parts))
        filled = [part for part, count in zip(parts, numbers.tolist(), strict=True) if count]
        if len({part.dtype for part in filled}) != 1:
            return None
        whole = _joined(filled)
        refuse_unreadable(whole)
        whole = widened(whole)
    except (KeyError, TypeError, IndexError, RuntimeError, InputError):
        return None
    if whole.shape[1:] != shape or whole.is_complex():
        return None
    return whole, numbers // math.prod(shape)


def _joined(parts: list[Tensor]) -> Tensor:
    """`torch.cat`, in stretches so short that torch uses one thread.

    Its threads wait for each other, which takes several times as long as the work, and longer on a busy machine.
    """
    each = max(1, _STRETCH * len(parts) // sum(map(Tensor.numel, parts)))
    return torch.cat([torch.cat(parts[i : i + each]) for i in range(0, len(parts), each)])


def _rows_by_image(
    entries: Sequence[ImageDict], key: str, shape: tuple[int, ...], names: Sequence[ImageId], kind: str
) -> tuple[Tensor, NDArray[np.int64]]:
    """The same, looking at every image."""
    parts, counts = [], np.zeros(len(entries), dtype=np.int64)
    name = f"{key} in the {kind}"
    for i, entry in enumerate(entries):
        try:
            rows = entry[key]
        except (KeyError, TypeError, IndexError):
            keys = sorted(entry) if isinstance(entry, Mapping) else type(entry).__name__
            raise InputError(f"image {names[i]}: expected {kind} to be a dict with {key!r} but got {keys}.") from None
        rows = tensor_of(rows, names[i], name)
        size = rows.shape
        if len(size) == 1 + len(shape) and size[1:] == shape:
            counts[i] = size[0]
            if size[0]:  # an empty list has no say in the type
                parts.append(rows)
        elif rows.numel() > 0:  # no rows are no rows, however they are written
            wanted = "(N, 4)" if shape else "(N,)"
            raise InputError(f"image {names[i]}: expected {key} of shape {wanted} in the {kind} but got {tuple(size)}.")
    return (torch.cat(parts) if parts else torch.zeros(0, *shape, dtype=torch.float64)), counts


def _check_counts(names: Sequence[ImageId], counts: dict[str, NDArray[np.int64]]) -> None:
    table = np.stack(list(counts.values()))
    wrong = (table != table[0]).any(axis=0)
    if wrong.any():
        i = int(np.argmax(wrong))
        got = ", ".join(f"{count[i]} {key}" for key, count in counts.items())
        raise InputError(f"image {names[i]}: expected as many {' as '.join(counts)} but got {got}.")


def _doubles(rows: Tensor) -> NDArray[np.float64]:
    plain = rows.to("cpu", torch.float64) if rows.dtype == torch.bfloat16 else rows.cpu()  # a type that NumPy lacks
    return plain.numpy().astype(np.float64, copy=False)  # by one thread, as in `_joined`


def _integers(rows: Tensor, entries: Sequence[ImageDict], names: Sequence[ImageId]) -> NDArray[np.int64]:
    if len(rows) and (rows.is_floating_point() or rows.is_complex() or rows.dtype == torch.bool):
        kinds = [torch.as_tensor(entry["labels"]).dtype for entry in entries]
        i = kinds.index(rows.dtype) if rows.dtype in kinds else 0
        raise InputError(f"image {names[i]}: expected integer labels but got {rows.dtype}.")
    return rows.to("cpu", torch.int64).numpy()


def _optional(
    targets: Sequence[ImageDict], key: str, counts: NDArray[np.int64], names: Sequence[ImageId], default: NDArray[Any]
) -> NDArray[np.float64]:
    """One value per object; objects of images without the key have the default."""
    named = [key in target for target in targets]
    if not any(named):
        return default
    has_key = np.array(named, dtype=np.bool_)
    with_key = [target for target, has in zip(targets, has_key, strict=True) if has]
    their_names = [name for name, has in zip(names, has_key, strict=True) if has]
    values, value_counts = _rows(with_key, key, (), their_names, "targets")
    _check_counts(their_names, {"boxes": counts[has_key], key: value_counts})
    filled = default.astype(np.float64)
    filled[np.repeat(has_key, counts)] = _doubles(values)
    return filled
