"""What every kind of overlap offers, and the kinds that are boxes after all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stepgrad.engine.close import close_pairs
from stepgrad.errors import InputError, NonFiniteError, one_of
from stepgrad.metric.boxes import areas_of, overlap_table, sizes_of
from stepgrad.metric.protocol import Protocol
from stepgrad.overlaps.together import in_stretches, put_together
from stepgrad.plain_tensors import tensor_of

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]
Flags = NDArray[np.bool_]
Target = Mapping[str, Any]
Shapes = Any
"""The windows or the objects of some images, as a kind of overlap keeps them."""


class ChosenShapes(NamedTuple):
    """Some of the shapes of several images, image after image."""

    shapes: Shapes
    rows: Rows | None  # (n,) those that are chosen; None: all
    offsets: Rows  # (images + 1,) the first of each image among them

    def of(self, places: Rows) -> Rows:
        """Rows of the shapes in some places."""
        return places if self.rows is None else self.rows[places]


class Overlap:
    """A likeness of windows and objects in [0, 1], the larger the better; or minus a distance.

    Kinds differ in where shapes are handed in (`key`), in how they are read (`windows`, `objects`), and in the likeness of a
    window and an object (`values`). Called with the windows and the objects of one image, an overlap gives their (N, G) table.

    Args:
        nms: what NMS compares windows by: "boxes", their IoU, or "own", this overlap.
    """

    key = "boxes"
    """The argument of a loss, and the key of a target, that has the shapes."""
    keys: tuple[str, ...] = ()
    """All keys of a target that objects are read from; empty: only `key`."""
    nearness = "overlap"
    """"distance" where values are minus distances."""
    needs_touching_boxes = True
    """Whether shapes whose boxes do not touch have nothing in common."""
    is_iou = False
    """Whether the likeness is an IoU, and shapes lie within their boxes: what cannot reach a threshold is not computed."""
    word = "overlap"
    """What tables and pages call the likeness."""
    nouns = ("shape", "shapes")
    """What they call a window or an object, one and several."""
    drawn = "box"
    """How pictures show one: "box", "mask", "pose" (points and a skeleton), "polygon", or "bar" (along time)."""

    def __init__(self, nms: str = "own") -> None:
        one_of("nms", nms, ["boxes", "own"])
        self.nms = nms

    def adapt(self, protocol: Protocol) -> Protocol:
        """The protocol as it is for shapes of this kind."""
        return protocol

    def unlabelled(self, shapes: Shapes) -> Flags | None:
        """(n,) objects that nothing can be compared with, so that they are not counted; None: there are none."""
        return None

    def as_boxes(self, given: Any, where: str) -> Any:
        """The same windows or objects as boxes (n, 4), if boxes say all there is to know; else None."""
        return None

    def windows(self, given: Any, where: str) -> Shapes:
        """The shapes of one image's windows, checked; `where` says in messages what they are."""
        raise NotImplementedError

    def objects(self, target: Target, where: str) -> Shapes:
        """The shapes of one image's objects, checked."""
        return self.windows(shapes_in(target, self.key, where), where)

    def windows_of_images(self, given: Sequence[Any], where: Callable[[int], str]) -> tuple[Shapes, Rows]:
        """The windows of several images as one, and how many each has; `where` says in messages which image it is."""
        return self._of_images(
            [{self.key: shapes} for shapes in given],
            (self.key,),
            lambda one, where: self.windows(one[self.key], where),
            where,
        )

    def objects_of_images(self, targets: Sequence[Target], where: Callable[[int], str]) -> tuple[Shapes, Rows]:
        """The same for the objects of several images."""
        return self._of_images(targets, self.keys or (self.key,), self.objects, where)

    def _of_images(
        self,
        entries: Sequence[Target],
        keys: Sequence[str],
        read: Callable[[Target, str], Shapes],
        where: Callable[[int], str],
    ) -> tuple[Shapes, Rows]:
        """Images read as if they were one, which is faster; where that cannot be, or something is wrong, image by image."""
        whole = put_together(entries, keys)
        if whole is not None:
            with suppress(InputError, TypeError, ValueError):
                shapes = read(whole[0], "all images")
                if self.count(shapes) == whole[1].sum():
                    return shapes, whole[1]
        spans = in_stretches(lambda span: [read(entries[i], where(i)) for i in range(*span)], len(entries), fewest=1)
        parts = [part for span in spans for part in span]
        counts = np.array([self.count(part) for part in parts], dtype=np.int64)
        return self.join(parts) if parts else self.windows(torch.zeros(0), "nothing"), counts

    def boxes(self, shapes: Shapes) -> Floats:
        """(n, 4) boxes around the shapes: x1 y1 x2 y2."""
        raise NotImplementedError

    def count(self, shapes: Shapes) -> int:
        """How many shapes there are."""
        return len(self.boxes(shapes))

    def areas(self, shapes: Shapes) -> Floats:
        """(n,) areas of the shapes, which COCO's small, medium and large go by."""
        return areas_of(sizes_of(self.boxes(shapes)), 0.0)

    def join(self, parts: Sequence[Shapes]) -> Shapes:
        """The shapes of several images as one."""
        return np.concatenate(parts)

    def take(self, shapes: Shapes, rows: Rows) -> Shapes:
        """Some of the shapes."""
        return shapes[rows]

    def values(
        self, windows: Shapes, rows: Rows, objects: Shapes, columns: Rows, crowd: Flags, least: float = 0.0
    ) -> Floats:
        """(M,) likeness of window rows[m] and object columns[m]; with a crowd (M,) the share of the window that it covers.

        Where that is below `least`, it may be said to be 0.
        """
        raise NotImplementedError

    def of_pairs(self, windows: Shapes, rows: Rows, objects: Shapes, columns: Rows, crowd: Flags) -> Floats:
        """(M,) the same; pairs whose boxes do not touch are not looked at."""
        if not self.needs_touching_boxes:
            return self.values(windows, rows, objects, columns, crowd)
        overlap = np.zeros(len(rows))
        close = touching(self.boxes(windows), rows, self.boxes(objects), columns)
        overlap[close] = self.values(windows, rows[close], objects, columns[close], crowd[close])
        return overlap

    def pairs(
        self, windows: Shapes, offsets: Rows, objects: Shapes, object_offsets: Rows, crowd: Flags, least: float = 0.0
    ) -> tuple[Rows, Rows, Floats]:
        """Windows and objects of the same image that have something in common, and how much.

        Args:
            windows: of all images; those of image i from offsets[i] on. Objects likewise.
            crowd: (G,) objects that are regions of many.
            least: what overlaps less may be left out.
        """
        return self.pairs_among(
            ChosenShapes(windows, None, offsets), ChosenShapes(objects, None, object_offsets), crowd, least
        )

    def near(self, windows: Shapes, offsets: Rows, threshold: float) -> Rows:
        """(E, 2) windows of the same image that are more alike than an NMS threshold (or nearer to each other)."""
        least = threshold if self.nearness == "overlap" else -threshold
        every, crowd = ChosenShapes(windows, None, offsets), np.zeros(offsets[-1], dtype=np.bool_)
        rows, columns, alike = self.pairs_among(every, every, crowd, least)
        close = alike > least
        return np.stack([rows[close], columns[close]], axis=1)

    def pairs_among(
        self, windows: ChosenShapes, objects: ChosenShapes, crowd: Flags, least: float = 0.0
    ) -> tuple[Rows, Rows, Floats]:
        """The same for some windows and objects, by their places among the chosen; of one set with itself each pair once."""
        among_themselves = windows is objects
        if self.needs_touching_boxes:
            sides = [(self._boxes_of(side), self._areas_of(side), side.offsets) for side in (windows, objects)]
            bound = least if self.is_iou else 0.0
            rows, columns = close_pairs(*sides[0], *sides[1], crowd, bound, among_themselves)
        else:
            rows, columns = _all_pairs(windows.offsets, objects.offsets, among_themselves)

        def values(span: tuple[int, int]) -> Floats:
            some, others = rows[slice(*span)], columns[slice(*span)]
            return self.values(
                windows.shapes, windows.of(some), objects.shapes, objects.of(others), crowd[others], least
            )

        overlap = np.concatenate([np.zeros(0), *in_stretches(values, len(rows))])
        return in_common(rows, columns, overlap, self.nearness)

    def _boxes_of(self, chosen: ChosenShapes) -> Floats:
        boxes = self.boxes(chosen.shapes)
        return boxes if chosen.rows is None else boxes.take(chosen.rows, axis=0)

    def _areas_of(self, chosen: ChosenShapes) -> Floats:
        """Areas, if anything follows from them."""
        areas = self.areas(chosen.shapes) if self.is_iou else np.zeros(self.count(chosen.shapes))
        return areas if chosen.rows is None else areas[chosen.rows]

    def __call__(self, windows: Any, objects: Any, crowd: Any = None) -> Tensor:
        """(N, G) likeness of the windows and the objects of one image; `crowd` (G,) marks regions of many objects.

        Objects are shapes like the windows, or the image's target, a dict.
        """
        target = objects if isinstance(objects, Mapping) else {self.key: objects}
        shapes = self.windows(windows, "windows"), self.objects(target, "objects")
        count = [self.count(each) for each in shapes]
        flags = np.zeros(count[1], dtype=np.bool_) if crowd is None else np.asarray(crowd, dtype=np.bool_)
        rows, columns = np.repeat(np.arange(count[0]), count[1]), np.tile(np.arange(count[1]), count[0])
        return torch.from_numpy(self.of_pairs(shapes[0], rows, shapes[1], columns, flags[columns]).reshape(count))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(nms={self.nms!r})"


