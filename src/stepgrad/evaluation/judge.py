"""The verdict of a protocol on every detection of a class, the object that it found, and the AP that follows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from stepgrad.engine.classes import prepare
from stepgrad.engine.jit import explain_wait
from stepgrad.engine.lists import judge_detections
from stepgrad.engine.matching import FALSE_POSITIVE, IGNORED, TRUE_POSITIVE
from stepgrad.engine.order import descending_order
from stepgrad.engine.overlaps import Areas, counted_objects
from stepgrad.evaluation.edges import seen_by
from stepgrad.evaluation.federated import in_checked_images, with_regions
from stepgrad.evaluation.records import Evidence
from stepgrad.metric.batch import Batch, OverlapPairs
from stepgrad.metric.boxes import areas_of
from stepgrad.metric.list_metric import ListMetric
from stepgrad.metric.metrics import AVERAGE_PRECISION
from stepgrad.metric.protocol import Protocol
from stepgrad.overlaps.base import ChosenShapes
from stepgrad.threads import run_threads

_SINGLE = 1e-6  # share by which single precision can make an overlap larger, and more
NOTHING = -1
"""In place of an object: none."""
VERDICTS = {TRUE_POSITIVE: "true positive", FALSE_POSITIVE: "false positive", IGNORED: "ignored"}


@dataclass(frozen=True)
class ClassJudgement:
    """Verdicts and AP of one class under one protocol."""

    label: int
    detections: NDArray[np.int64]  # (M,) rows of `Detections` by decreasing score
    verdicts: NDArray[np.int8]  # (thresholds, M) in that order
    found: NDArray[np.int64]  # (thresholds, M) row of the object that a true positive found, else NOTHING
    ap: NDArray[np.float64]  # (thresholds,)
    area_ap: float  # mean over thresholds of the area under the curve, whatever recall levels the protocol has
    P: int
    ignored: int  # objects that do not count

    @property
    def mean_ap(self) -> float:
        """AP: the mean over thresholds, correctly rounded as the loss does it."""
        return math.fsum(self.ap.tolist()) / len(self.ap)


def ranked_by_class(evidence: Evidence, ties: str) -> list[NDArray[np.int64]]:
    """For each class its detections by decreasing score."""
    detections = evidence.detections
    sequence = np.arange(len(detections)) if ties == "file" else np.argsort(detections.images, kind="stable")
    ranked = sequence[descending_order(detections.scores[sequence])]
    labels = detections.labels[ranked]
    by_class = ranked[np.argsort(labels.astype(np.min_scalar_type(evidence.num_classes)), kind="stable")]
    return np.split(by_class, np.cumsum(np.bincount(labels, minlength=evidence.num_classes))[:-1])


def taking_part(evidence: Evidence, protocol: Protocol) -> NDArray[np.bool_]:
    """(M,) detections that no limit over all classes leaves out: not too low, and among the highest of their image."""
    detections = evidence.detections
    takes_part = np.ones(len(detections), dtype=np.bool_)
    if protocol.min_score is not None:
        takes_part &= detections.scores >= protocol.min_score
    if protocol.max_detections is not None and protocol.max_detections_of == "image":
        ranked = descending_order(detections.scores)
        ranked = ranked[np.argsort(detections.images[ranked], kind="stable")]  # image by image, by decreasing score
        counts = np.bincount(detections.images, minlength=evidence.num_images)
        place = np.arange(len(ranked)) - np.repeat(np.cumsum(counts) - counts, counts)
        takes_part[ranked[place >= protocol.max_detections]] = False
    return takes_part


def judge(
    evidence: Evidence,
    protocol: Protocol,
    labels: Sequence[int] | None = None,
    metric: ListMetric = AVERAGE_PRECISION,
) -> list[ClassJudgement]:
    """Judge the classes (all, or those named); with AP of some sizes as the metric, objects of those sizes only."""
    evidence, ranked, takes_part = _seen_by(evidence, protocol)
    chosen = range(evidence.num_classes) if labels is None else labels

    def of_class(c: int) -> ClassJudgement:
        part = takes_part[ranked[c]]
        judged = _judge_class(evidence, _within_class(protocol), ranked[c][part], c, metric)
        return judged if part.all() else _with_left_out(judged, ranked[c], part)

    with explain_wait():
        return run_threads(of_class, chosen, torch.get_num_threads())


def _seen_by(evidence: Evidence, protocol: Protocol) -> tuple[Evidence, list[NDArray[np.int64]], NDArray[np.bool_]]:
    """The evidence as the protocol sees it, boxes of a known convention in its own; the classes ranked; and who takes part."""
    evidence = seen_by(evidence, protocol)
    ranked, takes_part = ranked_by_class(evidence, protocol.tie_order), taking_part(evidence, protocol)
    if not protocol.federated:
        return evidence, ranked, takes_part
    return with_regions(evidence), ranked, takes_part & in_checked_images(evidence)


def _within_class(protocol: Protocol) -> Protocol:
    """Without the limit that concerns all classes of an image, which has been applied."""
    return replace(protocol, max_detections=None) if protocol.joins_classes else protocol


def _with_left_out(judged: ClassJudgement, ranked: NDArray[np.int64], part: NDArray[np.bool_]) -> ClassJudgement:
    """Detections that took no part stand in their places of the ranked list, ignored."""
    verdicts = np.full((len(judged.verdicts), len(ranked)), IGNORED, dtype=np.int8)
    verdicts[:, part] = judged.verdicts
    found = np.full(verdicts.shape, NOTHING)
    found[:, part] = judged.found
    return replace(judged, detections=ranked, verdicts=verdicts, found=found)


def _judge_class(
    evidence: Evidence, protocol: Protocol, ranked: NDArray[np.int64], label: int, metric: ListMetric
) -> ClassJudgement:
    objects = np.flatnonzero(evidence.objects.labels == label)
    prepared = prepare(**_class_batch(evidence, protocol, ranked, objects), metric=metric)
    one = prepared.one_class(0)
    P, thresholds = one.rules.objects, len(one.rules.thresholds)
    counts, area_norm = replace(protocol, recall_levels=None).level_counts(P)
    verdicts, took, sums, area_sums = judge_detections(one, np.cumsum(counts))
    ap = sums / one.rules.norm if P else np.zeros(thresholds)
    area = area_sums / area_norm if P else np.zeros(thresholds)
    if protocol.tail == "line":
        ap += [_tail_ap(row, P, protocol) for row in verdicts]
    return ClassJudgement(
        label=label,
        detections=ranked,
        verdicts=verdicts,
        found=_found(verdicts, took, objects[counted_objects(prepared.batch, protocol)]),
        ap=ap,
        area_ap=math.fsum(area) / thresholds,
        P=P,
        ignored=len(one.objects.ignored) - P,
    )


def _found(verdicts: NDArray[np.int8], took: NDArray[np.int32], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows of the objects that true positives found. `took` also has the objects that excuse an ignored detection."""
    found = np.full(verdicts.shape, NOTHING)
    right = verdicts == TRUE_POSITIVE
    found[right] = rows[took[right]]
    return found


