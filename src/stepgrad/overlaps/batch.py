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
from stepgrad.metric.protocol import Protocol
from stepgrad.overlaps.base import Boxes, Floats, Overlap, Rows
from stepgrad.overlaps.own import checked_table
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
    least: float = 0.0
    """Overlaps of windows with objects below it do not count."""
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
    def of_call(
        cls, overlap: Overlap, nms_threshold: float | None, protocol: Protocol, more: Mapping[str, Any]
    ) -> Given:
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
        return cls(at_call, nms_threshold, min(protocol.cuts), **tables, shapes=named)

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
    windows: Any = None
    objects: Any = None
    overlap = given.overlap
    if isinstance(overlap, Boxes):
        boxes = None if boxes is None else [overlap.as_boxes(b, f"image {i}") for i, b in enumerate(boxes)]
        shown = [_with_object_boxes(overlap, target, i) for i, target in enumerate(shown)]
    else:
        windows = _windows(overlap, counts, boxes, given.shapes)
        objects, of_each = overlap.objects_of_images(shown, lambda i: f"image {i}: targets")
        if overlap.key == "boxes" or (
            boxes is None and overlap.key != "shapes"
        ):  # those of the caller's own have no boxes
            boxes = list(torch.from_numpy(overlap.boxes(windows)).split(counts))
        shown = _with_areas(overlap, shown, objects, of_each)
    if boxes is None:
        if given.neighbours is None and given.nms_threshold is not None:
            raise InputError("Expected boxes, or neighbours= for NMS, or nms_threshold=None, but got none of them.")
        boxes = [_unit_boxes(n) for n in counts]
    batch = make_batch(scores, boxes, shown, num_classes, areas)
    unlabelled = overlap.unlabelled(objects)
    if unlabelled is not None:
        batch = replace(batch, unlabelled=unlabelled)
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


def _windows(overlap: Overlap, counts: Sequence[int], boxes: Sequence[Tensor] | None, shapes: Mapping[str, Any]) -> Any:
    """The shapes of the windows of all images."""
    source = shapes.get(overlap.key, boxes if overlap.key in ("boxes", "shapes") else None)
    if source is None or len(source) != len(counts):
        got = "none" if source is None else f"{len(source)}"
        raise InputError(f"Expected {overlap.key} of the windows, {len(counts)} entries, one per image, but got {got}.")
    windows, of_each = overlap.windows_of_images(list(source), lambda i: f"image {i}")
    for i, (count, got) in enumerate(zip(counts, of_each.tolist(), strict=True)):
        if got != count:
            raise InputError(f"image {i}: expected {count} {overlap.key}, one per window, but got {got}.")
    return windows


def _with_areas(overlap: Overlap, targets: Sequence[Target], objects: Any, of_each: Rows) -> list[Target]:
    """Targets with boxes (G, 4) around their shapes, and their areas, where they have none of their own."""
    if overlap.key == "shapes":  # a likeness of the caller's own says nothing about boxes
        return [_with_object_boxes(BOXES, target, i) for i, target in enumerate(targets)]
    areas = overlap.areas(objects)
    if (areas <= 0.0).any() and overlap.nearness == "overlap":
        first = int(np.argmax(areas <= 0.0))
        image = int(np.searchsorted(np.cumsum(of_each), first, side="right"))
        raise InputError(
            f"image {image}: expected objects with an area but that of object {first - int(of_each[:image].sum())} is 0; "
            "leave it out, since nothing can find it."
        )
    around = (torch.from_numpy(each).split(of_each.tolist()) for each in (overlap.boxes(objects), areas))
    own_boxes = overlap.key != "boxes"  # otherwise what is called boxes are the shapes
    return [
        {**target, **({} if own_boxes and "boxes" in target else {"boxes": boxes}), "area": target.get("area", area)}
        for target, boxes, area in zip(targets, *around, strict=True)
    ]


def _pairs(given: Given, batch: Batch, windows: Any, objects: Any) -> OverlapPairs | None:
    """Overlaps of all images, rows counted through the batch; None: by boxes."""
    if given.overlaps is None and isinstance(given.overlap, Boxes):
        return None
    first = np.searchsorted(batch.object_images, np.arange(batch.images + 1))
    if given.overlaps is None:
        sides = windows, batch.offsets, objects, first, batch.crowd
        pairs = given.overlap.pairs(*sides, given.least)
        # Whether windows and objects have anything in common at all is asked where none of them reaches a threshold.
        return OverlapPairs(*(pairs if len(pairs[0]) else given.overlap.pairs(*sides)))
    _check_entries(given.overlaps, batch.images, "overlaps")
    none = np.zeros(0, dtype=np.int64)
    parts: list[tuple[Rows, Rows, Floats]] = [(none, none, np.zeros(0))]
    for i, table in enumerate(given.overlaps):
        shape = int(batch.offsets[i + 1] - batch.offsets[i]), int(first[i + 1] - first[i])
        numbers = checked_table(table, shape, f"image {i}: overlaps")
        rows, columns = np.nonzero(numbers)
        parts.append((rows + batch.offsets[i], columns + first[i], numbers[rows, columns]))
    return OverlapPairs(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _near(given: Given, batch: Batch, windows: Any) -> Rows | None:
    """Windows that suppress each other, rows counted through the batch; None: by the IoU of boxes."""
    threshold = given.nms_threshold
    by_boxes = isinstance(given.overlap, Boxes) or given.overlap.nms == "boxes"
    if threshold is None or (given.neighbours is None and by_boxes):
        return None
    if given.neighbours is None:
        return given.overlap.near(windows, batch.offsets, threshold)
    _check_entries(given.neighbours, batch.images, "neighbours")
    parts = [np.zeros((0, 2), dtype=np.int64)]
    for i, neighbours in enumerate(given.neighbours):
        count = int(batch.offsets[i + 1] - batch.offsets[i])
        parts.append(_given_near(neighbours, count, threshold, i) + batch.offsets[i])
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
