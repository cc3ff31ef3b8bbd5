"""Distances of centres: how nuScenes matches detections in three dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from stepgrad.errors import ConfigError, InputError, NonFiniteError, positive_number
from stepgrad.metric.protocol import Protocol
from stepgrad.overlaps.base import Flags, Floats, Overlap, Rows
from stepgrad.plain_tensors import tensor_of


class Distance(Overlap):
    """Distance of centres (x, y) or (x, y, z): a window finds an object that is nearer than a threshold.

    Centres are handed in as boxes: `loss_fn(scores, centres, targets)`, with the objects' centres as their "boxes". Distances
    have to be less than a threshold; under "coco" the nearest object that is free is taken, as in nuScenes.

    Args:
        thresholds: distances, in the unit of the centres; AP is the mean over them. Those of nuScenes are in metres.

    >>> Distance()([[0.0, 0.0]], [[3.0, 4.0]]).tolist()                # minus the distance: more is better
    [[-5.0]]
    """

    nearness = "distance"
    needs_touching_boxes = False
    word = "distance"
    nouns = ("centre", "centres")

    def __init__(self, thresholds: Sequence[float] = (0.5, 1.0, 2.0, 4.0)) -> None:
        super().__init__("own")
        if isinstance(thresholds, (str, int, float)) or not len(thresholds):
            raise ConfigError(f"Expected thresholds to be several distances but got {thresholds!r}.")
        self.thresholds = tuple(positive_number("thresholds", t) for t in thresholds)

    def adapt(self, protocol: Protocol) -> Protocol:
        """With these thresholds, which a distance has to be less than."""
        return replace(protocol, match_thresholds=self.thresholds, nearness="distance", equality=False)

    def windows(self, given: Any, where: str) -> Floats:
        rows = tensor_of(given, where, "centres").detach().to("cpu", torch.float64).numpy()
        if rows.size == 0:
            return np.zeros((0, 2))
        if rows.ndim != 2 or rows.shape[1] not in (2, 3):
            raise InputError(f"{where}: expected (n, 2) or (n, 3) centres but got shape {tuple(rows.shape)}.")
        if not np.isfinite(rows).all():
            first = int(np.argwhere(~np.isfinite(rows))[0][0])
            raise NonFiniteError(f"{where}: expected finite centres but row {first} is {rows[first].tolist()}.")
        return rows

    def boxes(self, shapes: Floats) -> Floats:
        """A square of one unit around each centre; nothing but its presence counts."""
        centres = shapes[:, :2]
        return np.concatenate([centres - 0.5, centres + 0.5], axis=1)

    def values(
        self, windows: Floats, rows: Rows, objects: Floats, columns: Rows, crowd: Flags, least: float = 0.0
    ) -> Floats:
        apart = windows[rows] - objects[columns] if len(rows) else np.zeros((0, 2))
        return -np.sqrt((apart**2).sum(axis=1))

    def __repr__(self) -> str:
        return f"Distance({self.thresholds})"