def _all_pairs(offsets: Rows, other_offsets: Rows, among_themselves: bool) -> tuple[Rows, Rows]:
    """Every window with every object of its image; among themselves each pair once."""
    last = np.repeat(other_offsets[1:], np.diff(offsets))
    first = np.arange(offsets[-1]) + 1 if among_themselves else np.repeat(other_offsets[:-1], np.diff(offsets))
    counts = last - first
    rows = np.repeat(np.arange(len(counts)), counts)
    return rows, np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts - first, counts)


def in_common(rows: Rows, columns: Rows, overlap: Floats, nearness: str) -> tuple[Rows, Rows, Floats]:
    """The pairs that overlap at all; of distances all pairs."""
    if nearness == "distance":
        return rows, columns, overlap
    shared = overlap > 0.0
    return rows[shared], columns[shared], overlap[shared]


def touching(boxes: Floats, rows: Rows, others: Floats, columns: Rows) -> Flags:
    """(M,) whether box rows[m] shares area with columns[m] of the others."""
    low, high = np.maximum(boxes[rows, :2], others[columns, :2]), np.minimum(boxes[rows, 2:], others[columns, 2:])
    shared: Flags = (high[:, 0] > low[:, 0]) & (high[:, 1] > low[:, 1])
    return shared


def shapes_in(target: Target, key: str, where: str) -> Any:
    """The shapes that a target has under a key."""
    if not isinstance(target, Mapping) or key not in target:
        keys = sorted(target) if isinstance(target, Mapping) else type(target).__name__
        raise InputError(f"{where}: expected a dict with {key!r} but got {keys}.")
    return target[key]


