"""Arrange a batch for counting: overlaps once per image, then per class the order, the kept windows and the matches."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from stepgrad.kernels.class_view import ClassView, order_by_slot
from stepgrad.kernels.judged import sums_of_class
from stepgrad.kernels.matching import BEST, BEST_FREE, Objects, Pairs, Rules, all_pairs
from stepgrad.kernels.nms import greedy_nms
from stepgrad.kernels.overlaps import Rows, Slots, image_rows, join_rows, no_rows, plain_slots, spatial_slots
from stepgrad.kernels.sorting import descending_order
from stepgrad.metric.batch import Batch
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

    def view(self, c: int) -> ClassView:
        """Order class c, run NMS, and find which windows reach which objects."""
        batch = self.batch
        layout = self.shared or layout_of(self.class_boxes(c), batch.offsets, self.nms_threshold, 1)
        column = np.ascontiguousarray(batch.scores[:, c])
        scores, order, position = order_by_slot(
            column, descending_order(column), layout.slots.slot_of, len(layout.slots.window_of)
        )
        words = len(layout.slots.image_of_word)
        objects, pairs = self._objects(c, layout.slots)
        P = int(np.count_nonzero(~objects.ignored))
        counts, norm = self.protocol.level_counts(P)
        return ClassView(
            scores=scores,
            order=order,
            position=position,
            slots=layout.slots,
            rows=layout.rows,
            kept=greedy_nms(order, layout.rows, words),
            pairs=pairs,
            objects=objects,
            images=batch.images,
            P=P,
            cumulative=np.cumsum(counts),
            norm=norm,
            max_detections=self.max_detections,
        )

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

    def _objects(self, c: int, slots: Slots) -> tuple[Objects, Pairs]:
        batch, protocol = self.batch, self.protocol
        chosen = np.flatnonzero(batch.object_labels == c)
        crowd = batch.crowd[chosen] & (protocol.duplicates == "best_free")
        ignored = crowd | (batch.difficult[chosen] & (protocol.difficult == "ignore"))
        images = batch.object_images[chosen]
        boxes, object_boxes = self.class_boxes(c), batch.object_boxes[chosen]
        areas, object_areas = (self.areas.windows, self.areas.objects[chosen]) if self.areas else (_NONE, _NONE)
        by_left = _by_left_edge(boxes, batch.offsets, images)
        if not (_near_corners(areas, boxes, protocol) and _near_corners(object_areas, object_boxes, protocol)):
            by_left = by_left[:0]  # how far a window may lie does not follow from its corners: look at all of them
        windows, object_of, iou = all_pairs(
            boxes[by_left] if len(by_left) else boxes,
            areas[by_left] if len(by_left) and len(areas) else areas,
            by_left,
            batch.offsets,
            object_boxes,
            object_areas,
            images,
            crowd,
            protocol.pixel_offset,
            min(protocol.match_thresholds) * (1.0 - 1e-9),
        )
        slot = slots.slot_of[windows]
        by_slot = np.argsort(slot, kind="stable")  # objects stay in their order within a window
        return Objects(images, ignored), Pairs(slot[by_slot], object_of[by_slot], iou[by_slot])


def arrange(batch: Batch, protocol: Protocol, nms_threshold: float | None) -> Arrangement:
    """Compute overlaps shared by the classes."""
    threads = torch.get_num_threads()
    shared = None if batch.boxes_by_class else layout_of(batch.boxes, batch.offsets, nms_threshold, threads)
    return Arrangement(batch, protocol, nms_threshold, threads, shared)


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


def class_average_precisions(view: ClassView, rules: Rules) -> list[float]:
    """AP of one class at each threshold; 0 if it has no countable object."""
    if view.P == 0:
        return [0.0] * len(rules.thresholds)
    return [float(value) for value in sums_of_class(view, rules) / view.norm]
