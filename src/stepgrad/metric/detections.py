"""From scored windows to detections: NMS class by class, by the kernels that the loss counts with."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stepgrad.kernels.jit import explain_wait
from stepgrad.kernels.nms import greedy_nms
from stepgrad.kernels.sorting import descending_order
from stepgrad.metric.arrange import Layout, layout_of


def suppress_and_rank(
    scores: Tensor, windows: Tensor, nms_threshold: float | None, candidates: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Indices of windows, labels and scores of what is left after NMS, by decreasing score.

    Equal scores rank by class, then by window.

    Args:
        scores: (N, K), on the CPU.
        windows: (N, 4), or (N, K, 4) where each class has boxes of its own, on the CPU.
        nms_threshold: windows overlapping a kept one by more than this are suppressed; None: none are.
        candidates: only so many highest windows of a class enter NMS; None: all.
    """
    if scores.numel() == 0:
        return torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.long), scores.reshape(-1)[:0]
    columns = np.ascontiguousarray(scores.numpy().T)  # (K, N)
    with explain_wait():
        boxes = np.ascontiguousarray(windows.double().numpy())
        offsets = np.array([0, len(boxes)], dtype=np.int64)
        of_all = layout_of(boxes, offsets, nms_threshold, 1) if boxes.ndim == 2 else None
        kept = []
        for c, column in enumerate(columns):
            own = of_all or layout_of(np.ascontiguousarray(boxes[:, c]), offsets, nms_threshold, 1)
            kept.append(_kept(column, own, candidates))
    labels = np.repeat(np.arange(len(kept)), [len(k) for k in kept])
    index = np.concatenate(kept)
    kept_scores = columns[labels, index]
    order = descending_order(kept_scores)
    return torch.from_numpy(index[order]), torch.from_numpy(labels[order]), torch.from_numpy(kept_scores[order])


def _kept(scores: NDArray[np.floating], layout: Layout, candidates: int | None) -> NDArray[np.int64]:
    """The windows of one class that survive, by decreasing score."""
    slots = layout.slots
    highest = descending_order(scores)[:candidates]
    order = slots.slot_of[highest]
    suppressor = greedy_nms(order, layout.rows, len(slots.image_of_word)).suppressor
    return highest[suppressor[order] < 0].astype(np.int64)
