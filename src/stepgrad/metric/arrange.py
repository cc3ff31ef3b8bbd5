"""Arrange a batch for counting: overlaps once per image, then per class the order, the kept windows and the matches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from stepgrad.kernels.class_view import ClassView, order_and_suppress
from stepgrad.kernels.matching import BEST, BEST_FREE, Objects, Pairs, Rules, all_pairs
from stepgrad.kernels.metric_code import NO_CUT
from stepgrad.kernels.overlaps import Rows, Slots, image_rows, join_rows, no_rows, plain_slots, spatial_slots
from stepgrad.kernels.sorting import descending_order
from stepgrad.metric.areas import only_of_area
from stepgrad.metric.arithmetic import measured, rounding_of, single_overlaps
from stepgrad.metric.batch import Batch
from stepgrad.metric.boxes import areas_of
from stepgrad.metric.list_metric import ListMetric
from stepgrad.metric.metrics import AVERAGE_PRECISION
from stepgrad.metric.protocol import Protocol
from stepgrad.parallel import run_threads

_MANY_OBJECTS = 16  # images with more objects than this sort their windows by x1 first
_NO_LIMIT = 2**31 - 1
_NONE = np.zeros(0)


@dataclass(frozen=True)
class Layout:
    """Slots and overlaps of a set of boxes."""

    slots: Slots
    rows: Rows


@dataclass(frozen=True)
class Areas:
    """Areas by width and height as they were written, where those need not be what the rounded corners give."""

    windows: NDArray[np.float64]  # (N,)
    objects: NDArray[np.float64]  # (G,)


@dataclass(frozen=True)
class Arrangement:
    """A batch under a protocol, ready to be viewed class by class."""

    batch: Batch
    protocol: Protocol
    nms_threshold: float | None
    threads: int
    shared: Layout | None  # None: every class has its own boxes
    areas: Areas | None = None  # None: those of the corners
    found: Sequence[tuple[Objects, Pairs]] | None = None  # by class, from corners; None: looked for later
    score_floor: float | None = None  # windows that score less do not exist for a class
    metric: ListMetric = AVERAGE_PRECISION

    def view(self, c: int) -> ClassView:
        """Order class c, run NMS, and find which windows reach which objects."""
        batch = self.batch
        layout = self.shared or layout_of(self.class_boxes(c), batch.offsets, self.nms_threshold, 1)
        column = np.ascontiguousarray(batch.scores[:, c])
        by_score = descending_order(column)
        if self.score_floor is not None:
            exists = column >= self.score_floor
            exists[len(column) - self.cuts :] = True  # whatever the threshold
            by_score = by_score[exists[by_score]]
        scores, order, position, kept = order_and_suppress(column, by_score, layout.slots, layout.rows)
        known = self.found if self.areas is None else None
        objects, pairs = known[c] if known else self._objects(c, layout.slots)
        if self.metric.area is not None:
            objects, pairs = self._within_area(c, objects, pairs, layout.slots)
        P = int(np.count_nonzero(~objects.ignored)) - self.cuts
        counts, norm = self.metric.levels(P, self.protocol)
        cut = int(layout.slots.slot_of[-1]) if self.cuts else NO_CUT
        return ClassView(
            scores=scores,
            order=order,
            position=position,
            slots=layout.slots,
            rows=layout.rows,
            kept=kept,
            pairs=pairs,
            objects=objects,
            images=batch.images,
            P=P,
            cumulative=np.cumsum(counts),
            norm=norm,
            max_detections=self.max_detections,
            metric=self.metric.code(P, batch.images - self.cuts, cut),
        )

    @property
    def cuts(self) -> int:
        """Windows that stand for the metric's threshold: the last one of the batch, if there is a threshold."""
        return int(self.metric.threshold is not None)

    def has_objects(self, c: int) -> bool:
        """Whether the batch has objects of class c, such as count or not."""
        return int(np.count_nonzero(self.batch.object_labels == c)) > self.cuts

    def class_boxes(self, c: int) -> NDArray[np.float64]:
        """(N, 4) boxes as class c sees them."""
        return np.ascontiguousarray(self.batch.boxes[:, c]) if self.batch.boxes_by_class else self.batch.boxes

    @property
    def rules(self) -> Rules:
        """One matching rule per threshold."""
        rule = BEST_FREE if self.protocol.duplicates == "best_free" else BEST
        return Rules(np.array(self.protocol.match_thresholds, dtype=np.float64), self.protocol.equality, rule)

    @property
    def max_detections(self) -> int:
        """Detections per image that count."""
        return self.protocol.max_detections or _NO_LIMIT

    def _within_area(self, c: int, objects: Objects, pairs: Pairs, slots: Slots) -> tuple[Objects, Pairs]:
        """The same by COCO's rules for objects of some sizes: see `only_of_area`."""
        low, high = self.metric.area or (0.0, np.inf)
        batch, of_class = self.batch, self._of_class(c)
        areas = self.areas.windows if self.areas else areas_of(_sizes(self.class_boxes(c)), self.protocol.pixel_offset)
        object_areas = batch.object_areas[of_class]
        wrong_objects = (object_areas < low) | (object_areas > high)
        wrong = np.flatnonzero((areas < low) | (areas > high))
        images = np.searchsorted(batch.offsets, wrong, side="right") - 1
        return only_of_area(objects, pairs, wrong_objects, slots.slot_of[wrong], images, batch.images)

    def _objects(self, c: int, slots: Slots) -> tuple[Objects, Pairs]:
        boxes = self.class_boxes(c)
        return _overlaps_of(self.batch, self.protocol, self._of_class(c), boxes, slots, self.areas)[0]

    def _of_class(self, c: int) -> NDArray[np.int64]:
        """The objects of class c that the protocol does not drop, in the order of `_objects`."""
        chosen = _taking_part(self.batch, self.protocol)
        return chosen[self.batch.object_labels[chosen] == c]


