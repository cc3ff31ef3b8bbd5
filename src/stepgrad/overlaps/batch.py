"""From what a caller hands in to a batch: boxes, or overlaps and neighbours in their place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stepgrad.errors import ConfigError, InputError, suggest
from stepgrad.metric.batch import Batch, OverlapPairs, Target, make_batch
from stepgrad.overlaps.base import Boxes, Floats, Overlap, Rows, checked_table
from stepgrad.plain_tensors import tensor_of

BOXES = Boxes()
SHAPES = ("masks", "keypoints", "shapes")
"""Arguments that hold the shapes of windows."""


def check_overlap(overlap: Overlap | None) -> Overlap:
    """The overlap, boxes if there is none; raises ConfigError unless it is one of `sg.overlaps`."""
    if overlap is None:
        return BOXES
    if not isinstance(overlap, Overlap):
        raise ConfigError(
            f"Expected overlap to be one of sg.overlaps, such as sg.overlaps.Masks(), but got {overlap!r}."
        )
    return overlap


@dataclass(frozen=True)
class Given:
    """What a call brings besides scores, boxes and targets, one entry per image each."""

    overlap: Overlap = BOXES
    nms_threshold: float | None = None
    overlaps: Sequence[Any] | None = None
    """Tables (N, G) of windows and objects, in [0, 1]."""
    neighbours: Sequence[Any] | None = None
    """Tables (N, N) of likeness that NMS compares with its threshold, tables of booleans, or pairs (E, 2) of windows."""
    shapes: Mapping[str, Any] = field(default_factory=dict)
    """Shapes of the windows by name: masks, keypoints."""

    def __post_init__(self) -> None:
        if self.overlaps is not None and not isinstance(self.overlap, Boxes):
            raise ConfigError("Expected overlaps= or overlap= but got both: numbers need no other way to compute them.")
        for name in self.shapes:
            if name != self.overlap.key or name == "boxes":
                raise ConfigError(f"Expected no {name}= with {self.overlap!r}, which takes {self.overlap.key}.")

    @classmethod
    def of_call(cls, overlap: Overlap, nms_threshold: float | None, more: Mapping[str, Any]) -> Given:
        """What a call brings, by the names of its arguments; `overlap` is what the loss was made with."""
        named = {name: value for name, value in more.items() if value is not None}
        at_call = check_overlap(named.pop("overlap", overlap))
        if at_call.nearness != overlap.nearness:
            raise ConfigError(f"Expected {at_call!r} where the loss is made, since it brings its own thresholds.")
        tables = {name: named.pop(name, None) for name in ("overlaps", "neighbours")}
        for name in named:
            if name not in SHAPES:
                known = [*tables, "overlap", *SHAPES]
                raise ConfigError(f"Expected arguments among {known} but got {name!r}.{suggest(name, known)}")
        return cls(at_call, nms_threshold, **tables, shapes=named)

    @property
    def is_plain(self) -> bool:
        """Whether boxes say it all."""
        return type(self.overlap) is Boxes and self.overlaps is None and self.neighbours is None


def read_batch(
    scores: Sequence[Tensor],
    boxes: Sequence[Tensor] | None,
    targets: Sequence[Target] | None,
    num_classes: int | None = None,
    areas: bool = False,
    given: Given | None = None,
) -> Batch:
    """Check and flatten, as `make_batch`; with overlaps and neighbours where boxes are not what counts."""
    if given is None or given.is_plain:
        return make_batch(scores, boxes, targets, num_classes, areas)  # type: ignore[arg-type]  # it refuses None
    counts = [len(of_image) for of_image in _listed(scores, "scores")]
    shown = _listed(targets, "targets")
    if len(counts) != len(shown):
        raise InputError(f"Expected as many targets as scores, one per image, but got {len(shown)} and {len(counts)}.")
    windows, objects = [], []
    overlap = given.overlap
    if isinstance(overlap, Boxes):
        boxes = None if boxes is None else [overlap.as_boxes(b, f"image {i}") for i, b in enumerate(boxes)]
        shown = [_with_object_boxes(overlap, target, i) for i, target in enumerate(shown)]
    else:
        windows = _windows(overlap, counts, boxes, given.shapes)
        objects = [overlap.objects(target, f"image {i}: targets") for i, target in enumerate(shown)]
        if overlap.key == "boxes" or (
            boxes is None and overlap.key != "shapes"
        ):  # those of the caller's own have no boxes
            boxes = [torch.from_numpy(overlap.boxes(shapes)) for shapes in windows]
        shown = [
            _with_areas(overlap, target, shapes, i)
            for i, (target, shapes) in enumerate(zip(shown, objects, strict=True))
        ]
    if boxes is None:
        if given.neighbours is None and given.nms_threshold is not None:
            raise InputError("Expected boxes, or neighbours= for NMS, or nms_threshold=None, but got none of them.")
        boxes = [_unit_boxes(n) for n in counts]
    batch = make_batch(scores, boxes, shown, num_classes, areas)
    unlabelled = [flags for flags in map(overlap.unlabelled, objects) if flags is not None]
    if unlabelled:
        batch = replace(batch, unlabelled=np.concatenate(unlabelled))
    return replace(batch, pairs=_pairs(given, batch, windows, objects), near=_near(given, batch, windows))


def _listed(given: Any, name: str) -> list[Any]:
    if isinstance(given, (Tensor, Mapping)) or not isinstance(given, Sequence):
        raise InputError(f"Expected {name} to be a list with one entry per image but got {type(given).__name__}.")
    return list(given)


def _unit_boxes(count: int) -> Tensor:
    """Boxes that nothing looks at."""
    return torch.tensor([[0.0, 0.0, 1.0, 1.0]]).repeat(count, 1)


def _with_object_boxes(overlap: Overlap, target: Target, image: int) -> Target:
    """A target with boxes (G, 4): its own, or, where overlaps come as numbers, any."""
    if not isinstance(target, Mapping) or ("boxes" not in target and "labels" not in target):
        return target  # for `make_batch` to refuse
    if "boxes" not in target:
        return {**target, "boxes": _unit_boxes(len(target["labels"]))}
    return {**target, "boxes": overlap.as_boxes(target["boxes"], f"image {image}: targets")}


def _windows(
    overlap: Overlap, counts: Sequence[int], boxes: Sequence[Tensor] | None, shapes: Mapping[str, Any]
) -> list[Any]:
    """The shapes of the windows, per image."""
    source = shapes.get(overlap.key, boxes if overlap.key in ("boxes", "shapes") else None)
    if source is None or len(source) != len(counts):
        got = "none" if source is None else f"{len(source)}"
        raise InputError(f"Expected {overlap.key} of the windows, {len(counts)} entries, one per image, but got {got}.")
    windows = [overlap.windows(of_image, f"image {i}") for i, of_image in enumerate(source)]
    for i, (count, of_image) in enumerate(zip(counts, windows, strict=True)):
        if overlap.count(of_image) != count:
            raise InputError(
                f"image {i}: expected {count} {overlap.key}, one per window, but got {overlap.count(of_image)}."
            )
    return windows


def _with_areas(overlap: Overlap, target: Target, shapes: Any, image: int) -> Target:
    """A target with boxes (G, 4) around its shapes, and their areas, where it has none of its own."""
    if overlap.key == "shapes":  # a likeness of the caller's own says nothing about boxes
        return _with_object_boxes(BOXES, target, image)
    areas = overlap.areas(shapes)
    if (areas <= 0.0).any() and overlap.nearness == "overlap":
        raise InputError(
            f"image {image}: expected objects with an area but that of object {int(np.argmax(areas <= 0.0))} is 0; leave "
            "it out, since nothing can find it."
        )
    around = {"boxes": torch.from_numpy(overlap.boxes(shapes)), "area": torch.from_numpy(areas)}
    kept = [name for name in around if name in target and not (name == "boxes" and overlap.key == "boxes")]
    return {**target, **{name: value for name, value in around.items() if name not in kept}}


def _pairs(given: Given, batch: Batch, windows: Sequence[Any], objects: Sequence[Any]) -> OverlapPairs | None:
    """Overlaps of all images, rows counted through the batch; None: by boxes."""
    if given.overlaps is None and isinstance(given.overlap, Boxes):
        return None
    _check_entries(given.overlaps, batch.images, "overlaps")
    first = np.searchsorted(batch.object_images, np.arange(batch.images + 1))
    none = np.zeros(0, dtype=np.int64)
    parts: list[tuple[Rows, Rows, Floats]] = [(none, none, np.zeros(0))]
    for i in range(batch.images):
        shape = int(batch.offsets[i + 1] - batch.offsets[i]), int(first[i + 1] - first[i])
        if given.overlaps is not None:
            table = checked_table(given.overlaps[i], shape, f"image {i}: overlaps")
            rows, columns = np.nonzero(table)
            overlap = table[rows, columns]
        elif 0 in shape:
            continue
        else:
            crowd = batch.crowd[first[i] : first[i + 1]]
            rows, columns, overlap = given.overlap.pairs(windows[i], objects[i], crowd)
        parts.append((rows + batch.offsets[i], columns + first[i], overlap))
    return OverlapPairs(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _near(given: Given, batch: Batch, windows: Sequence[Any]) -> Rows | None:
    """Windows that suppress each other, rows counted through the batch; None: by the IoU of boxes."""
    threshold = given.nms_threshold
    by_boxes = isinstance(given.overlap, Boxes) or given.overlap.nms == "boxes"
    if threshold is None or (given.neighbours is None and by_boxes):
        return None
    _check_entries(given.neighbours, batch.images, "neighbours")
    parts = [np.zeros((0, 2), dtype=np.int64)]
    for i in range(batch.images):
        if given.neighbours is None:
            near = given.overlap.near(windows[i], threshold)
        else:
            near = _given_near(given.neighbours[i], int(batch.offsets[i + 1] - batch.offsets[i]), threshold, i)
        parts.append(near + batch.offsets[i])
    return np.concatenate(parts)


def _check_entries(given: Sequence[Any] | None, images: int, name: str) -> None:
    if given is not None and (isinstance(given, Tensor) or len(given) != images):
        got = "a tensor" if isinstance(given, Tensor) else str(len(given))
        raise InputError(f"Expected {name} as a list with one entry per image, {images}, but got {got}.")


def _given_near(neighbours: Any, count: int, threshold: float, i: int) -> Rows:
    """(E, 2) windows of one image that suppress each other, from a table or from pairs."""
    where = f"image {i}: neighbours"
    table = tensor_of(neighbours, i, "neighbours").detach().cpu()
    if table.is_floating_point() or table.dtype == torch.bool:
        if tuple(table.shape) != (count, count):
            raise InputError(f"{where}: expected a table ({count}, {count}) of windows but got {tuple(table.shape)}.")
        if table.is_floating_point() and not bool(table.isfinite().all()):
            raise InputError(f"{where}: expected finite numbers but got others.")
        close = table.numpy() if table.dtype == torch.bool else table.to(torch.float64).numpy() > threshold
        return np.argwhere(np.triu(close | close.T, 1))
    pairs = table.to(torch.int64).numpy()
    if pairs.size == 0:
        return np.zeros((0, 2), dtype=np.int64)
    if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.min() < 0 or pairs.max() >= count:
        raise InputError(f"{where}: expected pairs (E, 2) of windows in [0, {count}) but got {tuple(pairs.shape)}.")
    return pairs[pairs[:, 0] != pairs[:, 1]]
