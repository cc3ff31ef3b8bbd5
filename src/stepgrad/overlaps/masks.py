"""Masks: the IoU of pixels, from dense masks, COCO's run lengths (RLE) and polygons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from stepgrad.engine.filled import joined_runs, runs_of_polygon
from stepgrad.engine.runs import (
    measured_runs,
    runs_of_counts,
    runs_of_pixels,
    runs_of_text,
    shared_pixels,
)
from stepgrad.errors import InputError
from stepgrad.overlaps.base import Flags, Floats, Overlap, Rows, numbers
from stepgrad.overlaps.together import in_stretches

Ints = NDArray[np.int64]
Pixels = NDArray[np.int32]
_LARGEST = 2**31  # pixels of a mask
_FARTHEST = 1e5  # pixels from the corner of an image to a polygon's point


class CountedRuns(NamedTuple):
    """n masks as a tool compared them, in resized images."""

    runs: Runs
    resizing: Floats  # (n, 4) factors of x and y, then what is added, from the image to the mask


class Runs(NamedTuple):
    """n masks as runs of pixels, read row by row or column by column."""

    starts: Pixels  # runs of all masks ...
    stops: Pixels
    ptr: Ints  # (n + 1,) ... those of mask i from ptr[i] to ptr[i + 1]
    sizes: Ints  # (n, 2) height and width of each
    by_rows: bool
    counts: Ints  # (n,) pixels of each
    boxes: Floats  # (n, 4) around the pixels; a mask without any has a box without area
    first_lines: Pixels  # (n,) the first row, or column, of masks with one run in each; -1: of others
    counted: CountedRuns | None = None
    """The same masks as a tool compared them; None: not known."""

    @property
    def masks(self) -> int:
        return len(self.counts)


class Masks(Overlap):
    """IoU of masks: pixels of both over pixels of either; with a crowd over pixels of the window (COCO's segm).

    Windows come as `masks=[...]` per image, objects as target["masks"]: a tensor (n, H, W) of booleans or of 0 and 1, or a list
    of n masks in COCO's form: run lengths {"size": [H, W], "counts": ...}, compressed or not, or polygons {"size": [H, W],
    "polygons": [[x1, y1, x2, y2, ...], ...]}. Windows and objects of an image have the same size.

    Args:
        nms: "boxes", the usual choice, or "own".

    >>> import torch
    >>> left, upper = torch.zeros(2, 4, 4, dtype=torch.bool)
    >>> left[:, :2], upper[:2] = True, True
    >>> Masks()(left[None], upper[None]).tolist()
    [[0.3333333333333333]]
    """

    key = "masks"
    word = "mask IoU"
    nouns = ("mask", "masks")
    drawn = "mask"
    is_iou = True

    def __init__(self, nms: str = "boxes") -> None:
        super().__init__(nms)

    def windows(self, given: Any, where: str) -> Runs:
        if isinstance(given, (Tensor, np.ndarray)):
            return runs_of_dense(given, where)
        if not isinstance(given, Sequence) or isinstance(given, (str, bytes)):
            raise InputError(
                f"{where}: expected masks (n, H, W) or a list of run lengths but got {type(given).__name__}."
            )
        if given and all(isinstance(mask, (Tensor, np.ndarray)) for mask in given):
            return runs_of_dense(np.stack([np.asarray(mask) for mask in given]), where)
        return with_counted(runs_of_coco(given, where), given, where)

    def boxes(self, shapes: Runs) -> Floats:
        return shapes.boxes

    def areas(self, shapes: Runs) -> Floats:
        return shapes.counts.astype(np.float64)

    def join(self, parts: Sequence[Runs]) -> Runs:
        return join_runs(parts)

    def take(self, shapes: Runs, rows: Rows) -> Runs:
        return take_runs(shapes, rows)

    def values(
        self, windows: Runs, rows: Rows, objects: Runs, columns: Rows, crowd: Flags, least: float = 0.0
    ) -> Floats:
        windows, objects = in_one_order(windows, objects)
        _check_sizes(windows.sizes[rows], objects.sizes[columns])
        runs = [(shapes.starts, shapes.stops, shapes.ptr, shapes.first_lines) for shapes in (windows, objects)]
        shared = shared_pixels(*runs[0], *runs[1], rows, columns)
        union = windows.counts[rows] + np.where(crowd, 0, objects.counts[columns] - shared)
        return shared / np.maximum(union, 1)


def _check_sizes(sizes: Ints, others: Ints) -> None:
    wrong = (sizes != others).any(axis=1)
    if wrong.any():
        first = int(np.argmax(wrong))
        (h, w), (g, v) = sizes[first].tolist(), others[first].tolist()
        raise InputError(
            f"Expected masks of windows and objects of one size but got {h} x {w} and {g} x {v} pixels; resize one of them."
        )


def runs_of_dense(given: Any, where: str) -> Runs:
    """Runs of masks (n, H, W), row by row."""
    masks = given.detach().cpu().numpy() if isinstance(given, Tensor) else np.asarray(given)
    if masks.size == 0:
        return no_runs()
    if masks.ndim != 3:
        raise InputError(f"{where}: expected masks (n, H, W) but got shape {tuple(masks.shape)}.")
    if masks.dtype != np.bool_ and not ((masks == 0) | (masks == 1)).all():
        raise InputError(
            f"{where}: expected masks of booleans, or of 0 and 1, but got other numbers; compare with 0.5."
        )
    n, height, width = masks.shape
    pixels = np.ascontiguousarray(masks.astype(np.bool_, copy=False)).view(np.uint8).reshape(n, -1)
    return _measured(*_runs(pixels), np.tile([height, width], (n, 1)), True)


def _runs(pixels: NDArray[np.uint8]) -> tuple[Pixels, Pixels, Ints]:
    """Starts and stops of the runs of masks (n, pixels), and where those of each mask begin."""
    whole_words = pixels.shape[1] % 8 == 0
    return runs_of_pixels(
        pixels, pixels.view(np.uint64) if whole_words else np.zeros((len(pixels), 0), dtype=np.uint64)
    )


def runs_of_coco(given: Sequence[Any], where: str) -> Runs:
    """Runs of masks in COCO's form, column by column."""
    sizes = _sizes_of(given, where)
    counts = [mask.get("counts") for mask in given]
    kinds = set(map(type, counts))
    if kinds <= {str} or kinds <= {bytes}:
        return _of_texts(counts, sizes, range(len(given)), where)
    # Forms may be mixed: the masks of each are read together, then put back in their order.
    short = np.array([isinstance(each, (str, bytes)) for each in counts], dtype=np.bool_)
    texts, others = np.flatnonzero(short).tolist(), np.flatnonzero(~short).tolist()
    compressed = [_as_text(counts[i]) for i in texts]
    lengths = [_lengths_of(given[i], sizes[i], f"{where}: mask {i}") for i in others]
    both = join_runs(
        [_of_texts(compressed, sizes[texts], texts, where), _of_lengths(lengths, sizes[others], others, where)]
    )
    return take_runs(both, np.argsort(np.concatenate([texts, others]), kind="stable"))


