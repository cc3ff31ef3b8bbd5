"""Arrange a batch for counting: overlaps once per image, then per class the order, the kept windows and the matches."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from stepgrad.kernels.edited_ap import Ranked, rank_list
from stepgrad.kernels.exact_sum import add_multiple
from stepgrad.kernels.jit import kernel, run_threads
from stepgrad.kernels.matching import BEST, BEST_FREE, Objects, Pairs, Rule, candidates_of, match_all, overlap_pairs
from stepgrad.kernels.nms import Kept, greedy_nms
from stepgrad.kernels.overlaps import Rows, Slots, image_rows, join_rows, no_rows, plain_slots, spatial_slots
from stepgrad.kernels.sorting import descending_order
from stepgrad.metric.batch import Batch
from stepgrad.metric.protocol import Protocol

_MANY_OBJECTS = 16  # images with more objects than this sort their windows by x1 first
_NO_LIMIT = 2**31 - 1
_NONE = np.zeros(0)


@dataclass(frozen=True)
class Layout:
    """Slots and overlaps of a set of boxes."""

    slots: Slots
    rows: Rows


@dataclass(frozen=True)
class ClassView:
    """One class of a batch after NMS."""

    scores: NDArray[np.float64]  # by slot
    order: NDArray[np.int32]
    position: NDArray[np.int32]
    slots: Slots
    rows: Rows
    kept: Kept
    pairs: Pairs
    objects: Objects
    images: int
    P: int
    cumulative: NDArray[np.int64]
    norm: int

    @property
    def kept_count(self) -> int:
        return int(np.unpackbits(self.kept.kept.view(np.uint8)).sum())


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
        by_window = descending_order(np.ascontiguousarray(batch.scores[:, c]))
        scores, order, position = _by_slot(
            batch.scores, c, by_window, layout.slots.slot_of, len(layout.slots.window_of)
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
        )

    def class_boxes(self, c: int) -> NDArray[np.float64]:
        """(N, 4) boxes as class c sees them."""
        return np.ascontiguousarray(self.batch.boxes[:, c]) if self.batch.boxes_by_class else self.batch.boxes

    def rules(self) -> list[Rule]:
        """One matching rule per threshold."""
        rule = BEST_FREE if self.protocol.duplicates == "best_free" else BEST
        return [Rule(float(t), self.protocol.equality, rule) for t in self.protocol.match_thresholds]

    @property
    def max_detections(self) -> int:
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
        windows, found, iou = _all_pairs(
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
        return Objects(images, ignored), Pairs(slot[by_slot], found[by_slot], iou[by_slot])


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


@kernel
def _by_slot(
    scores: NDArray[np.floating], c: int, by_window: NDArray[np.int32], slot_of: NDArray[np.int32], slots: int
) -> tuple[NDArray[np.float64], NDArray[np.int32], NDArray[np.int32]]:
    by_slot = np.zeros(slots)
    order = np.empty(len(by_window), dtype=np.int32)
    position = np.full(slots, -1, dtype=np.int32)
    for p in range(len(by_window)):
        slot = slot_of[by_window[p]]
        order[p] = slot
        position[slot] = p
        by_slot[slot] = scores[by_window[p], c]
    return by_slot, order, position


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
    """Windows, objects (numbered as given) and IoUs of at least `lowest`."""
    capacity, filled = 1024, 0
    windows = np.empty(capacity, dtype=np.int32)
    found = np.empty(capacity, dtype=np.int32)
    iou = np.empty(capacity)
    for g in range(len(object_boxes)):
        start, stop = offsets[object_images[g]], offsets[object_images[g] + 1]
        if filled + stop - start > capacity:
            capacity = max(2 * capacity, filled + stop - start)
            windows, old_windows = np.empty(capacity, dtype=np.int32), windows
            windows[:filled] = old_windows[:filled]
            found, old_found = np.empty(capacity, dtype=np.int32), found
            found[:filled] = old_found[:filled]
            iou, old_iou = np.empty(capacity), iou
            iou[:filled] = old_iou[:filled]
        target_area = object_areas[g] if len(object_areas) > 0 else -1.0
        written = overlap_pairs(
            boxes,
            areas,
            by_left,
            start,
            stop,
            object_boxes[g],
            target_area,
            crowd[g],
            pixel_offset,
            lowest,
            windows[filled:],
            iou[filled:],
        )
        found[filled : filled + written] = g
        filled += written
    return windows[:filled].copy(), found[:filled].copy(), iou[:filled].copy()


@kernel
def _ranked_sum(ranked: Ranked) -> float:
    """sum_k count_k p_k, correctly rounded."""
    hi, lo, largest = 0.0, 0.0, 0.0
    for k in range(ranked.T, 0, -1):
        largest = max(largest, k / ranked.rank[k])
        hi, lo = add_multiple(hi, lo, ranked.cumulative[k] - ranked.cumulative[k - 1], largest)
    return hi


def ranked_list(view: ClassView, rule: Rule, max_detections: int) -> Ranked:
    """The counted detections of a class at one threshold."""
    words = len(view.slots.image_of_word)
    found = candidates_of(view.pairs, view.objects, rule, 64 * words, view.images)
    roles = match_all(
        view.order, view.kept.kept, view.slots.image_of_word, view.pairs, view.objects, found, rule, max_detections
    )
    return rank_list(view.order, roles, view.cumulative)


def class_average_precision(view: ClassView, rule: Rule, max_detections: int) -> float:
    """AP of one class at one threshold; 0 if it has no countable object."""
    if view.P == 0:
        return 0.0
    return float(_ranked_sum(ranked_list(view, rule, max_detections)) / view.norm)
