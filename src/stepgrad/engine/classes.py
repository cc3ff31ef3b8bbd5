"""A batch, class by class: each class made ready, its value and slopes found, and all of them joined.

This is the one way from the outside into the engine. What the classes share, the numbers of the windows and their overlaps, is
computed once (`prepare`); then each class is ordered, suppressed, matched and searched on a thread of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from stepgrad.engine.balance import Sums, finish_class
from stepgrad.engine.lists import ranked_hits, values_of_class
from stepgrad.engine.matching import OneClass, Rules
from stepgrad.engine.nearest import THROUGH_EXACT, THROUGH_NONE, ClassSteps, steps_of_class
from stepgrad.engine.neighbours import Neighbours, given_neighbours, neighbours_of
from stepgrad.engine.nms import NONE, suppress
from stepgrad.engine.order import descending_order
from stepgrad.engine.overlaps import Areas, Objects, counted_objects, no_objects, objects_by_class, only_of_area
from stepgrad.engine.own_metric import SlopeMethod, own_slopes, own_steps
from stepgrad.engine.slopes import paper_of_class, radius_of_class, slopes_of_steps
from stepgrad.errors import ConfigError
from stepgrad.metric.batch import Batch, OverlapPairs
from stepgrad.metric.boxes import areas_of, sizes_of
from stepgrad.metric.list_metric import ListMetric
from stepgrad.metric.metrics import AVERAGE_PRECISION
from stepgrad.metric.protocol import Protocol
from stepgrad.threads import run_threads

_NO_LIMIT = 2**31 - 1
_THROUGH = {"exact": THROUGH_EXACT, "none": THROUGH_NONE}


@dataclass(frozen=True)
class RankedClass:
    """The metric of a class and its slope in the class's scores, by window; None where nothing can change it."""

    value: float
    P: int
    kept: int
    gradient: NDArray[np.float64] | None


@dataclass(frozen=True)
class Prepared:
    """A batch under a protocol, ready to be counted class by class."""

    batch: Batch
    protocol: Protocol
    nms_threshold: float | None
    threads: int
    metric: ListMetric
    score_floor: float | None
    areas: Areas | None  # as written; None: those of the corners
    neighbours: Neighbours | None  # None: every class has its own boxes
    # by class; None: every class has its own boxes, or areas as they were written
    objects: Mapping[int, Objects] | None

    @property
    def cuts(self) -> int:
        """Windows that stand for the metric's threshold: the last one of the batch, if there is a threshold."""
        return int(self.metric.threshold is not None)

    @property
    def images(self) -> int:
        """Images of the batch, without the one of the cut."""
        return self.batch.images - self.cuts

    def has_objects(self, c: int) -> bool:
        """Whether the batch has objects of class c, such as count or not."""
        return int(np.count_nonzero(self.batch.object_labels == c)) > self.cuts

    def value_of(self, hits: NDArray[np.bool_], objects: int) -> float:
        """The metric of a list: hits by decreasing score."""
        return self.metric.of_list(hits, objects, self.images, self.protocol)

    def one_class(self, c: int) -> OneClass:
        """Order class c, run NMS, and find which windows reach which objects."""
        batch = self.batch
        boxes = np.ascontiguousarray(batch.boxes[:, c]) if batch.boxes_by_class else batch.boxes
        # Boxes regressed by class overlap differently in each class; else the classes share one table.
        neighbours = self.neighbours or _neighbours(batch, boxes, self.nms_threshold, 1)
        # Everything from here on is of this class alone; what the classes share came in by `prepare`.
        column = np.ascontiguousarray(batch.scores[:, c])
        by_score = descending_order(column)
        if self.score_floor is not None:
            exists = column >= self.score_floor
            exists[len(column) - self.cuts :] = True  # whatever the threshold
            by_score = by_score[exists[by_score]]
        ranking = suppress(column, by_score, neighbours)
        found = self.objects
        if found is None:
            found = objects_by_class(batch, self.protocol, boxes, neighbours.number_of, self.areas, only_class=c)
        objects = found.get(c) or no_objects()
        if self.metric.area is not None:
            objects = self._within_area(c, objects, boxes, neighbours.number_of)
        return OneClass(ranking, neighbours, objects, self._rules(objects, neighbours.number_of))

    def _rules(self, objects: Objects, number_of: NDArray[np.int32]) -> Rules:
        protocol, batch = self.protocol, self.batch
        P = int(np.count_nonzero(~objects.ignored)) - self.cuts
        counts, norm = self.metric.levels(P, protocol)
        code = self.metric.code(P, self.images)
        return Rules(
            thresholds=np.array(protocol.cuts, dtype=np.float64),
            equality=protocol.equality,
            best_free=protocol.duplicates == "best_free",
            images=batch.images,
            max_detections=protocol.max_detections or _NO_LIMIT,
            cumulative=np.cumsum(counts),
            norm=norm,
            kind=code.kind,
            objects=P,
            first=code.first,
            second=code.second,
            cut=int(number_of[-1]) if self.cuts else NONE,
            allowed=code.allowed,
            logs=code.logs,
        )

    def _within_area(
        self, c: int, objects: Objects, boxes: NDArray[np.float64], number_of: NDArray[np.int32]
    ) -> Objects:
        """The same by COCO's rules for objects of some sizes: see `only_of_area`."""
        low, high = self.metric.area or (0.0, np.inf)
        batch, there = self.batch, counted_objects(self.batch, self.protocol)
        object_areas = batch.object_areas[there[batch.object_labels[there] == c]]
        areas = self.areas.windows if self.areas else areas_of(sizes_of(boxes), self.protocol.pixel_offset)
        # COCO: an object outside the range is ignored, and so is a window outside it that finds nothing.
        wrong_objects = (object_areas < low) | (object_areas > high)
        wrong = np.flatnonzero((areas < low) | (areas > high))
        images = np.searchsorted(batch.offsets, wrong, side="right") - 1
        return only_of_area(objects, wrong_objects, number_of[wrong], images, batch.images)


