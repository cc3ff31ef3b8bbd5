"""Poses: the similarity of keypoints (OKS), as COCO defines it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from stepgrad.engine.poses import similarities
from stepgrad.errors import ConfigError, InputError, NonFiniteError, positive_number
from stepgrad.metric.protocol import COCO, Protocol
from stepgrad.overlaps.base import Flags, Floats, Overlap, Rows, Target, shapes_in
from stepgrad.plain_tensors import tensor_of

COCO_SIGMAS = (
    (0.026, 0.025, 0.025, 0.035, 0.035, 0.079, 0.079, 0.072, 0.072, 0.062, 0.062)
    + (0.107,) * 2
    + (0.087,) * 2
    + (0.089,) * 2
)
"""How far annotators differ about COCO's keypoints: nose, eyes, ears, shoulders, elbows, wrists, hips, knees, ankles."""

_MOST_POSES = 20


class Poses(NamedTuple):
    """Keypoints of n windows or objects."""

    points: Floats  # (n, k, 3) x, y, visibility
    boxes: Floats  # (n, 4) around them; those of objects as annotated
    areas: Floats  # (n,) as annotated


class Keypoints(Overlap):
    """OKS: the mean over an object's labelled keypoints of exp(-d^2 / (2 area (2 sigma)^2)), d being the distance.

    Windows come as `keypoints=[(N, k, 2 or 3)]`, objects as target["keypoints"] (G, k, 3), the third number of which is 0 for
    keypoints that are not labelled, with target["boxes"], and target["area"] if the area is not that of the box. An object
    without labelled keypoints is compared by its box, and not counted, as in COCO; "coco" counts 20 detections per image.

    Args:
        sigmas: one per keypoint, how far annotators differ; None: COCO's 17.
        nms: "boxes" (the usual choice) or "own", by OKS with the areas of the windows' boxes.

    >>> Keypoints([0.1])([[[3.0, 4.0]]], {"keypoints": [[[0.0, 0.0, 2.0]]], "boxes": [[0, 0, 10, 10]]}).round(decimals=4).tolist()
    [[0.0439]]
    """

    key = "keypoints"
    keys = ("keypoints", "boxes", "area", "areas")
    needs_touching_boxes = False
    word = "OKS"
    nouns = ("pose", "poses")
    drawn = "pose"

    def __init__(self, sigmas: Sequence[float] | None = None, nms: str = "boxes") -> None:
        super().__init__(nms)
        if sigmas is not None and (isinstance(sigmas, (str, int, float)) or not len(sigmas)):
            raise ConfigError(f"Expected sigmas to be a number per keypoint but got {sigmas!r}.")
        self.sigmas = tuple(positive_number("sigmas", s) for s in (COCO_SIGMAS if sigmas is None else sigmas))

    def adapt(self, protocol: Protocol) -> Protocol:
        """COCO counts fewer detections of poses."""
        return (
            replace(protocol, max_detections=_MOST_POSES)
            if protocol.max_detections == COCO.max_detections
            else protocol
        )

    def unlabelled(self, shapes: Poses) -> Flags:
        return ~np.asarray((shapes.points[:, :, 2] > 0).any(axis=1))

    def windows(self, given: Any, where: str) -> Poses:
        points = self._points(given, where)
        low, high = points[:, :, :2].min(axis=1, initial=np.inf), points[:, :, :2].max(axis=1, initial=-np.inf)
        boxes = np.concatenate([low, high], axis=1)
        return Poses(points, boxes, (high - low).prod(axis=1))

    def objects(self, target: Target, where: str) -> Poses:
        points = self._points(shapes_in(target, self.key, where), where)
        boxes = tensor_of(shapes_in(target, "boxes", where), where, "boxes").detach().to("cpu", torch.float64).numpy()
        boxes = boxes.reshape(-1, 4)
        areas = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
        for name in ("area", "areas"):
            if name in target:
                areas = tensor_of(target[name], where, name).detach().to("cpu", torch.float64).numpy().reshape(-1)
        if not len(points) == len(boxes) == len(areas):
            raise InputError(
                f"{where}: expected as many keypoints as boxes and areas but got {len(points)}, {len(boxes)} and {len(areas)}."
            )
        return Poses(points, boxes, areas)

    def _points(self, given: Any, where: str) -> Floats:
        points = tensor_of(given, where, "keypoints").detach().to("cpu", torch.float64).numpy()
        k = len(self.sigmas)
        if points.size == 0:
            return np.zeros((0, k, 3))
        if points.ndim != 3 or points.shape[1] != k or points.shape[2] not in (2, 3):
            raise InputError(
                f"{where}: expected keypoints (n, {k}, 2) or (n, {k}, 3), one per sigma, but got {tuple(points.shape)}."
            )
        if not np.isfinite(points).all():
            first = int(np.argwhere(~np.isfinite(points))[0][0])
            raise NonFiniteError(f"{where}: expected finite keypoints but those of row {first} are not.")
        seen = np.ones((*points.shape[:2], 1))
        return points if points.shape[2] == 3 else np.concatenate([points, seen], axis=2)

    def boxes(self, shapes: Poses) -> Floats:
        return shapes.boxes

    def areas(self, shapes: Poses) -> Floats:
        return shapes.areas

    def join(self, parts: Sequence[Poses]) -> Poses:
        return Poses(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def take(self, shapes: Poses, rows: Rows) -> Poses:
        return Poses(*(column[rows] for column in shapes))

    def values(
        self, windows: Poses, rows: Rows, objects: Poses, columns: Rows, crowd: Flags, least: float = 0.0
    ) -> Floats:
        scale = (np.asarray(self.sigmas) * 2) ** 2
        return similarities(windows.points, objects.points, objects.boxes, objects.areas, scale, rows, columns, least)

    def __repr__(self) -> str:
        return f"Keypoints({len(self.sigmas)} sigmas, nms={self.nms!r})"
