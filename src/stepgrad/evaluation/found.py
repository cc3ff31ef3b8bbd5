"""Which objects there are to find under a protocol, and which of them each true positive found."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepgrad.engine.matching import TRUE_POSITIVE
from stepgrad.engine.overlaps import measured, single_overlaps
from stepgrad.evaluation.judge import ClassJudgement
from stepgrad.evaluation.records import Evidence
from stepgrad.metric.boxes import areas_of, overlap_table
from stepgrad.metric.protocol import Protocol

NOTHING = -1
"""The object of a detection that found none."""


def countable(evidence: Evidence, protocol: Protocol) -> NDArray[np.bool_]:
    """(G,) objects that are there to be found. Only COCO's rule knows crowds; to VOC's they are objects like others."""
    objects = evidence.objects
    without_crowds = protocol.duplicates == "best_free" or protocol.crowds == "drop"
    return ~((objects.crowd & without_crowds) | (objects.difficult & (protocol.difficult != "count")))


def counted_overlaps(
    evidence: Evidence, detections: NDArray[np.int64], objects: NDArray[np.int64], protocol: Protocol
) -> NDArray[np.float64]:
    """(M, G) IoU of some detections with some objects in the protocol's arithmetic; `evidence` is as it sees the boxes."""
    found, truth = evidence.detections, evidence.objects
    windows, boxes = found.boxes[detections], truth.boxes[objects]
    if protocol.overlaps == "single":
        shape = len(windows), len(boxes)
        pairs = np.repeat(windows, shape[1], axis=0), np.tile(boxes, (shape[0], 1))
        return single_overlaps(*pairs, protocol.pixel_offset).reshape(shape)
    written = (
        areas_of(found.sizes[detections], protocol.pixel_offset),
        areas_of(truth.sizes[objects], protocol.pixel_offset),
    )
    windows, window_areas = measured(windows, written[0], protocol)
    boxes, box_areas = measured(boxes, written[1], protocol)
    no_crowd = np.zeros(len(boxes), dtype=np.bool_)
    return overlap_table(windows, window_areas, boxes, box_areas, no_crowd, protocol.pixel_offset)


def found_objects(
    evidence: Evidence, judged: ClassJudgement, protocol: Protocol, threshold: int = 0
) -> NDArray[np.int64]:
    """For each ranked detection of a class the row of the object it found, NOTHING for all but true positives.

    `evidence` holds the boxes as the protocol saw them; `threshold` is the number of the match threshold. The verdicts
    already say who found something. What was found is the countable object of the largest overlap that no better
    detection had taken: the first of equal overlaps or the last, as the protocol has it.
    """
    found_by = np.full(len(judged.detections), NOTHING, dtype=np.int64)
    objects = np.flatnonzero((evidence.objects.labels == judged.label) & countable(evidence, protocol))
    by_image: dict[int, list[int]] = {}
    for row in objects.tolist():
        by_image.setdefault(int(evidence.objects.images[row]), []).append(row)
    for place in np.flatnonzero(judged.verdicts[threshold] == TRUE_POSITIVE).tolist():
        detection = int(judged.detections[place])
        free = by_image[int(evidence.detections.images[detection])]
        overlaps = counted_overlaps(evidence, np.array([detection]), np.array(free), protocol)[0]
        best = np.flatnonzero(overlaps == overlaps.max())
        found_by[place] = free.pop(int(best[-1 if protocol.last_of_equal_overlaps else 0]))
    return found_by
