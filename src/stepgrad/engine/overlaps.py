"""Which windows overlap which objects enough to find them.

Matching asks for one thing only: how much a window overlaps an object. So `Objects` hold pairs of windows and objects with a
number, and nothing behind them knows of boxes.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepgrad.engine.jit import kernel
from stepgrad.engine.order import descending_order
from stepgrad.metric.batch import Batch, OverlapPairs
from stepgrad.metric.boxes import areas_of, sizes_of
from stepgrad.metric.protocol import Protocol

EXCUSED = np.inf
"""In place of an overlap: reaches every threshold, but any other object is preferred."""
_MANY_OBJECTS = 16  # images with more objects than this sort their windows by x1 first
_OF_CORNERS = np.zeros(0)  # no areas of their own: those that follow from the corners


class Objects(NamedTuple):
    """The objects of one class, in the order in which matching looks at them, and the windows that overlap them enough."""

    image: NDArray[np.int32]  # (G,)
    # (G,) difficult or crowd: not counted as an object; a detection of it is neither right nor wrong
    ignored: NDArray[np.bool_]
    once: NDArray[
        np.bool_
    ]  # (G,) of the ignored, those that excuse one detection only (COCO: of another size, unlabelled)
    pair_window: NDArray[np.int32]  # (M,) numbers of windows, increasing
    pair_object: NDArray[np.int32]  # (M,) increasing for each window
    pair_overlap: NDArray[np.float64]  # (M,)


class Areas(NamedTuple):
    """Areas by width and height as they were written, where those need not be what the rounded corners give."""

    windows: NDArray[np.float64]  # (N,)
    objects: NDArray[np.float64]  # (G,)


def counted_objects(batch: Batch, protocol: Protocol) -> NDArray[np.int64]:
    """The objects that the protocol does not drop, in the order in which matching looks at them.

    Among equal overlaps the engine takes the first object under "best" and the last under "best_free"; a protocol that wants it
    the other way round gets the objects the other way round.
    """
    # A dropped object is as if it were not annotated: a detection of it is a false positive.
    dropped = batch.difficult & (protocol.difficult == "drop") | batch.crowd & (protocol.crowds == "drop")
    there = np.flatnonzero(~dropped)
    return there if protocol.last_of_equal_overlaps == (protocol.duplicates == "best_free") else there[::-1]


def objects_by_class(
    batch: Batch,
    protocol: Protocol,
    boxes: NDArray[np.float64],
    number_of: NDArray[np.int32],
    areas: Areas | None = None,
    only_class: int | None = None,
) -> dict[int, Objects]:
    """The objects of each class that has any, or of one class, and the windows (N, 4) that overlap them."""
    there = counted_objects(batch, protocol)
    labels = batch.object_labels[there]
    chosen = there[np.argsort(labels, kind="stable")] if only_class is None else there[labels == only_class]
    labels = batch.object_labels[chosen]
    # Only COCO's rule knows regions that absorb any number of detections; to VOC's a crowd is an object like others.
    crowd = batch.crowd[chosen] & (protocol.duplicates == "best_free")
    once = np.zeros(len(chosen), dtype=np.bool_) if batch.unlabelled is None else batch.unlabelled[chosen] & ~crowd
    ignored = crowd | once | (batch.difficult[chosen] & (protocol.difficult == "ignore"))
    images = batch.object_images[chosen]
    index, object_of, overlap = _pairs(batch, protocol, chosen, boxes, crowd, areas)
    window = number_of[index]
    order = np.lexsort((window, labels[object_of]))  # objects stay in their order for each window
    window, object_of, overlap = window[order], object_of[order], overlap[order]
    # Objects and pairs are sorted by class now: each class is a stretch of both.
    starts = [*np.flatnonzero(np.diff(labels, prepend=-1)).tolist(), len(chosen)]
    pairs = [*np.searchsorted(labels[object_of], labels[starts[:-1]]).tolist(), len(window)]
    return {
        int(labels[a]): Objects(
            image=images[a:b],
            ignored=ignored[a:b],
            once=once[a:b],
            pair_window=window[i:j],
            pair_object=object_of[i:j] - np.int32(a),
            pair_overlap=overlap[i:j],
        )
        for (a, b), (i, j) in zip(pairwise(starts), pairwise(pairs), strict=True)
    }


def no_objects() -> Objects:
    """The objects of a class that has none."""
    whole, flags = np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.bool_)
    return Objects(whole, flags, flags, whole, whole, np.zeros(0))


def only_of_area(
    objects: Objects,
    wrong_objects: NDArray[np.bool_],
    wrong_windows: NDArray[np.int32],
    wrong_images: NDArray[np.int64],
    images: int,
) -> Objects:
    """COCO's rules for objects of some sizes: those of other sizes are ignored, each excusing one detection; and a detection of
    another size that finds nothing is no false positive.

    The second is said by one more ignored object per image, which all windows of other sizes reach, as a last resort.
    """
    # The pair has no overlap of its own: EXCUSED reaches every threshold, and matching prefers any other object.
    window = np.concatenate([objects.pair_window, wrong_windows])
    object_of = np.concatenate([objects.pair_object, (len(objects.image) + wrong_images).astype(np.int32)])
    overlap = np.concatenate([objects.pair_overlap, np.full(len(wrong_windows), EXCUSED)])
    order = np.lexsort((object_of, window))
    return Objects(
        image=np.concatenate([objects.image, np.arange(images, dtype=np.int32)]),
        ignored=np.concatenate([objects.ignored | wrong_objects, np.ones(images, dtype=np.bool_)]),
        once=np.concatenate([objects.once | (wrong_objects & ~objects.ignored), np.zeros(images, dtype=np.bool_)]),
        pair_window=window[order],
        pair_object=object_of[order],
        pair_overlap=overlap[order],
    )


def _pairs(
    batch: Batch,
    protocol: Protocol,
    chosen: NDArray[np.int64],
    boxes: NDArray[np.float64],
    crowd: NDArray[np.bool_],
    areas: Areas | None,
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float64]]:
    """Indices of windows, places among the chosen objects, and their overlaps, as the protocol's arithmetic has them."""
    if batch.pairs is not None:
        return _given_pairs(batch.pairs, chosen, len(batch.object_labels), min(protocol.cuts))
    images = batch.object_images[chosen]
    written = (areas.windows, areas.objects[chosen]) if areas else (_OF_CORNERS, _OF_CORNERS)
    boxes, window_areas = measured(boxes, written[0], protocol)
    object_boxes, object_areas = measured(batch.object_boxes[chosen], written[1], protocol)
    # Sorting by the left edge lets an object skip the windows far to its side.
    by_left = _by_left_edge(boxes, batch.offsets, images)
    if not (_near_corners(window_areas, boxes, protocol) and _near_corners(object_areas, object_boxes, protocol)):
        by_left = by_left[:0]  # how far a window may lie does not follow from its corners: look at all of them
    index, object_of, overlap = _all_pairs(
        boxes[by_left] if len(by_left) else boxes,
        window_areas[by_left] if len(by_left) and len(window_areas) else window_areas,
        by_left,
        batch.offsets,
        object_boxes,
        object_areas,
        images,
        crowd,
        protocol.pixel_offset,
        min(protocol.match_thresholds) * (1.0 - _rounding_of(protocol)),
    )
    if protocol.overlaps == "single":
        # Pairs were found in float64, with room for rounding; a tool that counts in float32 gets the number that it computes.
        single = single_overlaps(boxes[index], object_boxes[object_of], protocol.pixel_offset)
        overlap = np.where(crowd[object_of], overlap, single)
    return index, object_of, overlap