def _tail_ap(verdicts: NDArray[np.int8], P: int, protocol: Protocol) -> float:
    counted = verdicts[verdicts != IGNORED]
    return protocol.tail_ap(int(np.count_nonzero(counted == TRUE_POSITIVE)), len(counted), P)


def _class_batch(
    evidence: Evidence, protocol: Protocol, ranked: NDArray[np.int64], chosen: NDArray[np.int64]
) -> dict[str, Any]:
    """The detections of one class, and its objects, as the windows of a batch without NMS: what `prepare` takes.

    Windows must lie image by image. Their scores serve only to order them, so each gets minus its rank.
    """
    detections, objects = evidence.detections, evidence.objects
    images, object_images, count, protocol = _gathered(
        detections.images[ranked], objects.images[chosen], evidence.num_images, protocol
    )
    rank = np.argsort(
        images.astype(np.min_scalar_type(count)), kind="stable"
    )  # of each window; small types sort faster
    windows = ranked[rank]
    batch = Batch(
        offsets=np.concatenate([[0], np.cumsum(np.bincount(images, minlength=count))]),
        scores=-rank[:, None].astype(np.float64),
        boxes=detections.boxes.take(windows, axis=0),
        object_boxes=objects.boxes[chosen],
        object_labels=np.zeros(len(chosen), dtype=np.int64),
        object_images=object_images,
        difficult=objects.difficult[chosen],
        crowd=objects.crowd[chosen],
        annotated_areas=objects.area[chosen],
    )
    if evidence.has_shapes:
        batch = replace(batch, **_shape_fields(evidence, protocol, windows, chosen, batch))
        areas = Areas(evidence.detection_areas(0.0)[windows], objects.area[chosen])
    else:
        sizes = detections.sizes.take(windows, axis=0), objects.sizes[chosen]
        areas = Areas(*(areas_of(written, protocol.pixel_offset) for written in sizes))
    return {"batch": batch, "protocol": protocol, "nms_threshold": None, "threads": 1, "areas": areas}