def prepare(
    batch: Batch,
    protocol: Protocol,
    nms_threshold: float | None,
    threads: int,
    metric: ListMetric = AVERAGE_PRECISION,
    score_floor: float | None = None,
    areas: Areas | None = None,
) -> Prepared:
    """Compute what the classes share: which windows overlap, and which objects they reach.

    Args:
        batch: windows and objects.
        protocol: how they are matched and counted.
        nms_threshold: IoU above which the higher of two windows suppresses the lower; None: no NMS.
        threads: how many classes are worked on at a time.
        metric: what a class's list is worth.
        score_floor: windows that score less do not exist for a class.
        areas: areas of windows and objects as they were written; None: those of the corners.
    """
    metric.check_protocol(protocol)
    batch = _with_cut(batch, protocol, metric.threshold)
    neighbours = objects = None
    if not batch.boxes_by_class:
        neighbours = _neighbours(batch, batch.boxes, nms_threshold, threads)
        objects = objects_by_class(batch, protocol, batch.boxes, neighbours.number_of, areas)
    return Prepared(
        batch=batch,
        protocol=protocol,
        nms_threshold=nms_threshold,
        threads=threads,
        metric=metric,
        score_floor=score_floor,
        areas=areas,
        neighbours=neighbours,
        objects=objects,
    )


def _neighbours(batch: Batch, boxes: NDArray[np.float64], nms_threshold: float | None, threads: int) -> Neighbours:
    """Which windows suppress each other: as the batch says, or by the IoU of their boxes (N, 4)."""
    if batch.near is not None and nms_threshold is not None:
        return given_neighbours(batch.near, batch.offsets)
    return neighbours_of(boxes, batch.offsets, nms_threshold, threads)


def _with_cut(batch: Batch, protocol: Protocol, threshold: float | None) -> Batch:
    """A batch with one image more, whose one window scores the threshold and finds an object of every class.

    Of windows with that score it is the last, so what ranks above it passes the threshold (lists.py).
    """
    if threshold is None:
        return batch
    if max(protocol.cuts) == 1.0 and not protocol.equality:
        raise ConfigError(
            "Expected match thresholds below 1, since an IoU must exceed them, but one is 1: nothing can be found."
        )
    # Large enough that what single-precision overlaps add to the union (overlaps.py) is lost: an IoU of exactly 1.
    K, box = batch.num_classes, np.array([0.0, 0.0, 64.0, 64.0])
    N, G = len(batch.scores), len(batch.object_labels)
    pairs = batch.pairs
    if pairs is not None:
        best = 1.0 if protocol.nearness == "overlap" else 0.0
        of_cut = np.full(K, N), G + np.arange(K), np.full(K, best)
        pairs = OverlapPairs(*(np.concatenate(columns) for columns in zip(pairs, of_cut, strict=True)))
    return replace(
        batch,
        offsets=np.append(batch.offsets, batch.offsets[-1] + 1),
        scores=np.concatenate([batch.scores, np.full((1, K), threshold)]),  # float64: the threshold as it is
        boxes=np.concatenate([batch.boxes, np.broadcast_to(box, (1, *batch.boxes.shape[1:]))]),
        object_boxes=np.concatenate([batch.object_boxes, np.broadcast_to(box, (K, 4))]),
        object_labels=np.concatenate([batch.object_labels, np.arange(K)]),
        object_images=np.concatenate([batch.object_images, np.full(K, batch.images, dtype=np.int32)]),
        difficult=np.concatenate([batch.difficult, np.zeros(K, dtype=np.bool_)]),
        crowd=np.concatenate([batch.crowd, np.zeros(K, dtype=np.bool_)]),
        annotated_areas=None,  # no metric asks for a threshold and for areas
        unlabelled=None if batch.unlabelled is None else np.append(batch.unlabelled, np.zeros(K, dtype=np.bool_)),
        pairs=pairs,
    )


def all_classes(prepared: Prepared, method: SlopeMethod | None) -> list[RankedClass]:
    """The value of every class and, with a method, its slopes; on threads."""
    return run_threads(lambda c: class_result(prepared, c, method), range(prepared.batch.num_classes), prepared.threads)


