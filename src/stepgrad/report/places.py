"""Where boxes are drawn: on their pixels or, if they are segments of time, as bars in lanes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepgrad.evaluation.records import Evidence

Boxes = NDArray[np.float64]  # (n, 4) x1 y1 x2 y2
WIDTH, LANE, BAR = 640.0, 26.0, 16.0
"""Of a picture of segments: how long its time is, the height of a lane, and that of a bar in it."""
MOST_LANES = 10
"""Segments for which these have no room lie on one another in the last."""


def drawn_boxes(evidence: Evidence) -> tuple[Boxes, Boxes]:
    """Corners of all objects and detections in continuous pixels from 0."""
    sides = evidence.objects, evidence.detections
    if evidence.overlap.drawn == "bar":
        return _in_lanes(evidence)
    objects, found = (continuous_corners(evidence, side.boxes) for side in sides)
    return objects, found


def continuous_corners(evidence: Evidence, boxes: Boxes) -> Boxes:
    """Corners in continuous pixels from 0, where pictures are drawn. Inclusive pixels count from 1."""
    return boxes - np.array([1.0, 1.0, 0.0, 0.0]) * (evidence.pixel_offset or 0.0)


def _in_lanes(evidence: Evidence) -> tuple[Boxes, Boxes]:
    """Bars from left to right, objects above detections, and detections by decreasing score."""
    objects, found = evidence.objects, evidence.detections
    ranked = np.argsort(-found.scores, kind="stable")
    bars = objects.boxes.copy(), found.boxes.copy()
    for image in range(evidence.num_images):
        rows = np.flatnonzero(objects.images == image), ranked[found.images[ranked] == image]
        times = [side.boxes[chosen][:, [0, 2]] for side, chosen in zip((objects, found), rows, strict=True)]
        every = np.concatenate([[[0.0, 0.0]], *times])
        first, last = float(every.min()), float(every.max())
        lane = 0
        for side, chosen, spans in zip(bars, rows, times, strict=True):
            lanes = lane + lanes_of(spans)
            side[chosen] = _bars((spans - first) * (WIDTH / max(last - first, 1e-9)), lanes)
            lane = int(lanes.max(initial=lane - 1)) + 1
    return bars


def lanes_of(spans: NDArray[np.float64]) -> NDArray[np.int64]:
    """(n,) the first lane in which each span has room among those before it.

    >>> lanes_of(np.array([[0.0, 4.0], [3.0, 6.0], [4.0, 5.0]])).tolist()
    [0, 1, 0]
    """
    taken: list[list[tuple[float, float]]] = [[] for _ in range(MOST_LANES - 1)]
    lanes = np.full(len(spans), MOST_LANES - 1)
    for row, (begin, end) in enumerate(spans.tolist()):
        for lane, others in enumerate(taken):
            if all(end <= a or b <= begin for a, b in others):
                others.append((begin, end))
                lanes[row] = lane
                break
    return lanes


def _bars(spans: NDArray[np.float64], lanes: NDArray[np.int64]) -> Boxes:
    top = lanes * LANE + (LANE - BAR) / 2
    return np.column_stack([spans[:, 0], top, spans[:, 1], top + BAR])