def with_counted(runs: Runs, given: Sequence[Any], where: str) -> Runs:
    """Masks with what a tool compared in their place, if each of them has it."""
    if not given or "counted" not in given[0]:
        return runs
    counted = [mask.get("counted") for mask in given]
    if not all(isinstance(mask, Mapping) for mask in counted):
        return runs
    form = f"{where}: the masks that a tool counted"
    resizing = numbers(
        [mask.get("resizing") or [np.nan] * 4 for mask in counted], form, 4, "factors of x and y, then what is added"
    )
    if (resizing[:, :2] <= 0.0).any():
        raise InputError(f"{form}: expected positive factors of x and y but got {resizing[:, :2].min():g}.")
    return runs._replace(counted=CountedRuns(runs_of_coco(counted, form), resizing))


def _as_text(counts: str | bytes) -> bytes:
    """Characters that are none of COCO's are wrong in any encoding."""
    return counts.encode("latin-1", "replace") if isinstance(counts, str) else counts


def _of_texts(texts: Sequence[Any], sizes: Ints, places: Sequence[int], where: str) -> Runs:
    """Runs of compressed masks, all of them strings or all of them bytes; `places` are their numbers in messages."""
    joined = _as_text("".join(texts)) if texts and isinstance(texts[0], str) else b"".join(texts)
    ends = np.concatenate([[0], np.cumsum(np.fromiter(map(len, texts), dtype=np.int64, count=len(texts)))])
    text = np.frombuffer(joined, dtype=np.uint8)

    def read(span: tuple[int, int]) -> Runs:
        a, b = span
        starts, stops, ptr, totals = runs_of_text(text[ends[a] : ends[b]], ends[a : b + 1] - ends[a])
        _check_totals(totals, sizes[a:b], places[a:b], where)
        return _measured(starts, stops, ptr, sizes[a:b], False)

    return join_runs(in_stretches(read, len(texts)))