def _gathered(
    images: NDArray[np.int32], object_images: NDArray[np.int32], count: int, protocol: Protocol
) -> tuple[NDArray[np.int32], NDArray[np.int32], int, Protocol]:
    """Images of detections and of objects numbered anew, all images without objects as one; how many that makes; the protocol.

    Where there is nothing to find, it does not matter in which image a detection lies, unless only so many of an image count.
    Most images have no object of a class, and the engine's time and memory grow with the number of images.
    """
    if protocol.max_detections is not None:
        if np.bincount(images, minlength=1).max() > protocol.max_detections:
            return images, object_images, count, protocol
        protocol = replace(protocol, max_detections=None)
    there = np.flatnonzero(np.bincount(object_images, minlength=count))
    number = np.full(count, len(there), dtype=np.int32)
    number[there] = np.arange(len(there))
    return number[images], number[object_images], len(there) + 1, protocol


def _shape_fields(
    evidence: Evidence, protocol: Protocol, windows: NDArray[np.int64], chosen: NDArray[np.int64], batch: Batch
) -> dict[str, Any]:
    """What a batch says of masks, poses or oriented boxes: their overlaps, and objects that nothing can be compared with."""
    detections, objects, overlap = evidence.detections, evidence.objects, evidence.overlap
    by_image = np.argsort(batch.object_images, kind="stable")
    # Regions that stand for whole images (federated.py) come last and have no shapes: they cover every detection.
    has_shape = chosen[by_image] < overlap.count(objects.shapes)
    known, regions = by_image[has_shape], by_image[~has_shape]
    first = np.searchsorted(batch.object_images[known], np.arange(batch.images + 1))
    rows, columns, shared = overlap.pairs_among(
        ChosenShapes(detections.shapes, windows, batch.offsets),
        ChosenShapes(objects.shapes, chosen[known], first),
        batch.crowd[known] & (protocol.duplicates == "best_free"),
        min(protocol.cuts) * (1.0 - _SINGLE if protocol.overlaps == "single" else 1.0),
    )
    columns = known[columns]
    if protocol.overlaps == "single":
        shared = shared.astype(np.float32).astype(np.float64)
    unlabelled = overlap.unlabelled(objects.shapes)
    if unlabelled is not None:
        unlabelled = np.append(unlabelled, np.zeros(len(objects) - len(unlabelled), dtype=np.bool_))[chosen]
        if protocol.poses == "box":
            some = ~unlabelled[columns]
            rows, columns, shared = rows[some], columns[some], shared[some]
            unlabelled = None
    if len(regions):
        images = np.repeat(np.arange(batch.images, dtype=np.int32), np.diff(batch.offsets))
        covered, places = pairs_in_images(images, batch.object_images[regions], batch.images)
        rows, columns = np.concatenate([rows, covered]), np.concatenate([columns, regions[places]])
        shared = np.concatenate([shared, np.ones(len(covered))])
    return {"pairs": OverlapPairs(rows, columns, shared), "unlabelled": unlabelled}


def pairs_in_images(
    windows: NDArray[np.int32], objects: NDArray[np.int32], images: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Every window with every object of the same image; both are given by their images, those of the windows in order.

    >>> pairs_in_images(np.array([0, 0, 2]), np.array([2, 0, 2]), 3)
    (array([0, 1, 2, 2]), array([1, 1, 0, 2]))
    """
    by_image = np.argsort(objects, kind="stable")
    first = np.searchsorted(objects[by_image], np.arange(images + 1))
    counts = np.diff(first)[windows]
    rows = np.repeat(np.arange(len(windows)), counts)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    return rows, by_image[np.repeat(first[windows], counts) + within]
