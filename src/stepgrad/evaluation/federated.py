"""LVIS: which classes annotators looked for in which image, and how that changes what counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from stepgrad.evaluation.records import Evidence, GroundTruth
from stepgrad.metric.boxes import areas_of


def in_checked_images(evidence: Evidence) -> NDArray[np.bool_]:
    """(M,) detections of classes that were looked for in their image: there are objects of it, or it is known absent.

    Where the data does not say what was looked for, all classes were. Detections without area are left out, since LVIS's own
    code does not read them: otherwise they would be wrong even where a class is annotated in part, as they overlap no region.
    """
    detections, objects, looked_for = evidence.detections, evidence.objects, evidence.looked_for
    areas = evidence.overlap.areas(detections.shapes) if evidence.has_shapes else areas_of(detections.sizes, 0.0)
    has_area: NDArray[np.bool_] = areas > 0.0
    if looked_for is None:
        return has_area
    absent = _keys(looked_for.absent[:, 0], looked_for.absent[:, 1], evidence)
    checked = [_keys(objects.images, objects.labels, evidence), absent]
    return has_area & np.isin(_keys(detections.images, detections.labels, evidence), np.concatenate(checked))


def _keys(images: NDArray[np.integer], labels: NDArray[np.integer], evidence: Evidence) -> NDArray[np.int64]:
    return images.astype(np.int64) * evidence.num_classes + labels


def with_regions(evidence: Evidence) -> Evidence:
    """Where not all objects of a class are annotated, a crowd over the whole image absorbs what finds no object."""
    if evidence.looked_for is None or len(evidence.looked_for.partly) == 0 or len(evidence.detections) == 0:
        return evidence
    images, labels = evidence.looked_for.partly.T
    boxes, objects = evidence.detections.boxes, evidence.objects
    everything = np.concatenate([boxes[:, :2].min(axis=0) - 1.0, boxes[:, 2:].max(axis=0) + 1.0])
    region = np.tile(everything, (len(images), 1))
    size = region[:, 2:] - region[:, :2]
    joined: GroundTruth = replace(
        objects,
        images=np.concatenate([objects.images, images.astype(np.int32)]),
        labels=np.concatenate([objects.labels, labels]),
        boxes=np.concatenate([objects.boxes, region]),
        difficult=np.concatenate([objects.difficult, np.zeros(len(images), dtype=np.bool_)]),
        crowd=np.concatenate([objects.crowd, np.ones(len(images), dtype=np.bool_)]),
        area=np.concatenate([objects.area, size.prod(axis=1)]),
        sizes=np.concatenate([objects.sizes, size]),
    )
    return replace(evidence, objects=joined)
