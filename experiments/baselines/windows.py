"""Which windows are positive for which class: the labels that losses without NMS rank by."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepgrad.metric.batch import Batch
from stepgrad.metric.boxes import overlaps_with

NEGATIVE, POSITIVE, LEFT_OUT = 0, 1, 2


def window_labels(batch: Batch, match_threshold: float, grey_zone: float | None = None) -> NDArray[np.int8]:
    """(N, K) labels: POSITIVE, NEGATIVE or LEFT_OUT.

    What counts is the object of the class that a window overlaps most (the first of equals). If their IoU reaches
    `match_threshold`, the window is positive, or left out if the object is difficult or a crowd; if it only reaches
    `grey_zone`, the window is left out; otherwise it is negative. Two windows on one object are both positive.
    """
    overlap, ignored = best_overlaps(batch)
    matched = overlap >= match_threshold
    labels = np.where(matched, np.where(ignored, LEFT_OUT, POSITIVE), NEGATIVE).astype(np.int8)
    if grey_zone is not None:
        labels[~matched & (overlap >= grey_zone)] = LEFT_OUT
    return labels


def best_overlaps(batch: Batch) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """(N, K) largest IoU with an object of the class, and whether that object is to be ignored."""
    overlap = np.zeros(batch.scores.shape)
    ignored = np.zeros(batch.scores.shape, dtype=np.bool_)
    ignore_object = batch.difficult | batch.crowd
    for g, (image, label) in enumerate(zip(batch.object_images, batch.object_labels, strict=True)):
        rows = slice(batch.offsets[image], batch.offsets[image + 1])
        windows = batch.boxes[rows, label] if batch.boxes_by_class else batch.boxes[rows]
        iou = overlaps_with(batch.object_boxes[g], windows, 0.0)
        better = iou > overlap[rows, label]
        overlap[rows, label] = np.where(better, iou, overlap[rows, label])
        ignored[rows, label] = np.where(better, ignore_object[g], ignored[rows, label])
    return overlap, ignored
