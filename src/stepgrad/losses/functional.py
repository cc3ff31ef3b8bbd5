"""Functions of a batch of scored windows: mAP after NMS, its nearest steps and pseudogradient, and NMS itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stepgrad.engine.balance import BALANCES
from stepgrad.engine.classes import all_classes, class_steps, join_slopes, prepare
from stepgrad.engine.jit import explain_wait
from stepgrad.engine.neighbours import neighbours_of
from stepgrad.engine.nms import suppress
from stepgrad.engine.order import descending_order
from stepgrad.errors import ConfigError, InputError, one_of
from stepgrad.losses.objective import THROUGH_NMS, DetectionMethod
from stepgrad.metric.batch import Target, make_batch
from stepgrad.metric.list_metric import ListMetric
from stepgrad.metric.metrics import AVERAGE_PRECISION
from stepgrad.metric.options import check_nms_threshold, get_metric, resolve_protocol
from stepgrad.metric.over_classes import MAPResult, OverClasses, result_of
from stepgrad.metric.protocol import Protocol
from stepgrad.overlaps.base import Overlap
from stepgrad.overlaps.batch import Given, check_overlap, read_batch
from stepgrad.plain_tensors import refuse_unreadable
from stepgrad.steps.estimators import Steps
from stepgrad.threads import run_threads


def mean_average_precision(
    scores: Sequence[Tensor],
    boxes: Sequence[Tensor] | None,
    targets: Sequence[Target],
    *,
    protocol: str | Protocol = "voc12",
    nms_threshold: float | None = 0.3,
    match_threshold: float | Sequence[float] | None = None,
    absent_classes: str | None = None,
    overlap: Overlap | None = None,
    **more: Any,
) -> MAPResult:
    """mAP of scored windows after greedy NMS.

    Args:
        scores: per image, (N, K) scores of N windows for K classes.
        boxes: per image, (N, 4) boxes x1, y1, x2, y2 shared by the classes, or (N, K, 4).
        targets: per image, a dict of boxes (G, 4), labels (G,) in [0, K) and, optionally, difficult and iscrowd (G,).
        protocol: a `Protocol` or its name.
        nms_threshold: windows overlapping a kept one by more than this are suppressed; None: no NMS.
        match_threshold: overlap(s) at which a window finds an object; None: the protocol's own.
        absent_classes: "zero" or "skip"; None: the protocol's own.
        overlap: what windows and objects are compared by, one of `sg.overlaps`; None: IoU of boxes.
        more: `overlaps`, `neighbours`, `masks`, `keypoints`, `shapes`, as for `MAPLoss`.

    >>> window = torch.tensor([[0.0, 0.0, 10.0, 10.0], [20.0, 0.0, 30.0, 10.0]])
    >>> target = {"boxes": window[1:], "labels": torch.tensor([0])}
    >>> mean_average_precision([torch.tensor([[0.9], [0.4]])], [window], [target]).map
    0.5
    """
    overlap = check_overlap(overlap)
    nms_threshold = check_nms_threshold(nms_threshold, overlap.nearness)
    resolved = resolve_protocol(protocol, match_threshold, absent_classes, overlap.adapt)
    batch = read_batch(scores, boxes, targets, given=Given.of_call(overlap, nms_threshold, resolved, more))
    with explain_wait():
        classes = all_classes(prepare(batch, resolved, nms_threshold, torch.get_num_threads()), None)
    ap = np.array([of_class.value for of_class in classes], dtype=np.float64)
    present = np.array([of_class.P > 0 for of_class in classes], dtype=np.bool_)
    return result_of(ap, present, resolved.absent_classes)


def map_pseudogradient(
    scores: Sequence[Tensor],
    boxes: Sequence[Tensor] | None,
    targets: Sequence[Target],
    *,
    protocol: str | Protocol = "voc12",
    nms_threshold: float | None = 0.3,
    match_threshold: float | Sequence[float] | None = None,
    estimator: str = "mee",
    radius: float = 1.0,
    through_nms: str = "exact",
    min_step: float = 0.0,
    balance: str = "none",
    absent_classes: str | None = None,
    metric: str | ListMetric | Callable[..., Any] = AVERAGE_PRECISION,
    overlap: Overlap | None = None,
    **more: Any,
) -> list[Tensor]:
    """The raw pseudogradient dmAP / dscores by MEE: no log, clip, L4 or balance, unlike `MAPLoss`, whose default is radius 3.

    One (N, K) float64 tensor per image. The arguments are those of `mean_average_precision` and `MAPLoss`. The gradient of
    `MAPLoss` is `map_pseudogradient(..., estimator="radius", radius=3.0, balance="class")`, times -1 / (mAP + eps). With a
    `metric`, as for `DetectionLoss`, it is the pseudogradient of its mean over the classes.

    >>> window = torch.tensor([[0.0, 0.0, 10.0, 10.0], [20.0, 0.0, 30.0, 10.0]])
    >>> target = {"boxes": window[1:], "labels": torch.tensor([0])}
    >>> map_pseudogradient([torch.tensor([[1.0], [0.0]])], [window], [target])[0].flatten().tolist()
    [-0.25, 0.25]
    """
    overlap = check_overlap(overlap)
    nms_threshold = check_nms_threshold(nms_threshold, overlap.nearness)
    one_of("balance", balance, BALANCES)
    method = DetectionMethod(estimator, radius, min_step, through_nms)
    resolved = resolve_protocol(protocol, match_threshold, absent_classes, overlap.adapt)
    of_list = get_metric(metric)
    given = Given.of_call(overlap, nms_threshold, resolved, more)
    batch = read_batch(scores, boxes, targets, areas=of_list.area is not None, given=given)
    with explain_wait():
        classes = all_classes(prepare(batch, resolved, nms_threshold, torch.get_num_threads(), of_list), method)
    over_classes = OverClasses(absent_classes=resolved.absent_classes)
    slopes = over_classes.join(of_list, [c.value for c in classes], [c.P for c in classes]).slopes(1.0)
    full, _ = join_slopes(classes, batch.scores, slopes, None, balance, 1)
    return _per_image(full.T, scores)


def map_steps(
    scores: Sequence[Tensor],
    boxes: Sequence[Tensor] | None,
    targets: Sequence[Target],
    *,
    protocol: str | Protocol = "voc12",
    nms_threshold: float | None = 0.3,
    match_threshold: float | None = None,
    through_nms: str = "exact",
    metric: str | ListMetric | Callable[..., Any] = AVERAGE_PRECISION,
    overlap: Overlap | None = None,
    **more: Any,
) -> Steps:
    """The nearest steps of each class's AP in each of its scores, at one match threshold; or of another `metric`.

    >>> window = torch.tensor([[0.0, 0.0, 10.0, 10.0], [20.0, 0.0, 30.0, 10.0]])
    >>> target = {"boxes": window[1:], "labels": torch.tensor([0])}
    >>> steps = map_steps([torch.tensor([[0.75], [0.5]])], [window], [target])
    >>> steps.value.tolist(), steps.up_at[0].tolist(), steps.up_value[0].tolist(), steps.down_at[0].tolist()
    ([0.5], [[inf], [0.75]], [[0.5], [1.0]], [[0.5], [-inf]])
    """
    overlap = check_overlap(overlap)
    nms_threshold = check_nms_threshold(nms_threshold, overlap.nearness)
    one_of("through_nms", through_nms, THROUGH_NMS)
    resolved = resolve_protocol(protocol, match_threshold, None, overlap.adapt)
    if len(resolved.match_thresholds) != 1:
        raise ConfigError(
            f"Expected one match threshold but protocol {resolved.name!r} averages over {len(resolved.match_thresholds)}; "
            "pass match_threshold=, one at a time."
        )
    of_list = get_metric(metric)
    given = Given.of_call(overlap, nms_threshold, resolved, more)
    batch = read_batch(scores, boxes, targets, areas=of_list.area is not None, given=given)
    threads = torch.get_num_threads()
    with explain_wait():
        prepared = prepare(batch, resolved, nms_threshold, threads, of_list)
        classes = run_threads(lambda c: class_steps(prepared, c, through_nms), range(batch.num_classes), threads)
    stacked = (
        [np.stack([steps[i] for _, steps in classes], axis=1) for i in range(4)] if classes else [np.zeros((0, 0))] * 4
    )
    return Steps(
        torch.tensor([value for value, _ in classes], dtype=torch.float64), *(_per_image(a, scores) for a in stacked)
    )


def _per_image(full: NDArray[np.float64], like: Sequence[Tensor]) -> list[Tensor]:
    if not len(like):
        return []
    return list(torch.from_numpy(full).to(like[0].device).split([len(s) for s in like]))


def nms(boxes: Tensor, scores: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """Greedy NMS in float64: kept indices by decreasing score, and who suppressed whom.

    A window is kept unless a kept, higher one overlaps it with IoU > threshold; equal scores rank by index.
    suppressor[b] is the highest kept window overlapping b, or -1 if b is kept.

    >>> boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0], [1.0, 0.0, 11.0, 10.0], [50.0, 0.0, 60.0, 10.0]])
    >>> keep, suppressor = nms(boxes, torch.tensor([0.5, 0.9, 0.1]), 0.3)
    >>> keep.tolist(), suppressor.tolist()
    ([1, 2], [1, -1, -1])
    """
    plain_threshold = check_nms_threshold(threshold)
    for name, given in (("boxes", boxes), ("scores", scores)):
        if not isinstance(given, Tensor):
            raise InputError(f"Expected {name} to be a tensor but got {type(given).__name__}.")
    refuse_unreadable(boxes, scores)
    if boxes.ndim != 2 or boxes.shape[1] != 4 or scores.shape != boxes.shape[:1]:
        raise InputError(
            f"Expected boxes (N, 4) and scores (N,) but got {tuple(boxes.shape)} and {tuple(scores.shape)}."
        )
    batch = make_batch(
        [scores.reshape(-1, 1)], [boxes], [{"boxes": boxes[:0], "labels": torch.zeros(0, dtype=torch.long)}], 1
    )
    with explain_wait():
        neighbours = neighbours_of(batch.boxes, batch.offsets, plain_threshold, 1)
        column = np.ascontiguousarray(batch.scores[:, 0])
        by_score = descending_order(column)
        suppressor = suppress(column, by_score, neighbours).suppressor[neighbours.number_of]
    keep = by_score[suppressor[by_score] < 0].astype(np.int64)
    who = np.full(len(suppressor), -1, dtype=np.int64)
    who[suppressor >= 0] = neighbours.index_of[suppressor[suppressor >= 0]]
    return torch.from_numpy(keep).to(boxes.device), torch.from_numpy(who).to(boxes.device)


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
        of_all = neighbours_of(boxes, offsets, nms_threshold, 1) if boxes.ndim == 2 else None
        kept = []
        for c, column in enumerate(columns):
            near = of_all or neighbours_of(np.ascontiguousarray(boxes[:, c]), offsets, nms_threshold, 1)
            highest = descending_order(column)[:candidates]
            suppressor = suppress(column, highest, near).suppressor[near.number_of[highest]]
            kept.append(highest[suppressor < 0].astype(np.int64))
    labels = np.repeat(np.arange(len(kept)), [len(k) for k in kept])
    index = np.concatenate(kept)
    kept_scores = columns[labels, index]
    order = descending_order(kept_scores)
    return torch.from_numpy(index[order]), torch.from_numpy(labels[order]), torch.from_numpy(kept_scores[order])
