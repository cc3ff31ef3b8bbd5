"""Dicts of tensors, one per image as torchmetrics has them, as the flat arrays of `records.py`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stepgrad.errors import InputError
from stepgrad.evaluation.records import Detections, GroundTruth, ImageDict
from stepgrad.metric.boxes import areas_of, sizes_of
from stepgrad.names import ImageId
from stepgrad.overlaps.base import Boxes, Overlap, shapes_in
from stepgrad.overlaps.batch import BOXES
from stepgrad.plain_tensors import refuse_unreadable, tensor_of, widened

_STRETCH = 1 << 14  # numbers; torch takes a second thread from twice as many on


def detections_of(
    preds: Sequence[ImageDict], first: int, names: Sequence[ImageId], overlap: Overlap = BOXES
) -> Detections:
    """Flatten torchmetrics' predictions: one dict of boxes (or masks, keypoints), scores and labels per image."""
    (boxes, counts), shapes = _boxes_and_shapes(preds, names, "predictions", overlap)
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
    if any("areas" in t for t in targets if type(t) is dict or isinstance(t, Mapping)):
        targets = [{**t, "area": t["areas"]} if isinstance(t, Mapping) and "areas" in t else t for t in targets]
    (boxes, counts), shapes = _boxes_and_shapes(targets, names, "targets", overlap)
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


def _boxes_and_shapes(
    entries: Sequence[ImageDict], names: Sequence[ImageId], kind: str, overlap: Overlap
) -> tuple[tuple[Tensor, NDArray[np.int64]], Any]:
    """Boxes (n, 4) of all images, how many each has, and their shapes; None where boxes are all there is."""
    if type(overlap) is Boxes:
        return _rows(entries, "boxes", (4,), names, kind), None
    where = lambda i: f"image {names[i]}: {kind}"  # noqa: E731
    if isinstance(overlap, Boxes):
        key = [overlap.key if overlap.key in entry else "segments" for entry in entries]
        shown = [
            {**entry, "boxes": overlap.as_boxes(shapes_in(entry, k, where(i)), where(i))}
            for i, (entry, k) in enumerate(zip(entries, key, strict=True))
        ]
        return _rows(shown, "boxes", (4,), names, kind), None
    if kind == "targets":
        shapes, counts = overlap.objects_of_images(entries, where)
    else:
        given = [shapes_in(entry, overlap.key, where(i)) for i, entry in enumerate(entries)]
        shapes, counts = overlap.windows_of_images(given, where)
    around = torch.from_numpy(overlap.boxes(shapes))
    own = [overlap.key != "boxes" and "boxes" in entry for entry in entries]
    if not any(own):
        return (around, counts), shapes
    parts = around.split(counts.tolist())
    mixed: list[ImageDict] = [
        entry if kept else {**entry, "boxes": part} for entry, kept, part in zip(entries, own, parts, strict=True)
    ]
    return _rows(mixed, "boxes", (4,), names, kind), shapes


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