def _of_lengths(lengths: Sequence[Ints], sizes: Ints, places: Sequence[int], where: str) -> Runs:
    """Runs of masks by the lengths of their stretches."""
    ends = np.cumsum([0, *map(len, lengths)])
    starts, stops, ptr, totals = runs_of_counts(np.concatenate([np.zeros(0, dtype=np.int64), *lengths]), ends)
    _check_totals(totals, sizes, places, where)
    return _measured(starts, stops, ptr, sizes, False)


def _lengths_of(mask: Mapping[str, Any], size: Ints, where: str) -> Ints:
    """Lengths of stretches outside and inside of a mask that is not compressed, or of polygons."""
    if mask.get("counts") is None:
        _size_of(mask, where)  # raises unless there are polygons
        return _lengths_of_polygons(mask["polygons"], size, where)
    return np.asarray(mask["counts"], dtype=np.int64).reshape(-1)


def _sizes_of(given: Sequence[Any], where: str) -> Ints:
    """(n, 2) heights and widths."""
    try:
        pairs = [mask["size"] for mask in given]
        sides = np.fromiter(chain.from_iterable(pairs), dtype=np.int64, count=2 * len(pairs))
        fit = set(map(len, pairs)) <= {2}
    except (TypeError, ValueError, KeyError, OverflowError):
        fit = False
    if fit:
        sizes = sides.reshape(-1, 2)
        if (sizes > 0).all() and (sizes[:, 0] * sizes[:, 1].astype(np.float64) < _LARGEST).all():
            return sizes
    # One of them is wrong: they are looked at one by one.
    return np.array([_size_of(mask, f"{where}: mask {i}") for i, mask in enumerate(given)], dtype=np.int64)


def _size_of(mask: Any, where: str) -> tuple[int, int]:
    if (
        not isinstance(mask, Mapping)
        or "size" not in mask
        or not (mask.get("counts") is not None or "polygons" in mask)
    ):
        got = sorted(mask) if isinstance(mask, Mapping) else type(mask).__name__
        raise InputError(f"{where}: expected a dict with 'size' and 'counts' or 'polygons' but got {got}.")
    try:
        height, width = (int(side) for side in mask["size"])
    except (TypeError, ValueError):
        raise InputError(f"{where}: expected 'size' to be [height, width] but got {mask['size']!r}.") from None
    if height < 1 or width < 1 or height * width >= _LARGEST:
        raise InputError(f"{where}: expected a size of at least 1 x 1 pixels but got {height} x {width}.")
    return height, width


def _check_totals(totals: Ints, sizes: Ints, places: Sequence[int], where: str) -> None:
    wrong = totals != sizes[:, 0] * sizes[:, 1]
    if wrong.any():
        i = int(np.argmax(wrong))
        (height, width), total = sizes[i].tolist(), int(totals[i])
        got = f"they add up to {total}" if total >= 0 else "one of them is negative, or no number"
        raise InputError(
            f"{where}: mask {places[i]}: expected run lengths that add up to {height} x {width} pixels but {got}."
        )


def _lengths_of_polygons(polygons: Any, size: Ints, where: str) -> Ints:
    """Run lengths of the union of several polygons, filled by COCO's rule."""
    starts, stops = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for polygon in polygons:
        numbers = np.asarray(polygon, dtype=np.float64).reshape(-1)
        if len(numbers) < 6 or len(numbers) % 2 or not np.isfinite(numbers).all():
            raise InputError(
                f"{where}: expected polygons as at least three finite points x, y but got {len(numbers)} numbers."
            )
        if np.abs(numbers).max() > _FARTHEST:  # edges are walked step by step
            raise InputError(f"{where}: expected polygons in pixels of the image but got {np.abs(numbers).max():g}.")
        points = numbers.reshape(-1, 2)
        start, stop = runs_of_polygon(points[:, 0].copy(), points[:, 1].copy(), int(size[0]), int(size[1]))
        starts.append(start)
        stops.append(stop)
    bounds = np.stack(joined_runs(np.concatenate(starts), np.concatenate(stops)), axis=1).reshape(-1)
    return np.diff(np.concatenate([[0], bounds, [size.prod()]]))


def no_runs() -> Runs:
    """No masks."""
    none = np.zeros(0, dtype=np.int32)
    return _measured(none, none, np.zeros(1, dtype=np.int64), np.zeros((0, 2), dtype=np.int64), True)


def _measured(starts: Pixels, stops: Pixels, ptr: Ints, sizes: Ints, by_rows: bool) -> Runs:
    """Runs with the pixels and the boxes of their masks."""
    return Runs(starts, stops, ptr, sizes, by_rows, *measured_runs(starts, stops, ptr, sizes, by_rows))