def class_result(prepared: Prepared, c: int, method: SlopeMethod | None) -> RankedClass:
    """The metric of class c and its slopes: the mean of those at the protocol's thresholds."""
    needs_objects = prepared.metric.needs_objects
    if needs_objects and not prepared.has_objects(c):  # whatever is found, it has AP 0 and no slope
        return RankedClass(0.0, 0, 0, None)
    one = prepared.one_class(c)
    # The cut is a window and an object of our own making, and counts as neither.
    P, kept = one.rules.objects, one.kept - prepared.cuts
    if method is None or (needs_objects and P == 0):
        return RankedClass(mean_of(class_values(prepared, one)), P, kept, None)
    slopes, values = _slopes(prepared, one, method)
    # The metric of a class is the mean over its match thresholds, and so is its slope.
    if len(values) > 1:
        slopes /= len(values)
    return RankedClass(mean_of(values.tolist()), P, kept, slopes[: len(slopes) - prepared.cuts])


def mean_of(values: Sequence[float]) -> float:
    """The mean of a correctly rounded sum."""
    return math.fsum(values) / len(values)


def class_values(prepared: Prepared, one: OneClass) -> list[float]:
    """The metric of one class at each threshold; 0 if it has no countable object and needs one."""
    metric = prepared.metric
    if one.rules.objects == 0 and metric.needs_objects:
        return [0.0] * len(one.rules.thresholds)
    # Compiled metrics come from the kernel; the others see a list of hits and misses.
    if metric.is_compiled and metric.needs_objects:
        return [float(value) for value in values_of_class(one) / one.rules.norm]
    return [prepared.value_of(hits, one.rules.objects) for hits in ranked_hits(one)]


def _slopes(prepared: Prepared, one: OneClass, method: SlopeMethod) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """By index of the windows, the sum over the thresholds of the metric's slopes; and the metric at each of them."""
    number_of, norm = one.neighbours.number_of, one.rules.norm
    if not prepared.metric.is_compiled:
        return own_slopes(one, prepared.value_of, method)
    if method.estimator == "radius":
        slopes, values = radius_of_class(one, method.radius, _THROUGH[method.through_nms])
        return slopes[number_of], values / norm
    steps, pushes = _steps(one, method.through_nms, method.min_step)
    slopes = slopes_of_steps(steps, one.ranking.scores, float(norm), method.estimator == "sde", method.min_step)
    # The paper's second approximation adds to the slopes what pulls missed objects' windows out of suppression.
    if pushes is not None:
        slopes += pushes / norm
    return slopes[number_of], steps.present / norm


def _steps(one: OneClass, through_nms: str, min_step: float) -> tuple[ClassSteps, NDArray[np.float64] | None]:
    """The nearest steps of a class and, for the paper's way through NMS, its pushes."""
    if through_nms == "paper":
        return paper_of_class(one, min_step)
    return steps_of_class(one, _THROUGH[through_nms]), None


def class_steps(prepared: Prepared, c: int, through_nms: str) -> tuple[float, list[NDArray[np.float64]]]:
    """The value of a class at its one match threshold and, by window, its nearest steps: up_at, up_value, down_at, down_value."""
    one, metric = prepared.one_class(c), prepared.metric
    windows = len(one.neighbours.number_of) - prepared.cuts
    if one.rules.objects == 0 and metric.needs_objects:
        blank = np.full(windows, 0.0)
        return 0.0, [blank + np.inf, blank, blank - np.inf, blank]
    if not metric.is_compiled:
        value, columns = own_steps(one, prepared.value_of, through_nms)
        return value, [column[:windows] for column in columns]
    steps, _ = _steps(one, through_nms, 0.0)
    at, norm = one.neighbours.number_of[:windows], one.rules.norm
    columns = [steps.up_at[0, at], steps.up_value[0, at] / norm, steps.down_at[0, at], steps.down_value[0, at] / norm]
    return float(steps.present[0] / norm), columns


def join_slopes(
    classes: Sequence[RankedClass],
    scores: NDArray[np.floating],
    scales: Sequence[float],
    clip: float | None,
    balance: str,
    threads: int,
) -> tuple[NDArray[np.float64], Sums]:
    """(K, N) gradients: the slopes of each class scaled by its number, clipped, then balanced; and what they amount to."""
    full = np.zeros((len(classes), len(scores)))

    def finish(c: int) -> Sums:
        slopes = classes[c].gradient
        if slopes is None:
            return Sums(0, 0.0, 0.0)
        scaled = balance == "class+scale"
        # Only the removal of the scale looks at the scores; one layout in memory means one compiled kernel.
        column = np.ascontiguousarray(scores[:, c] if scaled else scores[:0, c])
        return Sums(*finish_class(slopes, column, scales[c], clip or np.inf, balance != "none", scaled, full[c]))

    parts = run_threads(finish, range(len(classes)), threads)
    return full, Sums(*(sum(column) for column in zip(*parts, strict=True))) if parts else Sums(0, 0.0, 0.0)
