"""Slow twins of what the detector does to windows: pooling, drawing, and NMS of every class."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from stepgrad.reference.boxes import iou
from stepgrad.reference.nms import by_score, nms


def receptive_centres(trunk: nn.Sequential, side: int) -> list[float]:
    """The input column at the centre of each output column, found by asking autograd which columns matter.

    Every layer becomes a mean over its window of one channel, so that nothing in reach has a gradient of zero.
    """
    spread = nn.Sequential(*[_mean_over_window(layer) for layer in trunk]).double()
    picture = torch.ones(1, 1, side, side, dtype=torch.float64, requires_grad=True)
    columns = spread(picture)[0, 0].sum(dim=0)
    centres = []
    for column in columns:
        (gradient,) = torch.autograd.grad(column, picture, retain_graph=True)
        touched = gradient[0, 0].sum(dim=0).nonzero().flatten()
        centres.append((int(touched[0]) + int(touched[-1])) / 2)
    return centres


def _mean_over_window(layer: nn.Module) -> nn.Module:
    if isinstance(layer, (nn.Conv2d, nn.MaxPool2d)):
        kernel, stride, padding = (
            v[1] if isinstance(v, tuple) else v for v in (layer.kernel_size, layer.stride, layer.padding)
        )
        mean = nn.Conv2d(1, 1, kernel, stride, padding, bias=False)  # type: ignore[arg-type]
        nn.init.constant_(mean.weight, 1 / kernel**2)  # type: ignore[operator]
        return mean
    return nn.Identity()


def pooled_window(
    feature_map: np.ndarray, window: Sequence[float], stride: int, first_centre: float, side: int
) -> np.ndarray:
    """(C, side, side) of one window (x1, y1, x2, y2 in trunk pixels): the original's RoI pooling, cell by cell."""
    channels, height, width = feature_map.shape
    x1, x2 = (_cell(v, stride, first_centre, width) for v in (window[0], window[2] - 1))
    y1, y2 = (_cell(v, stride, first_centre, height) for v in (window[1], window[3] - 1))
    across, down = max(x2 - x1 + 1, 1), max(y2 - y1 + 1, 1)
    pooled = np.zeros((channels, side, side), dtype=feature_map.dtype)
    for i in range(side):
        for j in range(side):
            rows = range(y1 + math.floor(i * down / side), y1 + math.ceil((i + 1) * down / side))
            columns = range(x1 + math.floor(j * across / side), x1 + math.ceil((j + 1) * across / side))
            cells = [feature_map[:, y, x] for y in rows for x in columns if y < height and x < width]
            pooled[:, i, j] = np.max(cells, axis=0)
    return pooled


def _cell(pixel: float, stride: int, first_centre: float, count: int) -> int:
    """The cell whose centre is nearest, of equals the higher; within the map."""
    position = min(max((pixel - first_centre) / stride, 0.0), count - 1.0)
    return math.floor(position + 0.5)


def window_labels(windows: Tensor, boxes: Tensor, labels: Tensor, num_classes: int) -> tuple[list[float], list[int]]:
    """Largest IoU of each window, and the class it shows: the first of the objects it overlaps most, if by half."""
    largest, shown = [], []
    for window in windows.double().tolist():
        overlaps = [float(iou([window], [box])[0, 0]) for box in boxes.double().tolist()]
        best = max(overlaps, default=0.0)
        largest.append(best)
        shown.append(int(labels[overlaps.index(best)]) if best >= 0.5 else num_classes)
    return largest, shown


def detections(
    scores: Sequence[Sequence[float]], windows: Tensor, threshold: float | None, candidates: int | None
) -> list[tuple[float, int, int]]:
    """(score, label, window) of what survives NMS in each class, by decreasing score, then class, then rank."""
    found = []
    for label in range(len(scores[0]) if len(scores) else 0):
        column = [row[label] for row in scores]
        highest = by_score(column)[:candidates]
        keep, _ = nms(windows[highest].double().numpy(), [column[b] for b in highest], threshold)
        found += [(column[highest[k]], label, highest[k]) for k in keep]
    return sorted(found, key=lambda entry: -entry[0])