def numbers(given: Any, where: str, width: int, form: str) -> Floats:
    """(n, width) finite numbers in float64; `form` says what they are."""
    rows = tensor_of(given, where, "shapes").detach().to("cpu", torch.float64).numpy()
    if rows.size == 0:
        return np.zeros((0, width))
    if rows.ndim != 2 or rows.shape[1] != width:
        raise InputError(f"{where}: expected (n, {width}) numbers, {form}, but got shape {tuple(rows.shape)}.")
    if not np.isfinite(rows).all():
        first = int(np.argwhere(~np.isfinite(rows))[0][0])
        raise NonFiniteError(f"{where}: expected finite numbers but row {first} is {rows[first].tolist()}.")
    return rows


class Boxes(Overlap):
    """IoU of boxes (x1, y1, x2, y2): the default of every loss and metric.

    >>> Boxes()([[0, 0, 10, 10]], [[0, 0, 10, 5], [20, 0, 30, 10]]).tolist()
    [[0.5, 0.0]]
    """

    word = "IoU"
    nouns = ("box", "boxes")

    def __init__(self) -> None:
        super().__init__("boxes")

    def as_boxes(self, given: Any, where: str) -> Any:
        return given

    def windows(self, given: Any, where: str) -> Floats:
        return numbers(given, where, 4, "boxes (x1, y1, x2, y2)")

    def boxes(self, shapes: Floats) -> Floats:
        return shapes

    def values(
        self, windows: Floats, rows: Rows, objects: Floats, columns: Rows, crowd: Flags, least: float = 0.0
    ) -> Floats:
        areas = [areas_of(sizes_of(boxes), 0.0) for boxes in (windows, objects)]
        pairs = [
            overlap_table(windows[[i]], areas[0][[i]], objects[[j]], areas[1][[j]], np.array([c]))[0, 0]
            for i, j, c in zip(rows, columns, crowd, strict=True)
        ]
        return np.array(pairs, dtype=np.float64)


class Segments(Boxes):
    """IoU of stretches of time (begin, end): mAP of temporal detection, as ActivityNet counts it.

    >>> Segments()([[0.0, 4.0]], [[2.0, 6.0], [5.0, 9.0]]).tolist()
    [[0.3333333333333333, 0.0]]
    """

    word = "tIoU"
    nouns = ("segment", "segments")
    drawn = "bar"

    def as_boxes(self, given: Any, where: str) -> Tensor:
        """(n, 4) boxes (begin, 0, end, 1), whose IoU is that of the segments."""
        rows = tensor_of(given, where, "segments")
        if rows.numel() == 0:
            return torch.zeros(0, 4, dtype=torch.float64)
        if rows.ndim != 2 or rows.shape[1] != 2:
            raise InputError(f"{where}: expected (n, 2) segments (begin, end) but got shape {tuple(rows.shape)}.")
        begin, end = rows.unbind(1)
        return torch.stack([begin, torch.zeros_like(begin), end, torch.ones_like(end)], dim=1)

    def windows(self, given: Any, where: str) -> Floats:
        return super().windows(self.as_boxes(given, where), where)
