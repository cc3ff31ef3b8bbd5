"""What a protocol counts: the objects that are there to be found, and overlaps in its arithmetic."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepgrad.engine.overlaps import measured, single_overlaps
from stepgrad.evaluation.records import Evidence
from stepgrad.metric.boxes import areas_of, overlap_table, sizes_of
from stepgrad.metric.protocol import Protocol


def countable(evidence: Evidence, protocol: Protocol) -> NDArray[np.bool_]:
    """(G,) objects that are there to be found. Only COCO's rule knows crowds; to VOC's they are objects like others."""
    objects = evidence.objects
    without_crowds = protocol.duplicates == "best_free" or protocol.crowds == "drop"
    left_out = (objects.crowd & without_crowds) | (objects.difficult & (protocol.difficult != "count"))
    unlabelled = evidence.overlap.unlabelled(objects.shapes) if evidence.has_shapes else None
    return ~left_out if unlabelled is None or protocol.poses == "box" else ~(left_out | unlabelled)


def counted_overlaps(
    evidence: Evidence,
    detections: NDArray[np.int64],
    objects: NDArray[np.int64],
    protocol: Protocol,
    crowds: NDArray[np.bool_] | None = None,
) -> NDArray[np.float64]:
    """(M, G) overlaps of some detections with some objects in the protocol's arithmetic; `evidence` is as it sees the boxes.

    With an object among `crowds` (G of all objects,) the overlap is the share of the detection that it covers, as in COCO.
    """
    found, truth = evidence.detections, evidence.objects
    if evidence.has_shapes:
        rows, columns = np.repeat(detections, len(objects)), np.tile(objects, len(detections))
        region = np.zeros(len(truth), dtype=np.bool_) if crowds is None else crowds
        shared = evidence.overlap.of_pairs(found.shapes, rows, truth.shapes, columns, region[columns])
        return shared.reshape(len(detections), len(objects))
    windows, boxes = found.boxes[detections], truth.boxes[objects]
    written = areas_of(found.sizes[detections], protocol.pixel_offset)
    windows, window_areas = measured(windows, written, protocol)
    boxes, box_areas = measured(boxes, areas_of(truth.sizes[objects], protocol.pixel_offset), protocol)
    crowd = np.zeros(len(boxes), dtype=np.bool_) if crowds is None else crowds[objects]
    single = protocol.overlaps == "single"
    areas = (
        [areas_of(sizes_of(b), protocol.pixel_offset) for b in (windows, boxes)]
        if single
        else [window_areas, box_areas]
    )
    table = overlap_table(windows, areas[0], boxes, areas[1], crowd, protocol.pixel_offset)
    if not single:
        return table
    pairs = np.repeat(windows, len(boxes), axis=0), np.tile(boxes, (len(windows), 1))
    return np.where(crowd, table, single_overlaps(*pairs, protocol.pixel_offset).reshape(table.shape))
