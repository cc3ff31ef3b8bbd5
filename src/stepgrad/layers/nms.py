"""Which windows NMS keeps, as a step function of each score.

Fix every score but that of window b. Greedy NMS has two outcomes: b kept, or b suppressed; the score at which one turns
into the other is that of the highest neighbour of b kept in a world without b (docs/method.md, Sec. 5). So the keep mask
has at most one step in each score, on one side. All n other worlds are replayed at once, one bit each: a window is kept in
the worlds in which no higher neighbour is. Time O(n * overlapping pairs / 64), memory n^2 / 8 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stepgrad.errors import ConfigError, InputError
from stepgrad.kernels.nms import greedy_nms
from stepgrad.kernels.sorting import descending_order
from stepgrad.layers.base import StepLayer, check_numbers
from stepgrad.metric.arrange import Layout, layout_of
from stepgrad.metric.batch import make_batch
from stepgrad.metric.mean_ap import check_nms_threshold
from stepgrad.plain_tensors import narrowed, refuse_unreadable
from stepgrad.steps.autograd import attach, once
from stepgrad.steps.evaluate import Floats
from stepgrad.steps.method import Method

Words = NDArray[np.uint64]
_ROWS_AT_ONCE = 256


@dataclass(frozen=True)
class MaskSteps:
    """The keep mask and, per score, its one step."""

    kept: NDArray[np.bool_]  # (n,)
    at: Floats  # (n,) where the score meets its rival, nan without one
    rival: NDArray[np.int64]  # (n,) the window it then trades fates with, -1 for none
    beyond: Words  # (n, W) bit b of row j: whether j is kept beyond the step of score b


def neighbours(layout: Layout) -> list[NDArray[np.int64]]:
    """For each window the others with IoU > threshold, from the overlaps as the kernels keep them (bits of slots)."""
    rows, slots = layout.rows, layout.slots
    lists = []
    for slot in slots.slot_of:
        entries = slice(rows.ptr[slot], rows.ptr[slot + 1])
        bits = np.unpackbits(rows.bits[entries].astype("<u8").view(np.uint8), bitorder="little").reshape(-1, 64)
        entry, bit = np.nonzero(bits)
        lists.append(np.sort(slots.window_of[64 * rows.words[entries][entry] + bit]).astype(np.int64))
    return lists


def keep_mask(scores: Floats, layout: Layout) -> NDArray[np.bool_]:
    """Greedy NMS: whether each window is kept; equal scores rank by index."""
    slot_of = layout.slots.slot_of
    words = len(layout.slots.image_of_word)
    kept = greedy_nms(slot_of[descending_order(scores)], layout.rows, words).kept
    by_slot = np.unpackbits(kept.astype("<u8").view(np.uint8), bitorder="little")
    return by_slot[slot_of].astype(np.bool_)


def mask_steps(scores: Floats, kept: NDArray[np.bool_], close: list[NDArray[np.int64]]) -> MaskSteps:
    """The keep mask and its step in every score."""
    n = len(scores)
    order = np.argsort(-scores, kind="stable")
    place = np.empty(n, dtype=np.int64)
    place[order] = np.arange(n)
    beyond = _other_worlds(kept, order, place, close)
    rival = np.full(n, -1)
    for b in range(n):
        # for a kept window the world without it is the one beyond its step; for a suppressed one, the present one
        alive = close[b][_bit(beyond[close[b]], b) if kept[b] else kept[close[b]]]
        if len(alive):
            rival[b] = alive[np.argmin(place[alive])]
    at = np.where(rival >= 0, scores[rival] if n else scores, np.nan)
    return MaskSteps(kept, at, rival, beyond)


def _bit(rows: Words, b: int) -> NDArray[np.bool_]:
    return (rows[:, b >> 6] >> np.uint64(b & 63) & np.uint64(1)).astype(np.bool_)


def _other_worlds(
    kept: NDArray[np.bool_], order: NDArray[np.int64], place: NDArray[np.int64], close: list[NDArray[np.int64]]
) -> Words:
    """World b is the one in which the fate of window b is turned: bit b of row j tells whether j is kept there."""
    n = len(kept)
    bits = np.uint64(1) << (np.arange(n) % 64).astype(np.uint64)
    blocked = np.zeros((n, -(-n // 64)), dtype=np.uint64)
    for b in np.flatnonzero(~kept):  # kept after all, it suppresses its neighbours from wherever it stands
        blocked[close[b], b >> 6] |= bits[b]
    worlds = np.zeros_like(blocked)
    for j in order:
        higher = close[j][place[close[j]] < place[j]]
        worlds[j] = ~(blocked[j] | np.bitwise_or.reduce(worlds[higher], axis=0))
        worlds[j, j >> 6] = worlds[j, j >> 6] & ~bits[j] if kept[j] else worlds[j, j >> 6] | bits[j]
    return worlds


def rises(steps: MaskSteps, outer: Floats) -> Floats:
    """Per score, sum over windows of outer * (the mask above the step - the mask below it)."""
    n = len(outer)
    there = np.zeros(n)
    for start in range(0, n, _ROWS_AT_ONCE):
        words = np.ascontiguousarray(steps.beyond[start : start + _ROWS_AT_ONCE])
        flat = np.unpackbits(words.astype("<u8").view(np.uint8), axis=1, bitorder="little", count=n)
        there += outer[start : start + _ROWS_AT_ONCE] @ flat
    return np.where(steps.kept, 1.0, -1.0) * (outer @ steps.kept - there)


def pull_back_mask(scores: Floats, steps: MaskSteps, outer: Floats, method: Method) -> Floats:
    """The vector-Jacobian product of the keep mask. With a step on one side only, MEE and SDE agree."""
    has = steps.rival >= 0
    rise = np.where(has, rises(steps, outer), 0.0)
    place = np.where(has, steps.at, scores)
    if method.estimator == "radius":
        radius = method.radius
        i = np.arange(len(scores))
        moved = np.where(steps.kept, scores - radius, scores + radius)
        ahead = (moved > place) | ((moved == place) & (i < steps.rival))
        return np.where(has & (ahead != steps.kept), rise, 0.0) / (2.0 * radius)
    distance = np.maximum(np.abs(scores - place), method.min_step)
    tiny = np.finfo(np.float64).tiny
    return np.where(distance > 0, 0.5 * rise / np.maximum(distance, tiny), 0.0)


class NMSLayer(StepLayer):
    """Which windows greedy NMS keeps, 1 or 0, as a function of their scores: (N,) or, for K classes, (N, K).

    It is exact through every cascade: a score that moves past another may change what happens to windows it does not overlap.
    As in `nms`, a window is suppressed by a kept, higher one with IoU > threshold; equal scores rank by index. Boxes get no
    gradient. The gradient takes O(N * overlapping pairs / 64) time and N^2 / 8 bytes, on the CPU.

    >>> boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0], [4.0, 0.0, 14.0, 10.0], [8.0, 0.0, 18.0, 10.0]])   # a chain
    >>> scores = torch.tensor([3.0, 2.0, 1.0], requires_grad=True)
    >>> keep = NMSLayer(threshold=0.3)(scores, boxes)
    >>> keep[2].backward()                         # the first holds the second down for the third
    >>> keep.tolist(), scores.grad.tolist()
    ([1.0, 0.0, 1.0], [0.5, -0.5, 0.0])
    """

    def __init__(
        self, threshold: float = 0.3, estimator: str = "mee", radius: float = 1.0, min_step: float = 0.0
    ) -> None:
        super().__init__(estimator, radius, min_step)
        plain_threshold = check_nms_threshold(threshold)
        if plain_threshold is None:
            raise ConfigError("Expected a threshold in [0, 1] but got None; without NMS every window is kept.")
        self.threshold = plain_threshold

    def forward(self, scores: Tensor, boxes: Tensor) -> Tensor:  # type: ignore[override]  # windows come with boxes
        """The keep mask, in the shape and dtype of the scores."""
        check_numbers(scores, 1)
        if not isinstance(boxes, Tensor):
            raise InputError(f"Expected boxes to be a tensor but got {type(boxes).__name__}.")
        refuse_unreadable(boxes)
        if scores.ndim > 2 or boxes.shape != (len(scores), 4):
            raise InputError(
                f"Expected scores (N,) or (N, K) and boxes (N, 4) but got {tuple(scores.shape)} and {tuple(boxes.shape)}."
            )
        if scores.numel() == 0:
            return attach(scores, torch.zeros_like(scores).detach(), torch.clone)
        nothing = {"boxes": boxes[:0], "labels": torch.zeros(0, dtype=torch.long)}
        columns = scores.detach().reshape(len(scores), -1)
        batch = make_batch([columns], [boxes.detach()], [nothing])
        numbers = batch.scores.astype("float64")
        layout = layout_of(batch.boxes, batch.offsets, self.threshold, 1)
        kept = np.stack([keep_mask(np.ascontiguousarray(column), layout) for column in numbers.T], axis=1)

        def pull_back(outer: Tensor) -> Tensor:
            refuse_unreadable(outer)
            pushes = outer.detach().cpu().double().reshape(numbers.shape).numpy()
            close = neighbours(layout)
            by_class = [
                pull_back_mask(s, mask_steps(s, k, close), g, self.method)
                for s, k, g in zip(numbers.T, kept.T, pushes.T, strict=True)
            ]
            gradient = torch.stack([torch.from_numpy(column) for column in by_class], dim=1)
            return narrowed(gradient, scores.dtype).to(scores.device).reshape(scores.shape)

        mask = torch.from_numpy(kept).to(scores.device, scores.dtype).reshape(scores.shape)
        return attach(scores, mask, once(pull_back))

    def extra_repr(self) -> str:
        return f"threshold={self.threshold:g}, {super().extra_repr()}"
