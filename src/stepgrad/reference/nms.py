"""Greedy non-maximum suppression, one window at a time (Henderson & Ferrari 2016, Sec. 2.1)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from stepgrad.reference.boxes import Floats, iou


def neighbour_sets(
    boxes: object, threshold: float | None, pixel_offset: float = 0.0, likeness: Floats | None = None
) -> list[frozenset[int]]:
    """For each window the others that overlap it with IoU > threshold; none if there is no NMS (None).

    A `likeness` (N, N) of the windows, if given, stands in place of their IoU.
    """
    windows = np.asarray(boxes, dtype=np.float64).reshape(-1, 4)
    if threshold is None:
        return [frozenset()] * len(windows)
    close = (iou(windows, windows, pixel_offset) if likeness is None else likeness) > threshold
    return [frozenset(np.flatnonzero(row).tolist()) - {b} for b, row in enumerate(close)]


def by_score(scores: Sequence[float]) -> list[int]:
    """Window indices in decreasing score; of equal scores the lower index comes first.

    >>> by_score([1.0, 3.0, 1.0, 3.0])
    [1, 3, 0, 2]
    """
    return sorted(range(len(scores)), key=lambda b: (-scores[b], b))


def greedy(scores: Sequence[float], neighbours: Sequence[Collection[int]]) -> tuple[list[int], list[int]]:
    """Kept windows in decreasing score, and per window the highest kept one that overlaps it (-1 when kept).

    >>> greedy([0.9, 0.8, 0.7], [{1}, {0, 2}, {1}])    # 0 removes 1, so nobody removes 2
    ([0, 2], [-1, 0, -1])
    """
    keep: list[int] = []
    suppressor = [-1] * len(scores)
    for b in by_score(scores):
        above = [d for d in keep if d in neighbours[b]]
        if above:
            suppressor[b] = above[0]
        else:
            keep.append(b)
    return keep, suppressor


def nms(boxes: object, scores: Sequence[float], threshold: float | None) -> tuple[list[int], list[int]]:
    """Greedy NMS of one image and class: (keep, suppressor).

    >>> nms([[0, 0, 4, 4], [0, 0, 4, 3], [9, 9, 12, 12]], [0.5, 0.6, 0.1], 0.3)
    ([1, 2], [1, -1, -1])
    """
    return greedy(scores, neighbour_sets(boxes, threshold))
