"""Windows that are compared with objects by something else than boxes: by tables, made once where the shapes are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stepgrad.models.fine_tuning.windows import Labelled
from stepgrad.overlaps import ProbIoU
from stepgrad.overlaps.base import Flags, Floats, Overlap, Rows, Shapes, shapes_in


class OfTable(Overlap):
    """Overlaps that are known: the shape of a window is its row of an image's table, that of an object its number there."""

    key = "known"
    needs_touching_boxes = False

    def __init__(self) -> None:
        super().__init__("boxes")

    def windows(self, given: Any, where: str) -> Shapes:
        shapes = np.empty(len(given), dtype=object)
        for i, pair in enumerate(given):
            shapes[i] = pair
        return shapes

    def objects(self, target: Mapping[str, Any], where: str) -> Shapes:
        return self.windows(shapes_in(target, self.key, where), where)

    def boxes(self, shapes: Shapes) -> Floats:
        return np.array([box for box, _ in shapes], dtype=np.float64).reshape(-1, 4)

    def values(
        self, windows: Shapes, rows: Rows, objects: Shapes, columns: Rows, crowd: Flags, least: float = 0.0
    ) -> Floats:
        return np.array([windows[r][1][objects[c][1]] for r, c in zip(rows, columns, strict=True)], dtype=np.float64)


def known(boxes: Tensor, values: Sequence[Any]) -> dict[str, Any]:
    """Entry of detections (with rows of the table) or of a target (with numbers) for `OfTable`."""
    return {OfTable.key: list(zip(boxes.double().tolist(), values, strict=True))}


def tables(images: Sequence[Labelled], nms_threshold: float | None) -> dict[str, Any]:
    """What a loss of windows is told in place of their boxes; nothing where boxes are what counts."""
    if not images or images[0].table is None:
        return {}
    told = {"overlaps": [image.table for image in images if image.table is not None]}
    if images[0].oriented is not None and nms_threshold is not None:
        told["neighbours"] = [alike(image.oriented) > nms_threshold for image in images if image.oriented is not None]
    return told


def alike(oriented: Tensor) -> Tensor:
    """(N, N) probIoU of oriented boxes (N, 5), by which models of such boxes suppress; 0 of a box with itself."""
    return ProbIoU()(oriented, {"boxes": oriented}).fill_diagonal_(0.0)


def suppress_oriented(scores: Tensor, oriented: Tensor, threshold: float | None) -> tuple[Tensor, Tensor, Tensor]:
    """As `suppress_and_rank`, for oriented boxes: windows, labels and scores of what is left, by decreasing score."""
    near = alike(oriented) > (1.0 if threshold is None else threshold)
    kept: list[tuple[int, int]] = []
    for label, column in enumerate(scores.T):
        left = torch.ones(len(oriented), dtype=torch.bool)
        for window in column.argsort(descending=True, stable=True).tolist():
            if left[window]:
                kept.append((window, label))
                left &= ~near[window]
    windows, labels = torch.tensor(kept, dtype=torch.long).reshape(-1, 2).unbind(1)
    order = scores[windows, labels].argsort(descending=True, stable=True)
    return windows[order], labels[order], scores[windows, labels][order]