def _taking_part(batch: Batch, protocol: Protocol) -> NDArray[np.int64]:
    """The objects that the protocol does not drop, in the order in which matching looks at them.

    Among equal overlaps the kernels take the first object under "best" and the last under "best_free"; a protocol that wants
    it the other way round gets the objects the other way round.
    """
    dropped = batch.difficult & (protocol.difficult == "drop") | batch.crowd & (protocol.crowds == "drop")
    there = np.flatnonzero(~dropped)
    return there if protocol.last_of_equal_overlaps == (protocol.duplicates == "best_free") else there[::-1]


def _overlaps_of(
    batch: Batch,
    protocol: Protocol,
    chosen: NDArray[np.int64],
    boxes: NDArray[np.float64],
    slots: Slots,
    areas: Areas | None,
) -> list[tuple[Objects, Pairs]]:
    """The chosen objects, given class after class, and the windows that overlap them; one entry per class among them."""
    crowd = batch.crowd[chosen] & (protocol.duplicates == "best_free")
    ignored = crowd | (batch.difficult[chosen] & (protocol.difficult == "ignore"))
    once = np.zeros(len(chosen), dtype=np.bool_)
    images = batch.object_images[chosen]
    written = (areas.windows, areas.objects[chosen]) if areas else (_NONE, _NONE)
    boxes, window_areas = measured(boxes, written[0], protocol)
    object_boxes, object_areas = measured(batch.object_boxes[chosen], written[1], protocol)
    by_left = _by_left_edge(boxes, batch.offsets, images)
    if not (_near_corners(window_areas, boxes, protocol) and _near_corners(object_areas, object_boxes, protocol)):
        by_left = by_left[:0]  # how far a window may lie does not follow from its corners: look at all of them
    windows, object_of, iou = all_pairs(
        boxes[by_left] if len(by_left) else boxes,
        window_areas[by_left] if len(by_left) and len(window_areas) else window_areas,
        by_left,
        batch.offsets,
        object_boxes,
        object_areas,
        images,
        crowd,
        protocol.pixel_offset,
        min(protocol.match_thresholds) * (1.0 - rounding_of(protocol)),
    )
    if protocol.overlaps == "single":
        single = single_overlaps(boxes[windows], object_boxes[object_of], protocol.pixel_offset)
        iou = np.where(crowd[object_of], iou, single)
    labels = batch.object_labels[chosen]
    starts = np.flatnonzero(np.diff(labels, prepend=-1))  # the first object of each class
    slot = slots.slot_of[windows]
    order = np.lexsort((slot, labels[object_of]))  # objects stay in their order within a window
    slot, object_of, iou = slot[order], object_of[order], iou[order]
    objects = [*starts.tolist(), len(chosen)]
    pairs = [*np.searchsorted(labels[object_of], labels[starts]).tolist(), len(slot)]
    return [
        (Objects(images[a:b], ignored[a:b], once[a:b]), Pairs(slot[i:j], object_of[i:j] - np.int32(a), iou[i:j]))
        for (a, b), (i, j) in zip(pairwise(objects), pairwise(pairs), strict=True)
    ] or [(Objects(images, ignored, once), Pairs(slot, object_of, iou))]


