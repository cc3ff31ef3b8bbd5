"""From lists of tensors per image to flat arrays, with every input checked at the door."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stepgrad.errors import InputError, NonFiniteError
from stepgrad.metric.boxes import CONVERT, CORNERS, MEASURABLE, check_box_format, inside_out, sizes_of, unmeasurable
from stepgrad.plain_tensors import joined, refuse_unreadable, tensor_of, widened

Target = Mapping[str, Any]  # boxes, labels and, if wanted, difficult and iscrowd; other keys are left alone


class OverlapPairs(NamedTuple):
    """Pairs of a window and an object of the same image, and how much they overlap; other pairs do not."""

    window: NDArray[np.int64]  # (M,) rows of the batch's windows
    object: NDArray[np.int64]  # (M,) rows of its objects
    overlap: NDArray[np.float64]  # (M,) in [0, 1], or minus a distance

    def of(self, windows: NDArray[np.int64], objects: NDArray[np.int64]) -> OverlapPairs:
        """The pairs of some windows and objects; each is given by its new row, -1 for those left out."""
        there = (windows[self.window] >= 0) & (objects[self.object] >= 0)
        return OverlapPairs(windows[self.window[there]], objects[self.object[there]], self.overlap[there])


def new_rows(chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
    """(N,) rows of the chosen ones when the others are left out, -1 for those.

    >>> new_rows(np.array([True, False, True])).tolist()
    [0, -1, 1]
    """
    return np.where(chosen, np.cumsum(chosen) - 1, -1)


@dataclass(frozen=True)
class Batch:
    """Windows and objects of a batch. N windows, K classes, G objects."""

    offsets: NDArray[np.int64]  # (images + 1,) first window of each image
    scores: NDArray[np.floating]  # (N, K) float32 or float64, whichever holds the input exactly
    boxes: NDArray[np.float64]  # (N, 4), or (N, K, 4) if each class has its own
    object_boxes: NDArray[np.float64]  # (G, 4)
    object_labels: NDArray[np.int64]
    object_images: NDArray[np.int32]
    difficult: NDArray[np.bool_]
    crowd: NDArray[np.bool_]
    annotated_areas: NDArray[np.float64] | None = None  # (G,); None: those of the boxes
    unlabelled: NDArray[np.bool_] | None = (
        None  # (G,) not counted, and excusing one detection each: poses without keypoints
    )
    pairs: OverlapPairs | None = None  # overlaps of windows with objects; None: those of the boxes
    near: NDArray[np.int64] | None = None  # (E, 2) windows of which one suppresses the other; None: by the boxes' IoU

    @property
    def images(self) -> int:
        return len(self.offsets) - 1

    @property
    def num_classes(self) -> int:
        return self.scores.shape[1]

    @property
    def object_areas(self) -> NDArray[np.float64]:
        """(G,) as annotated, or those of the boxes."""
        if self.annotated_areas is not None:
            return self.annotated_areas
        areas: NDArray[np.float64] = (self.object_boxes[:, 2:] - self.object_boxes[:, :2]).prod(axis=1)
        return areas

    @property
    def boxes_by_class(self) -> bool:
        return self.boxes.ndim == 3


def make_batch(
    scores: Sequence[Tensor],
    boxes: Sequence[Tensor],
    targets: Sequence[Target] | None,
    num_classes: int | None = None,
    areas: bool = False,
) -> Batch:
    """Check and flatten. `num_classes` None takes the columns of the scores; `areas` asks for the objects', from "area".

    A window without area, as clipping to the image leaves some, is a detection like any other that overlaps nothing: it
    finds no object, suppresses nobody and is suppressed by nobody. (Where a protocol counts inclusive pixels, x2 = x1 is
    one pixel wide, and may find an object of that size.) An object without area is a mistake in the data: nothing can
    find it.
    """
    _refuse_detections(scores)
    for name, given in (("scores", scores), ("boxes", boxes), ("targets", targets)):
        if isinstance(given, (Tensor, Mapping)) or not isinstance(given, Sequence):
            raise InputError(f"Expected {name} to be a list with one entry per image but got {type(given).__name__}.")
    assert targets is not None  # it is a sequence
    if not len(scores) == len(boxes) == len(targets):
        raise InputError(
            "Expected scores, boxes and targets to have one entry per image but got lists of "
            f"{len(scores)}, {len(boxes)} and {len(targets)} entries."
        )
    refuse_unreadable(*scores, *boxes)
    K = num_classes if num_classes is not None else (_columns(scores[0]) if len(scores) else 0)
    for i, (s, b) in enumerate(zip(scores, boxes, strict=True)):
        _check_window_shapes(s, b, K, i)
        check_box_format(b, f"image {i}: expected boxes")
    _check_frames(boxes, targets)
    by_class = any(b.ndim == 3 for b in boxes)
    if by_class and any(b.ndim == 2 for b in boxes):
        boxes = [b if b.ndim == 3 else b[:, None].expand(-1, K, 4) for b in boxes]
    offsets = np.cumsum([0] + [len(s) for s in scores], dtype=np.int64)
    flat_scores = _flat(scores, (0, K), keep_double=True)
    flat_boxes = _flat(boxes, (0, K, 4) if by_class else (0, 4)).astype(np.float64, copy=False)
    _check_windows(flat_scores, flat_boxes, offsets)
    batch = Batch(offsets, flat_scores, flat_boxes, *_objects(_tensors_on_cpu(targets), K))
    return replace(batch, annotated_areas=_annotated_areas(targets, batch)) if areas else batch


def _refuse_detections(scores: object) -> None:
    """Raise on torchmetrics' dicts, whose detections have one score each: no window's score for every class."""
    first = scores[0] if isinstance(scores, Sequence) and len(scores) else scores
    if isinstance(first, Mapping):
        raise InputError(
            "Expected scores as a list of tensors (N, K), every window's score for every class, but got dicts with "
            f"{sorted(first)}. Those are final detections; what can be trained are the windows before NMS: pass scores, "
            "boxes and targets as three lists. To judge final detections, see stepgrad.Evaluator."
        )


def _check_frames(boxes: Sequence[Tensor], targets: Sequence[Target]) -> None:
    """Raise if objects know that they are no corners, or if an image's windows and objects know different sizes of it.

    Before targets are moved to the CPU, which makes plain tensors of them.
    """
    for i, (windows, target) in enumerate(zip(boxes, targets, strict=True)):
        objects = target.get("boxes") if isinstance(target, Mapping) else None
        check_box_format(objects, f"image {i}: expected target boxes")
        both: list[Any] = [windows, objects]
        known = [given.canvas_size for given in both if hasattr(given, "canvas_size")]
        if len(known) == 2 and tuple(known[0]) != tuple(known[1]):
            raise InputError(
                f"image {i}: expected boxes and targets of one image size but their canvas sizes are {tuple(known[0])} and "
                f"{tuple(known[1])}; scale one of them."
            )


def _columns(scores: Tensor) -> int:
    if not isinstance(scores, Tensor) or scores.ndim != 2:
        raise InputError(f"Expected scores[0] to be a tensor of shape (N, K) but got {_describe(scores)}.")
    return scores.shape[1]


def _describe(value: object) -> str:
    return f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def _check_window_shapes(scores: Tensor, boxes: Tensor, K: int, image: int) -> None:
    if not isinstance(scores, Tensor) or scores.ndim != 2 or scores.shape[1] != K:
        raise InputError(f"image {image}: expected scores of shape (N, {K}) but got {_describe(scores)}.")
    if not scores.is_floating_point():
        raise InputError(f"image {image}: expected scores of a floating-point dtype but got {scores.dtype}.")
    N = len(scores)
    if not isinstance(boxes, Tensor) or tuple(boxes.shape) not in ((N, 4), (N, K, 4)):
        raise InputError(
            f"image {image}: expected boxes of shape ({N}, 4) or ({N}, {K}, 4) for scores of shape "
            f"{tuple(scores.shape)} but got {_describe(boxes)}."
        )
    if boxes.dtype == torch.bool or boxes.is_complex():
        raise InputError(f"image {image}: expected boxes of a real dtype but got {boxes.dtype}.")


def _flat(tensors: Sequence[Tensor], empty: tuple[int, ...], keep_double: bool = False) -> NDArray[np.floating]:
    """All images' rows as one array on the CPU: one transfer, not one per image."""
    if not tensors:
        return np.zeros(empty, dtype=np.float32)
    flat = joined([widened(t.detach()) for t in tensors])
    if flat.dtype == torch.float32:
        single = flat.cpu().contiguous().numpy()
        return single if keep_double else single.astype(np.float64)
    exact = torch.float32 if keep_double and flat.dtype != torch.float64 else torch.float64
    return flat.to("cpu", exact).contiguous().numpy()


