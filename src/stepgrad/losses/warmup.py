"""Compile kernels before they are needed: a small call of everything that has kernels of its own."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import torch
from numba.core import event
from torch import Tensor

from stepgrad.engine.lanes import LANES
from stepgrad.engine.resample import Contenders, Worth, drawn_objects, resampled_values
from stepgrad.losses.detection import DetectionLoss, MAPLoss
from stepgrad.losses.functional import map_steps, mean_average_precision, nms
from stepgrad.metric.list_metric import LEVELS
from stepgrad.metric.metrics import Cost
from stepgrad.steps.estimators import mee
from stepgrad.steps.layers import NMSLayer

_WINDOWS = 80  # more than 64, so that windows are ordered by place
_METHODS: dict[str, dict[str, Any]] = {
    "radius": {"estimator": "radius"},
    "nearest": {"estimator": "mee"},
    "paper": {"estimator": "mee", "through_nms": "paper"},
}


def _scene(dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor], list[dict[str, Tensor]]]:
    """Two images with windows around objects of one class."""
    generator = torch.Generator().manual_seed(0)
    corners = torch.rand(_WINDOWS, 2, generator=generator) * 100
    boxes = torch.cat([corners, corners + 20 + 20 * torch.rand(_WINDOWS, 2, generator=generator)], dim=1)
    scores = torch.randn(_WINDOWS, 1, generator=generator).to(dtype)
    target = {"boxes": boxes[:6], "labels": torch.zeros(6, dtype=torch.long)}
    return [scores.clone().requires_grad_() for _ in range(2)], [boxes] * 2, [target] * 2


def _loss(dtype: torch.dtype, options: dict[str, Any]) -> None:
    scores, boxes, targets = _scene(dtype)
    MAPLoss(1, **options)(scores, boxes, targets).backward()


def _values(dtype: torch.dtype) -> None:
    """Values alone, for losses without gradients and for the evaluator."""
    scores, boxes, targets = _scene(dtype)
    plain = [s.detach() for s in scores]
    mean_average_precision(plain, boxes, targets)
    DetectionLoss(1, Cost(threshold=0.0))(plain, boxes, targets)
    map_steps(plain, boxes, targets)


def _others() -> None:
    """NMS, its layer, and the estimators by themselves."""
    scores, boxes, _ = _scene(torch.float32)
    nms(boxes[0], scores[0].detach().flatten(), 0.5)
    NMSLayer()(scores[0].flatten(), boxes[0]).sum().backward()
    number = torch.zeros(1)
    mee(number, number, number, number, number, number)


def _resamples() -> None:
    """The intervals of the evaluator: a list of one detection, drawn once."""
    units, one = np.zeros(1, dtype=np.int32), np.ones(1, dtype=np.int64)
    lists = Contenders(units, units, np.array([0, 1]), units, units == 0, np.array([0, 1]))
    level = np.ones((1, 1))
    part = np.zeros(1)
    rows = np.zeros(LANES, dtype=np.int64)
    worth = Worth(LEVELS, 0.0, 0.0, rows, level.astype(np.int64), level, part, part, part + 1, one)
    blocks = np.ones((1, 1, LANES), dtype=np.uint8)
    resampled_values(lists, blocks, rows + 1, worth)
    drawn_objects(blocks, units)


CALLS: dict[str, Callable[[], None]] = {
    **{
        f"{name} {str(dtype).removeprefix('torch.')}": lambda dtype=dtype, options=options: _loss(dtype, options)  # type: ignore[misc]
        for dtype in (torch.float32, torch.float64)
        for name, options in _METHODS.items()
    },
    "values float32": lambda: _values(torch.float32),
    "values float64": lambda: _values(torch.float64),
    "others": _others,
    "intervals": _resamples,
}
"""By name: what compiles the kernels of a kind of call."""


def warm_up(names: Collection[str] = tuple(CALLS), tick: Callable[[], None] = lambda: None) -> int:
    """Compile the kernels of these calls, or load them from disk; returns how many were compiled. `tick` is called after each
    call."""
    with event.install_recorder("numba:compile") as seen:
        for name in names:
            CALLS[name]()
            tick()
    return sum(1 for _, happened in seen.buffer if happened.is_end)