def join_runs(parts: Sequence[Runs]) -> Runs:
    """The masks of several images as one."""
    filled = [part for part in parts if part.masks]
    if len(filled) < 2:
        return filled[0] if filled else no_runs()
    if len({part.by_rows for part in filled}) > 1:
        filled = [part if not part.by_rows else turned(part) for part in filled]
    columns = [np.concatenate([part[c] for part in filled]) for c in (0, 1)]
    shift = np.cumsum([0, *(len(part.starts) for part in filled)])
    ptr = np.concatenate([[0], *(part.ptr[1:] + first for part, first in zip(filled, shift, strict=False))])
    sizes, counts, boxes, first_lines = (np.concatenate([part[c] for part in filled]) for c in (3, 5, 6, 7))
    counted = [part.counted for part in filled if part.counted is not None]
    every = None
    if len(counted) == len(filled):
        every = CountedRuns(join_runs([c.runs for c in counted]), np.concatenate([c.resizing for c in counted]))
    return Runs(columns[0], columns[1], ptr, sizes, filled[0].by_rows, counts, boxes, first_lines, every)


def in_one_order(a: Runs, b: Runs) -> tuple[Runs, Runs]:
    """Both read the same way."""
    if a.by_rows == b.by_rows or not a.masks or not b.masks:
        return a, b
    return (turned(a), b) if a.by_rows else (a, turned(b))


def turned(runs: Runs) -> Runs:
    """The same masks, read column by column instead of row by row, or the other way round."""
    parts = []
    for i in range(runs.masks):
        pixels = dense_of(runs, i)
        starts, stops, _ = _runs(np.ascontiguousarray(pixels.T if runs.by_rows else pixels).reshape(1, -1))
        parts.append((starts, stops))
    starts, stops = (np.concatenate([part[side] for part in parts]) for side in (0, 1))
    ptr = np.cumsum([0, *(len(part[0]) for part in parts)])
    _, _, first_lines = measured_runs(starts, stops, ptr, runs.sizes, not runs.by_rows)
    return runs._replace(starts=starts, stops=stops, ptr=ptr, by_rows=not runs.by_rows, first_lines=first_lines)


def dense_of(runs: Runs, i: int) -> NDArray[np.uint8]:
    """Mask i as (H, W) pixels of 0 and 1."""
    height, width = runs.sizes[i].tolist()
    pixels = np.zeros(height * width, dtype=np.uint8)
    for start, stop in zip(
        *(ends[runs.ptr[i] : runs.ptr[i + 1]].tolist() for ends in (runs.starts, runs.stops)), strict=True
    ):
        pixels[start:stop] = 1
    return pixels.reshape(height, width) if runs.by_rows else pixels.reshape(width, height).T


def coco_counts(runs: Runs, i: int) -> list[int]:
    """Mask i as COCO's run lengths, column by column, not compressed.

    >>> coco_counts(runs_of_dense(np.array([[[1, 0], [1, 1]]]), "a mask"), 0)
    [0, 2, 1, 1]
    """
    if runs.by_rows:
        return coco_counts(turned(take_runs(runs, np.array([i]))), 0)
    bounds = [0]
    for start, stop in zip(
        *(ends[runs.ptr[i] : runs.ptr[i + 1]].tolist() for ends in (runs.starts, runs.stops)), strict=True
    ):
        bounds += [start, stop]
    whole = int(runs.sizes[i].prod())
    lengths = np.diff([*bounds, whole]).tolist()
    return lengths if lengths[-1] or len(lengths) == 1 else lengths[:-1]


def coco_masks(masks: Tensor) -> list[dict[str, Any]]:
    """Masks (n, H, W) in COCO's form, as run lengths.

    >>> import torch
    >>> coco_masks(torch.tensor([[[True, False], [True, True]]]))
    [{'size': [2, 2], 'counts': [0, 2, 1, 1]}]
    """
    by_columns = runs_of_dense(masks.transpose(1, 2), "masks")._replace(by_rows=False)
    size = list(masks.shape[1:])
    return [{"size": size, "counts": coco_counts(by_columns, i)} for i in range(len(masks))]


def take_runs(runs: Runs, rows: Rows) -> Runs:
    """Some of the masks."""
    lengths = np.diff(runs.ptr)[rows]
    ptr = np.concatenate([[0], np.cumsum(lengths)])
    where = np.arange(ptr[-1]) - np.repeat(ptr[:-1] - runs.ptr[rows], lengths)
    columns = runs.sizes[rows], runs.by_rows, runs.counts[rows], runs.boxes[rows], runs.first_lines[rows]
    counted = None
    if runs.counted is not None:
        counted = CountedRuns(take_runs(runs.counted.runs, rows), runs.counted.resizing[rows])
    return Runs(runs.starts[where], runs.stops[where], ptr, *columns, counted)