def _sizes(boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    sizes: NDArray[np.float64] = boxes[:, 2:] - boxes[:, :2]
    return sizes


def _overlaps_by_class(batch: Batch, protocol: Protocol, slots: Slots) -> list[tuple[Objects, Pairs]]:
    """Of every class, those without objects too."""
    there = _taking_part(batch, protocol)
    chosen = there[np.argsort(batch.object_labels[there], kind="stable")]
    nothing = _overlaps_of(batch, protocol, chosen[:0], batch.boxes, slots, None)[0]
    found = _overlaps_of(batch, protocol, chosen, batch.boxes, slots, None)
    by_class = [nothing] * batch.num_classes
    for label, overlaps in zip(np.unique(batch.object_labels[chosen]).tolist(), found, strict=False):
        by_class[label] = overlaps
    return by_class


def arrange(
    batch: Batch,
    protocol: Protocol,
    nms_threshold: float | None,
    score_floor: float | None = None,
    metric: ListMetric = AVERAGE_PRECISION,
) -> Arrangement:
    """Compute what the classes share: who overlaps whom, and which objects. Threads then wait for each other less often.

    Where the metric has a threshold, `batch` comes from `with_cut`.
    """
    threads = torch.get_num_threads()
    if batch.boxes_by_class:
        return Arrangement(batch, protocol, nms_threshold, threads, None, score_floor=score_floor, metric=metric)
    shared = layout_of(batch.boxes, batch.offsets, nms_threshold, threads)
    found = _overlaps_by_class(batch, protocol, shared.slots)
    return Arrangement(batch, protocol, nms_threshold, threads, shared, None, found, score_floor, metric)


def layout_of(
    boxes: NDArray[np.float64], offsets: NDArray[np.int64], nms_threshold: float | None, threads: int
) -> Layout:
    """Slots for all windows and, unless the threshold is None, their overlaps."""
    if nms_threshold is None:
        slots = plain_slots(offsets)
        return Layout(slots, no_rows(len(slots.window_of)))
    slots = spatial_slots(boxes, offsets, descending_order)
    edges = np.searchsorted(slots.image_of_word, np.arange(len(offsets)))
    spans = [(int(a), int(b)) for a, b in pairwise(edges) if b > a]
    parts = run_threads(lambda span: image_rows(boxes, slots.window_of, *span, nms_threshold), spans, threads)
    return Layout(slots, join_rows(parts))


def _by_left_edge(
    boxes: NDArray[np.float64], offsets: NDArray[np.int64], object_images: NDArray[np.int32]
) -> NDArray[np.int32]:
    """Windows of each image by x1; empty when no image has so many objects that sorting pays."""
    counts = np.bincount(object_images, minlength=len(offsets) - 1)
    if counts.max(initial=0) <= _MANY_OBJECTS:
        return np.zeros(0, dtype=np.int32)
    by_left = np.arange(offsets[-1], dtype=np.int32)
    for image in np.flatnonzero(counts):
        a, b = offsets[image], offsets[image + 1]
        by_left[a:b] = a + descending_order(-boxes[a:b, 0])
    return by_left


def _near_corners(areas: NDArray[np.float64], boxes: NDArray[np.float64], protocol: Protocol) -> bool:
    """Whether written areas differ from those of the corners by far less than `overlap_pairs` allows for (1e-6)."""
    if len(areas) == 0:
        return True
    sizes = boxes[:, 2:] - boxes[:, :2] + protocol.pixel_offset
    by_corners = sizes[:, 0] * sizes[:, 1]
    return bool((abs(areas - by_corners) <= 1e-7 * by_corners).all())
