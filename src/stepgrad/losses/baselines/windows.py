"""Which windows are positive for which class: the labels that losses without NMS rank by."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepgrad.metric.batch import Batch

NEGATIVE, POSITIVE, LEFT_OUT = 0, 1, 2


def window_labels(batch: Batch, match_threshold: float, grey_zone: float | None = None) -> NDArray[np.int8]:
    """(N, K) labels: POSITIVE, NEGATIVE or LEFT_OUT.

    What counts is the object of the class that a window overlaps most (the first of equals). If their IoU reaches
    `match_threshold`, the window is positive, or left out if the object is difficult or a crowd; if it only reaches
    `grey_zone`, the window is left out; otherwise it is negative. Two windows on one object are both positive.
    """
    overlap, ignored = _best_overlaps(batch)
    matched = overlap >= match_threshold
    labels = np.where(matched, np.where(ignored, LEFT_OUT, POSITIVE), NEGATIVE).astype(np.int8)
    if grey_zone is not None:
        labels[~matched & (overlap >= grey_zone)] = LEFT_OUT
    return labels


def _best_overlaps(batch: Batch) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """(N, K) largest IoU with an object of the class, and whether that object is to be ignored."""
    overlap = np.zeros(batch.scores.shape)
    ignored = np.zeros(batch.scores.shape, dtype=np.bool_)
    ignore_object = batch.difficult | batch.crowd
    for g, (image, label) in enumerate(zip(batch.object_images, batch.object_labels, strict=True)):
        rows = slice(batch.offsets[image], batch.offsets[image + 1])
        windows = batch.boxes[rows, label] if batch.boxes_by_class else batch.boxes[rows]
        iou = _iou(windows, batch.object_boxes[g])
        better = iou > overlap[rows, label]
        overlap[rows, label] = np.where(better, iou, overlap[rows, label])
        ignored[rows, label] = np.where(better, ignore_object[g], ignored[rows, label])
    return overlap, ignored


def _iou(windows: NDArray[np.float64], target: NDArray[np.float64]) -> NDArray[np.float64]:
    """(N,) IoU of windows (N, 4) with one box."""
    sides = np.minimum(windows[:, 2:], target[2:]) - np.maximum(windows[:, :2], target[:2])
    shared = np.maximum(sides, 0.0).prod(axis=1)
    return shared / ((windows[:, 2:] - windows[:, :2]).prod(axis=1) + (target[2:] - target[:2]).prod() - shared)
