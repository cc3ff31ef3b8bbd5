"""What a head sees of an image, what it should find there, and which windows show what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from stepgrad.errors import InputError
from stepgrad.metric.batch import make_batch
from stepgrad.metric.boxes import overlaps_with
from stepgrad.models.fine_tuning.folder import digest
from stepgrad.overlaps.own import checked_table


class ImageWindows(NamedTuple):
    """The windows of one image."""

    features: Tensor
    """(N, F), whatever the head takes."""
    boxes: Tensor
    """(N, 4)."""
    target: Mapping[str, Tensor]
    """boxes (G, 4) and labels (G,), counted from 0; optionally difficult and iscrowd (G,)."""
    overlaps: Tensor | None = None
    """(N, G) in [0, 1]: how well each window fits each object by its mask or pose, say; for crowds the share of the window that
    they cover. None: the IoU of boxes."""
    oriented: Tensor | None = None
    """(N, 5) boxes that NMS compares, by probIoU, in place of `boxes`; then there are `overlaps`, too."""


@dataclass(frozen=True)
class Labelled:
    """The windows of an image, and the best object of each class that each of them shows."""

    features: Tensor  # (N, F)
    boxes: Tensor  # (N, 4)
    target: Mapping[str, Tensor]
    overlap: Tensor  # (N, K) largest IoU with an object of the class
    ignored: Tensor  # (N, K) whether that object is difficult or a crowd
    by_object: Tensor  # (N, G) IoU with each object; 0 with difficult ones and crowds, which are not used in training
    table: Tensor | None = None  # (N, G) overlaps that are not those of boxes
    oriented: Tensor | None = None  # (N, 5) what NMS compares in place of boxes


def labelled(name: str, images: Sequence[ImageWindows], num_classes: int) -> list[Labelled]:
    """The images that came as argument `name`, with their windows labelled."""
    return [_labelled(f"{name}[{i}]", image, num_classes) for i, image in enumerate(checked(name, images))]


def checked(name: str, images: Sequence[ImageWindows]) -> list[ImageWindows]:
    """The images that came as argument `name`; raises InputError where a head could not read them."""
    if isinstance(images, (Tensor, Mapping)) or not isinstance(images, Sequence):
        raise InputError(
            f"Expected {name} to be a list of (features, boxes, target) per image but got {type(images).__name__}."
        )
    if len(images) == 0:
        raise InputError(f"Expected {name} to hold at least one image but it is empty.")
    given = [_checked(f"{name}[{i}]", image) for i, image in enumerate(images)]
    widths = {image.features.shape[1] for image in given}
    if len(widths) > 1:
        raise InputError(f"Expected the features of {name} to have one width but got {sorted(widths)}.")
    if len({(image.overlaps is None, image.oriented is None) for image in given}) > 1:
        raise InputError(f"Expected all of {name} to have overlaps and oriented boxes, or none, but some have.")
    return given


def _checked(where: str, image: ImageWindows) -> ImageWindows:
    try:
        image = ImageWindows(*image)
    except TypeError:
        raise InputError(f"Expected {where} to be (features, boxes, target) but got {type(image).__name__}.") from None
    features, boxes = image.features, image.boxes
    if not isinstance(features, Tensor) or features.ndim != 2 or not features.dtype.is_floating_point:
        found = (
            f"{features.dtype} of {list(features.shape)}" if isinstance(features, Tensor) else type(features).__name__
        )
        raise InputError(f"Expected features of {where} to be floating-point of shape (N, F) but got {found}.")
    if not isinstance(boxes, Tensor) or boxes.shape != (len(features), 4):
        found = str(list(boxes.shape)) if isinstance(boxes, Tensor) else type(boxes).__name__
        raise InputError(f"Expected boxes of {where} to have shape [{len(features)}, 4], as features, but got {found}.")
    if not bool(torch.isfinite(features).all()):
        raise InputError(f"Expected features of {where} to be finite but there is a NaN or an infinity.")
    return image


def _labelled(where: str, image: ImageWindows, num_classes: int) -> Labelled:
    features, boxes = image.features.detach(), image.boxes.detach().cpu()
    target = {name: value.cpu() if isinstance(value, Tensor) else value for name, value in image.target.items()}
    try:
        batch = make_batch([torch.zeros(len(boxes), num_classes)], [boxes], [target], num_classes)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    table = None
    if image.overlaps is not None:
        table = torch.from_numpy(checked_table(image.overlaps, (len(boxes), len(batch.object_labels)), where))
    overlap = np.zeros((len(boxes), num_classes))
    ignored = np.zeros((len(boxes), num_classes), dtype=np.bool_)
    by_object = np.zeros((len(boxes), len(batch.object_boxes)))
    ignorable = batch.difficult | batch.crowd
    for g, (box, label) in enumerate(zip(batch.object_boxes, batch.object_labels, strict=True)):
        iou = overlaps_with(box, batch.boxes, 0.0) if table is None else table[:, g].numpy()
        better = iou > overlap[:, label]  # of equals the first
        overlap[better, label] = iou[better]
        ignored[better, label] = ignorable[g]
        by_object[:, g] = 0.0 if ignorable[g] else iou
    best, of_objects = (torch.from_numpy(numbers).float() for numbers in (overlap, by_object))
    return Labelled(features, boxes, target, best, torch.from_numpy(ignored), of_objects, table, image.oriented)


def batches(images: Sequence[Labelled], size: int, generator: torch.Generator) -> Iterator[list[Labelled]]:
    """Minibatches for ever: every image once, in a new order, before any comes again."""
    waiting: list[int] = []
    while True:
        while len(waiting) < size:
            waiting += torch.randperm(len(images), generator=generator).tolist()
        chosen, waiting = waiting[:size], waiting[size:]
        yield [images[i] for i in chosen]


def images_by_value(images: Sequence[Labelled] | None) -> dict[str, str] | None:
    """Digests of what the head sees and of what it should find there; None where there are no images."""
    if images is None:
        return None
    return {
        "windows": digest([_seen(image) for image in images]),
        "targets": digest([image.target for image in images]),
    }


def _seen(image: Labelled) -> tuple[Tensor, ...]:
    return tuple(t for t in (image.features, image.boxes, image.table, image.oriented) if t is not None)
