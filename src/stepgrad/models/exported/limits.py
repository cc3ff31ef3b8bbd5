"""From the windows of a network to detections: least score, NMS, largest number."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torchvision.ops import nms

from stepgrad.models.exported.layouts import Array, Windows
from stepgrad.models.exported.recipe import Recipe

_MOST_RANKED = 30_000  # windows that enter NMS, as in ultralytics


@dataclass(frozen=True)
class Detected:
    """The detections of one picture, by decreasing score."""

    boxes: Array
    scores: Array
    labels: NDArray[np.int64]

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> Detected:
        return Detected(self.boxes[rows], self.scores[rows], self.labels[rows])


def choose(windows: Windows, recipe: Recipe) -> Detected:
    """The detections among the windows; of equal scores the earlier window and class come first."""
    found = _pairs(replace(windows, boxes=_in_order(windows.boxes)), recipe)
    found = found.take(np.argsort(-found.scores, kind="stable")[:_MOST_RANKED])
    if recipe.nms is not None:
        found = found.take(_kept(found, recipe.nms, recipe.agnostic))
    return found.take(np.arange(min(len(found.scores), recipe.max_detections)))


def _in_order(boxes: Array) -> Array:
    """Boxes with the second corner of a reversed one, which some networks give, moved onto the first: it overlaps nothing."""
    return np.concatenate([boxes[:, :2], np.maximum(boxes[:, :2], boxes[:, 2:])], axis=1)


def _pairs(windows: Windows, recipe: Recipe) -> Detected:
    """Every window with each class that it may be detected as."""
    if windows.labels is not None:
        return Detected(windows.boxes, windows.scores, windows.labels).take(windows.scores > recipe.min_score)
    if recipe.multi_label:
        rows, labels = np.nonzero(windows.scores > recipe.min_score)
    else:
        best = windows.scores.argmax(axis=1)
        rows = np.flatnonzero(windows.scores[np.arange(len(best)), best] > recipe.min_score)
        labels = best[rows]
    return Detected(windows.boxes[rows], windows.scores[rows, labels], labels.astype(np.int64))


def _kept(found: Detected, threshold: float, agnostic: bool) -> NDArray[np.int64]:
    """Rows that NMS keeps, in their order; the scores must decrease."""
    kept = []
    boxes = torch.from_numpy(found.boxes)
    ranks = -torch.arange(len(boxes), dtype=torch.float64)  # ties are decided already
    labels = np.zeros_like(found.labels) if agnostic else found.labels
    for label in np.unique(labels):
        rows = torch.from_numpy(np.flatnonzero(labels == label))
        kept.append(rows[nms(boxes[rows], ranks[rows], threshold)].numpy())
    return np.sort(np.concatenate([np.zeros(0, dtype=np.int64), *kept]))
