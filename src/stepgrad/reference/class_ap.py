"""The AP of one class of a batch, everything from the start: NMS, matching, ranking (Henderson & Ferrari 2016, Sec. 2.2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepgrad.metric.protocol import Protocol
from stepgrad.reference.average_precision import AP, average_precision
from stepgrad.reference.boxes import Floats
from stepgrad.reference.matching import IGNORED, TRUE, Objects, describe_objects, match
from stepgrad.reference.nms import greedy, neighbour_sets

Scores = list[list[float]]  # one list per image
Kept = list[list[int]]


@dataclass(frozen=True)
class ImageOfClass:
    """The windows of one image, who overlaps whom, and the objects of the class."""

    neighbours: list[frozenset[int]]  # (N,)
    objects: Objects


@dataclass(frozen=True)
class ClassScene:
    """Everything about one class except the scores: those are what moves."""

    images: list[ImageOfClass]
    protocol: Protocol
    threshold: float

    @property
    def P(self) -> int:
        return sum(image.objects.countable for image in self.images)


def describe_class(
    boxes: Sequence[Floats],
    targets: Sequence[dict[str, np.ndarray]],
    label: int,
    protocol: Protocol,
    threshold: float,
    nms_threshold: float | None,
    area: tuple[float, float] = (0.0, math.inf),
    overlaps: Sequence[Floats] | None = None,
    likeness: Sequence[Floats] | None = None,
) -> ClassScene:
    """The class `label` of a batch; `boxes` are (N, 4), or (N, K, 4) with one box per class; `area`: which sizes count.

    Per image, `overlaps` (N, G) of windows with objects and `likeness` (N, N) of windows stand in place of the boxes' IoU.
    """
    images = []
    for i, (windows, target) in enumerate(zip(boxes, targets, strict=True)):
        class_windows = windows if windows.ndim == 2 else windows[:, label]
        of_class = np.flatnonzero(np.asarray(target["labels"]) == label)
        none = np.zeros(len(target["labels"]), dtype=bool)
        difficult = target.get("difficult", none)[of_class]
        crowd = target.get("iscrowd", none)[of_class]
        objects = describe_objects(
            class_windows,
            target["boxes"][of_class],
            difficult.tolist(),
            crowd.tolist(),
            protocol,
            area,
            None if overlaps is None else overlaps[i][:, of_class],
        )
        close = neighbour_sets(class_windows, nms_threshold, likeness=None if likeness is None else likeness[i])
        images.append(ImageOfClass(close, objects))
    return ClassScene(images, protocol, threshold)


def kept_windows(scene: ClassScene, scores: Scores) -> Kept:
    """What NMS leaves in each image."""
    return [greedy(s, image.neighbours)[0] for s, image in zip(scores, scene.images, strict=True)]


def judged_detections(scene: ClassScene, scores: Scores, kept: Kept) -> list[tuple[int, int, str]]:
    """(image, window, verdict) of all detections by decreasing score; ties: lower image, then lower window first."""
    judged = []
    for i, image in enumerate(scene.images):
        order = [b for _, b in sorted((-scores[i][b], b) for b in kept[i])][: scene.protocol.max_detections]
        verdicts = match(order, image.objects, scene.protocol, scene.threshold)
        judged += [(i, b, verdict) for b, verdict in zip(order, verdicts, strict=True)]
    return sorted(judged, key=lambda d: (-scores[d[0]][d[1]], d[0], d[1]))


def ranks_of_true_positives(verdicts: Sequence[str]) -> tuple[int, ...]:
    """Their places, counted from 1, among the detections that count.

    >>> ranks_of_true_positives(["false positive", IGNORED, TRUE, TRUE])
    (2, 3)
    """
    counted = [v for v in verdicts if v != IGNORED]
    return tuple(rank for rank, v in enumerate(counted, start=1) if v == TRUE)


def class_ap(scene: ClassScene, scores: Scores, kept: Kept | None = None) -> AP:
    """AP of the class: NMS (unless the kept windows are given), matching and ranking, all from the start."""
    kept = kept_windows(scene, scores) if kept is None else kept
    verdicts = [verdict for _, _, verdict in judged_detections(scene, scores, kept)]
    return average_precision(ranks_of_true_positives(verdicts), scene.P, scene.protocol)
