"""Which object each true positive found, and so which objects were missed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepgrad.evaluation.judge import ClassJudgement
from stepgrad.evaluation.records import Evidence
from stepgrad.kernels.matching import TRUE_POSITIVE
from stepgrad.metric.boxes import areas_of, overlap_table
from stepgrad.metric.protocol import Protocol

NOTHING = -1


def countable(evidence: Evidence, protocol: Protocol) -> NDArray[np.bool_]:
    """(G,) objects that are there to be found. Only COCO's rule knows crowds; to VOC's they are objects like others."""
    ignored = evidence.objects.crowd & (protocol.duplicates == "best_free")
    return ~(ignored | (evidence.objects.difficult & (protocol.difficult == "ignore")))


def found_objects(
    evidence: Evidence, judged: ClassJudgement, protocol: Protocol, threshold: int = 0
) -> NDArray[np.int64]:
    """For each ranked detection of a class the row of the object it found, NOTHING for all but true positives.

    `evidence` holds the boxes as the protocol saw them; `threshold` is the number of the match threshold. The verdicts
    already say who found something. What was found is the countable object of the largest overlap that no better
    detection had taken: the first of equal overlaps under VOC's rule, the last under COCO's.
    """
    found = np.full(len(judged.detections), NOTHING, dtype=np.int64)
    objects = np.flatnonzero((evidence.objects.labels == judged.label) & countable(evidence, protocol))
    by_image: dict[int, list[int]] = {}
    for row in objects.tolist():
        by_image.setdefault(int(evidence.objects.images[row]), []).append(row)
    for place in np.flatnonzero(judged.verdicts[threshold] == TRUE_POSITIVE).tolist():
        detection = int(judged.detections[place])
        free = by_image[int(evidence.detections.images[detection])]
        overlaps = _overlaps(evidence, detection, free, protocol.pixel_offset)
        best = np.flatnonzero(overlaps == overlaps.max())
        found[place] = free.pop(int(best[0] if protocol.duplicates == "best" else best[-1]))
    return found


def _overlaps(evidence: Evidence, detection: int, objects: list[int], pixel_offset: float) -> NDArray[np.float64]:
    """IoU of one detection with some objects, none a crowd, as the evaluator has it."""
    found, there = evidence.detections, evidence.objects
    areas, object_areas = (areas_of(rows, pixel_offset) for rows in (found.sizes[[detection]], there.sizes[objects]))
    none_crowd = np.zeros(len(objects), dtype=np.bool_)
    box, boxes = found.boxes[[detection]], there.boxes[objects]
    return overlap_table(box, areas, boxes, object_areas, none_crowd, pixel_offset)[0]