def _given_pairs(
    pairs: OverlapPairs, chosen: NDArray[np.int64], objects: int, lowest: float
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float64]]:
    """Pairs that came with the batch, of the chosen objects, object after object; those that reach no threshold are left out."""
    place = np.full(objects, -1, dtype=np.int32)
    place[chosen] = np.arange(len(chosen), dtype=np.int32)
    # COCO's bound on thresholds is a little lower than the largest of them: `reaches` decides, this only saves work.
    taking_part = np.flatnonzero((place[pairs.object] >= 0) & (pairs.overlap >= min(lowest, 1.0 - 1e-9)))
    order = taking_part[np.argsort(place[pairs.object[taking_part]], kind="stable")]
    return pairs.window[order].astype(np.int32), place[pairs.object[order]], pairs.overlap[order]


def measured(
    boxes: NDArray[np.float64], areas: NDArray[np.float64], protocol: Protocol
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Boxes (N, 4) and their areas as the protocol's arithmetic has them; no areas stand for those of the corners."""
    if protocol.overlaps == "double":
        return boxes, areas
    single = boxes.astype(np.float32)
    if protocol.overlaps == "single":
        return single.astype(np.float64), _OF_CORNERS
    # x, y, width, height in float32; who reads them adds x and width in float64
    start = single[:, :2].astype(np.float64)
    sizes = (single[:, 2:] - single[:, :2]).astype(np.float64)
    return np.concatenate([start, start + sizes], axis=1), areas_of(sizes, protocol.pixel_offset)


def _rounding_of(protocol: Protocol) -> float:
    """By what share an overlap in the protocol's arithmetic may exceed that of the same boxes in float64.

    Six operations in float32, each off by at most 2^-24, of which the sum of the areas can weigh four times: the union is
    at least a quarter of what is added and subtracted to make it. What is added to the union only lowers the overlap.
    """
    return 1e-9 if protocol.overlaps == "double" else 1e-5


def single_overlaps(
    boxes: NDArray[np.float64], others: NDArray[np.float64], pixel_offset: float = 0.0
) -> NDArray[np.float64]:
    """(N,) IoU of each box with the one beside it, every operation in float32, with 1e-7 added to the union.

    >>> iou = single_overlaps(np.array([[0.0, 0.0, 10.0, 10.0]]), np.array([[0.0, 0.0, 10.0, 6.0]]))
    >>> bool(iou[0] > 0.6), bool(iou[0] == np.float32(0.6))
    (True, True)
    """
    p, q = boxes.astype(np.float32), others.astype(np.float32)
    offset, nothing = np.float32(pixel_offset), np.float32(0.0)
    shared = np.maximum(np.minimum(p[:, 2:], q[:, 2:]) - np.maximum(p[:, :2], q[:, :2]) + offset, nothing)
    inter = shared[:, 0] * shared[:, 1]
    # The objects' areas come first, as in ultralytics: float32 sums of two do not depend on it, those of three would.
    areas = [(b[:, 2] - b[:, 0] + offset) * (b[:, 3] - b[:, 1] + offset) for b in (q, p)]
    iou: NDArray[np.float32] = inter / (areas[0] + areas[1] - inter + np.float32(1e-7))
    return iou.astype(np.float64)


def _by_left_edge(
    boxes: NDArray[np.float64], offsets: NDArray[np.int64], object_images: NDArray[np.int32]
) -> NDArray[np.int32]:
    """Windows of each image by x1; empty when no image has so many objects that sorting pays."""
    # Sorting costs n log n for an image, looking at all windows n for each object: many objects make it pay.
    counts = np.bincount(object_images, minlength=len(offsets) - 1)
    if counts.max(initial=0) <= _MANY_OBJECTS:
        return np.zeros(0, dtype=np.int32)
    by_left = np.arange(offsets[-1], dtype=np.int32)
    for image in np.flatnonzero(counts):
        a, b = offsets[image], offsets[image + 1]
        by_left[a:b] = a + descending_order(-boxes[a:b, 0])
    return by_left


def _near_corners(areas: NDArray[np.float64], boxes: NDArray[np.float64], protocol: Protocol) -> bool:
    """Whether written areas differ from those of the corners by far less than `_overlaps_with` allows for (1e-6)."""
    if len(areas) == 0:
        return True
    by_corners = areas_of(sizes_of(boxes), protocol.pixel_offset)
    return bool((abs(areas - by_corners) <= 1e-7 * by_corners).all())


@kernel
def _overlaps_with(
    boxes: NDArray[np.float64],
    areas: NDArray[np.float64],
    by_left: NDArray[np.int32],
    start: int,
    stop: int,
    target: NDArray[np.float64],
    target_area: float,
    crowd: bool,
    pixel_offset: float,
    lowest: float,
    out_window: NDArray[np.int32],
    out_overlap: NDArray[np.float64],
) -> int:
    """Write windows start..stop whose IoU with `target` is at least `lowest`; returns how many there are.

    If `by_left` is not empty, boxes[i] is window by_left[i] and the boxes of an image are sorted by x1. A crowd's IoU divides by
    the window's area (COCO). Empty `areas`, and a negative `target_area`, stand for the areas that follow from the corners.
    """
    target_width = target[2] - target[0] + pixel_offset
    target_height = target[3] - target[1] + pixel_offset
    object_area = target_area if target_area >= 0.0 else target_width * target_height
    low = start
    high = stop
    # IoU >= lowest means that the window is at most target / lowest wide, so its left edge is not far. The factor and the
    # offset leave room for rounding; a crowd divides by the window's own area, so nothing follows for its windows.
    if len(by_left) > 0 and not crowd and lowest > 0.0:
        low = _first_not_left_of(boxes, start, stop, target[0] - target_width / lowest * 1.000001 - 2.0 * pixel_offset)
        high = _first_not_left_of(boxes, start, stop, target[2] + pixel_offset * 1.000001)
    written = 0
    for i in range(low, high):
        width = min(boxes[i, 2], target[2]) - max(boxes[i, 0], target[0]) + pixel_offset
        height = min(boxes[i, 3], target[3]) - max(boxes[i, 1], target[1]) + pixel_offset
        if width <= 0.0 or height <= 0.0:
            continue
        inter = width * height
        # An area as it was written may differ in the last bit from that of the corners, which can decide a threshold.
        if len(areas) > 0:
            area = areas[i]
        else:
            area = (boxes[i, 2] - boxes[i, 0] + pixel_offset) * (boxes[i, 3] - boxes[i, 1] + pixel_offset)
        overlap = inter / (area if crowd else area + object_area - inter)
        if overlap >= lowest:
            out_window[written] = by_left[i] if len(by_left) > 0 else i
            out_overlap[written] = overlap
            written += 1
    return written


@kernel
def _first_not_left_of(boxes: NDArray[np.float64], low: int, high: int, x: float) -> int:
    """The first of boxes[low:high], sorted by x1, with x1 >= x."""
    while low < high:
        middle = (low + high) // 2
        if boxes[middle, 0] < x:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def _all_pairs(
    boxes: NDArray[np.float64],
    areas: NDArray[np.float64],
    by_left: NDArray[np.int32],
    offsets: NDArray[np.int64],
    object_boxes: NDArray[np.float64],
    object_areas: NDArray[np.float64],
    object_images: NDArray[np.int32],
    crowd: NDArray[np.bool_],
    pixel_offset: float,
    lowest: float,
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float64]]:
    """Windows, objects and IoUs of at least `lowest`, object after object."""
    filled = 0
    window = np.empty(1024, dtype=np.int32)
    object_of = np.empty(1024, dtype=np.int32)
    overlap = np.empty(1024)
    for g in range(len(object_boxes)):
        start, stop = offsets[object_images[g]], offsets[object_images[g] + 1]
        # Room for all windows of the image, so that the inner loop never has to ask.
        if filled + stop - start > len(window):
            more = max(len(window), stop - start)
            window = np.concatenate((window, np.empty(more, dtype=np.int32)))
            object_of = np.concatenate((object_of, np.empty(more, dtype=np.int32)))
            overlap = np.concatenate((overlap, np.empty(more)))
        written = _overlaps_with(
            boxes,
            areas,
            by_left,
            start,
            stop,
            object_boxes[g],
            object_areas[g] if len(object_areas) > 0 else -1.0,
            crowd[g],
            pixel_offset,
            lowest,
            window[filled:],
            overlap[filled:],
        )
        object_of[filled : filled + written] = g
        filled += written
    return window[:filled].copy(), object_of[:filled].copy(), overlap[:filled].copy()