def _where(offsets: NDArray[np.int64], window: int) -> tuple[int, int]:
    image = int(np.searchsorted(offsets, window, side="right")) - 1
    return image, int(window - offsets[image])


def _check_windows(scores: NDArray[np.floating], boxes: NDArray[np.float64], offsets: NDArray[np.int64]) -> None:
    if not np.isfinite(scores).all():
        window, column = np.argwhere(~np.isfinite(scores))[0]
        image, index = _where(offsets, window)
        raise NonFiniteError(
            f"image {image}: expected finite scores but scores[{index}, {column}] is {scores[window, column]}; "
            "look for a diverged model or a log of zero."
        )
    if not np.isfinite(boxes).all():
        first = np.argwhere(~np.isfinite(boxes))[0]
        image, index = _where(offsets, first[0])
        raise NonFiniteError(f"image {image}: expected finite boxes but boxes[{index}] is {boxes[first[0]].tolist()}.")
    wrong = inside_out(boxes)
    if wrong.any():
        first = np.argwhere(wrong)[0]
        image, index = _where(offsets, first[0])
        raise InputError(
            f"image {image}: expected boxes as {CORNERS} but boxes[{index}] is {boxes[tuple(first)].tolist()}; {CONVERT}."
        )
    wrong = unmeasurable(sizes_of(boxes))
    if wrong.any():
        first = np.argwhere(wrong)[0]
        image, index = _where(offsets, first[0])
        raise InputError(
            f"image {image}: expected {MEASURABLE} but boxes[{index}] is {boxes[tuple(first)].tolist()}; are these pixels?"
        )


