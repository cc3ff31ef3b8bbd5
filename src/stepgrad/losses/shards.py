"""A batch spread over processes by image, sent so that each process holds its classes of all images.

Class c belongs to process c mod world. A process sends another the scores of that one's classes and the objects of those
classes, each once, and its windows' boxes, which every class needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stepgrad.losses.collectives import Bytes
from stepgrad.metric.batch import Batch

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@dataclass(frozen=True)
class Sizes:
    """What a process announces before it sends."""

    images: int
    windows: int
    boxes_by_class: bool
    wide_boxes: bool  # boxes that float32 cannot hold exactly
    dtype: torch.dtype  # of the scores
    objects: tuple[int, ...]  # for each process, those of its classes

    def row(self) -> list[int]:
        """As integers; `read` is the way back."""
        flags = int(self.boxes_by_class) + 2 * int(self.wide_boxes)
        return [self.images, self.windows, flags, DTYPES.index(self.dtype), *self.objects]

    @staticmethod
    def read(row: Sequence[int]) -> Sizes:
        images, windows, flags, dtype, *objects = (int(x) for x in row)
        return Sizes(images, windows, bool(flags & 1), bool(flags & 2), DTYPES[dtype], tuple(objects))

    def nbytes(self, to: int, classes: int) -> int:
        """Size of the part for a process with so many classes."""
        return sum(count * np.dtype(kind).itemsize for kind, count in self.fields(to, classes))

    def fields(self, to: int, classes: int) -> list[tuple[Any, int]]:
        """Type and number of elements of each array of a part, in order; nothing for a process without classes."""
        if classes == 0:
            return []
        G, box_columns = self.objects[to], 4 * classes if self.boxes_by_class else 4
        score = np.dtype((np.void, self.dtype.itemsize))  # NumPy knows no bfloat16
        return [
            (np.int64, self.images),  # windows of each image
            (score, self.windows * classes),
            (np.float64 if self.wide_boxes else np.float32, self.windows * box_columns),
            (np.float64, G * 4),
            (np.int32, G),  # class, counted among the receiver's
            (np.int32, G),  # image
            (np.uint8, G),  # difficult + 2 crowd
            (np.float64, G),  # area
        ]


def classes_of(rank: int, world: int, K: int) -> range:
    """The classes a process works on.

    >>> list(classes_of(1, 3, 8))
    [1, 4, 7]
    """
    return range(rank, K, world)


def sizes_of(batch: Batch, dtype: torch.dtype, world: int) -> Sizes:
    """What there is to send of a batch whose scores have a dtype."""
    owner = batch.object_labels % world
    objects = tuple(int(np.count_nonzero(owner == rank)) for rank in range(world))
    wide = not np.array_equal(batch.boxes.astype(np.float32), batch.boxes)
    return Sizes(batch.images, len(batch.scores), batch.boxes_by_class, wide, dtype, objects)


def pack(batch: Batch, sizes: Sizes, world: int) -> list[Bytes]:
    """For each process, what it needs of the batch."""
    K = batch.num_classes
    return [_part(batch, sizes, rank, world, classes_of(rank, world, K)) for rank in range(world)]


def _part(batch: Batch, sizes: Sizes, rank: int, world: int, classes: range) -> Bytes:
    if len(classes) == 0:
        return np.zeros(0, dtype=np.uint8)
    chosen = np.flatnonzero(batch.object_labels % world == rank)
    boxes = batch.boxes[:, classes.start :: world] if batch.boxes_by_class else batch.boxes
    arrays = [
        np.diff(batch.offsets),
        boxes.astype(np.float64 if sizes.wide_boxes else np.float32),
        batch.object_boxes[chosen],
        (batch.object_labels[chosen] // world).astype(np.int32),
        batch.object_images[chosen],
        batch.difficult[chosen] + np.uint8(2) * batch.crowd[chosen],
        batch.object_areas[chosen],
    ]
    scores = torch.from_numpy(np.ascontiguousarray(batch.scores[:, classes.start :: world])).to(sizes.dtype)
    counts, *rest = [raw(a) for a in arrays]
    return np.concatenate([counts, tensor_bytes(scores), *rest])


def unpack(parts: Sequence[Bytes], sizes: Sequence[Sizes], rank: int, classes: int) -> Batch:
    """This process's classes of the joined batch, images in the order of the processes."""
    arrays = [_arrays(part, s, rank, classes) for part, s in zip(parts, sizes, strict=True)]
    columns = [list(column) for column in zip(*arrays, strict=True)]
    counts, scores, boxes, object_boxes, labels, images, flags, areas = columns
    by_class = any(s.boxes_by_class for s in sizes)
    if by_class:
        boxes = [np.broadcast_to(b if b.ndim == 3 else b[:, None], (len(b), classes, 4)) for b in boxes]
    starts = np.cumsum([0, *(s.images for s in sizes)])
    joined_flags = np.concatenate(flags)
    return Batch(
        offsets=np.cumsum([0, *np.concatenate(counts)], dtype=np.int64),
        scores=np.concatenate(scores),
        boxes=np.concatenate(boxes).astype(np.float64),
        object_boxes=np.concatenate(object_boxes),
        object_labels=np.concatenate(labels).astype(np.int64),
        object_images=np.concatenate([i + first for i, first in zip(images, starts, strict=False)]).astype(np.int32),
        difficult=joined_flags & 1 > 0,
        crowd=joined_flags & 2 > 0,
        annotated_areas=np.concatenate(areas),
    )


def _arrays(part: Bytes, sizes: Sizes, rank: int, classes: int) -> list[NDArray[Any]]:
    """The arrays of one part, in their shapes; scores as float32 or float64."""
    arrays, at = [], 0
    for kind, count in sizes.fields(rank, classes):
        end = at + count * np.dtype(kind).itemsize
        arrays.append(part[at:end] if np.dtype(kind).kind == "V" else part[at:end].copy().view(kind))
        at = end
    counts, scores, boxes, object_boxes, *rest = arrays
    exact = torch.float64 if sizes.dtype == torch.float64 else torch.float32
    wide = bytes_tensor(scores, sizes.dtype, (sizes.windows, classes)).to(exact).numpy()
    shape = (sizes.windows, classes, 4) if sizes.boxes_by_class else (sizes.windows, 4)
    return [counts, wide, boxes.reshape(shape), object_boxes.reshape(-1, 4), *rest]


def raw(array: NDArray[Any]) -> Bytes:
    """An array's bytes."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def tensor_bytes(tensor: Tensor) -> Bytes:
    """A CPU tensor's bytes, whatever its dtype."""
    flat = tensor.contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy() if len(flat) else np.zeros(0, dtype=np.uint8)


def bytes_tensor(part: Bytes, dtype: torch.dtype, shape: tuple[int, int]) -> Tensor:
    """The way back."""
    return torch.from_numpy(part.copy()).view(dtype).reshape(shape) if len(part) else torch.zeros(shape, dtype=dtype)