def _tensors_on_cpu(targets: Sequence[Target]) -> Sequence[Target]:
    """Targets of tensors that can be read, on the CPU, each key of all images in one transfer."""
    moved = [dict(t) if isinstance(t, Mapping) else t for t in targets]
    for key in ("boxes", "labels", "difficult", "iscrowd"):
        name = f"targets[{key!r}]"
        for i, target in enumerate(moved):
            if isinstance(target, dict) and key in target:
                target[key] = tensor_of(target[key], i, name)
        there = [t for t in moved if isinstance(t, dict) and key in t and not t[key].is_cpu]
        for target, tensor in zip(there, moved_together([t[key] for t in there]), strict=True):
            target[key] = tensor
    return moved


def moved_together(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The same tensors on the CPU, by one transfer.

    >>> [t.tolist() for t in moved_together([torch.tensor([[1, 2]]), torch.tensor([3])])]
    [[[1, 2]], [3]]
    """
    if not tensors:
        return []
    flat = torch.cat([t.detach().reshape(-1) for t in tensors]).cpu()
    return [part.reshape(t.shape) for part, t in zip(flat.split([t.numel() for t in tensors]), tensors, strict=True)]


def _objects(
    targets: Sequence[Target], K: int
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int32], NDArray[np.bool_], NDArray[np.bool_]]:
    boxes = [np.zeros((0, 4))]
    labels = [np.zeros(0, dtype=np.int64)]
    images = []
    difficult = []
    crowd = []
    for i, target in enumerate(targets):
        b, y = _object_arrays(target, i, K)
        boxes.append(b)
        labels.append(y)
        images.append(np.full(len(b), i, dtype=np.int32))
        difficult.append(_flags(target, "difficult", len(b), i))
        crowd.append(_flags(target, "iscrowd", len(b), i))
    none = np.zeros(0, dtype=np.bool_)
    return (
        np.concatenate(boxes),
        np.concatenate(labels),
        np.concatenate([np.zeros(0, dtype=np.int32), *images]),
        np.concatenate([none, *difficult]),
        np.concatenate([none, *crowd]),
    )


def _object_arrays(target: Target, image: int, K: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    if not isinstance(target, Mapping) or "boxes" not in target or "labels" not in target:
        keys = sorted(target) if isinstance(target, Mapping) else type(target).__name__
        raise InputError(f"image {image}: expected targets to be a dict with 'boxes' and 'labels' but got {keys}.")
    boxes = target["boxes"].detach().to(torch.float64).numpy()
    given = target["labels"].detach()
    if boxes.size == 0 and given.numel() == 0:
        return np.zeros((0, 4)), np.zeros(0, dtype=np.int64)
    if boxes.ndim != 2 or boxes.shape[1] != 4 or given.ndim != 1 or len(given) != len(boxes):
        raise InputError(
            f"image {image}: expected targets with boxes (G, 4) and labels (G,) "
            f"but got {tuple(boxes.shape)} and {tuple(given.shape)}."
        )
    if given.is_floating_point() or given.dtype == torch.bool:
        raise InputError(f"image {image}: expected integer labels but got {given.dtype}.")
    labels = given.to(torch.int64).numpy()
    if not np.isfinite(boxes).all():
        index = int(np.argwhere(~np.isfinite(boxes))[0][0])
        raise NonFiniteError(
            f"image {image}: expected finite target boxes but object {index} is {boxes[index].tolist()}."
        )
    empty = (boxes[:, 2] <= boxes[:, 0]) | (boxes[:, 3] <= boxes[:, 1])
    if empty.any():
        index = int(np.argmax(empty))
        raise InputError(
            f"image {image}: expected target boxes with x2 > x1 and y2 > y1 but object {index} is {boxes[index].tolist()}; "
            f"leave out objects without area, which nothing can find; {CONVERT}."
        )
    wrong = unmeasurable(sizes_of(boxes))
    if wrong.any():
        index = int(np.argmax(wrong))
        raise InputError(
            f"image {image}: expected {MEASURABLE} but object {index} is {boxes[index].tolist()}; are these pixels?"
        )
    outside = (labels < 0) | (labels >= K)
    if outside.any():
        index = int(np.argmax(outside))
        raise InputError(
            f"image {image}: expected labels in [0, {K}), the columns of scores, but object {index} has label "
            f"{labels[index]}; labels that count background as 0 need 1 subtracted."
        )
    return boxes, labels


def _flags(target: Target, key: str, count: int, image: int) -> NDArray[np.bool_]:
    if key not in target:
        return np.zeros(count, dtype=np.bool_)
    flags = target[key].detach().to(torch.bool).numpy().reshape(-1)  # NumPy has no bfloat16
    if len(flags) != count:
        raise InputError(
            f"image {image}: expected {count} values in targets[{key!r}], one per object, but got {len(flags)}."
        )
    return flags


def _annotated_areas(targets: Sequence[Target], batch: Batch) -> NDArray[np.float64]:
    """As annotated in "area", which may be that of a mask; else those of the boxes."""
    areas = batch.object_areas.copy()
    for i, target in enumerate(targets):
        if "area" in target:
            given = tensor_of(target["area"], i, "targets['area']").detach().cpu().double().numpy().reshape(-1)
            of_image = batch.object_images == i
            if len(given) != of_image.sum() or not (np.isfinite(given) & (given >= 0.0)).all():
                raise InputError(
                    f"image {i}: expected {of_image.sum()} areas >= 0 in targets['area'], one per object, but got "
                    f"{given.tolist()[:5]}; leave it out to use the areas of the boxes."
                )
            areas[of_image] = given
    return areas
