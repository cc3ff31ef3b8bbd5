"""Mean average precision after NMS (Henderson & Ferrari 2016, Sec. 2.2): the value the loss trains for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stepgrad.errors import ConfigError, InputError, real_number
from stepgrad.kernels.class_view import ClassView
from stepgrad.kernels.jit import explain_wait
from stepgrad.kernels.nms import greedy_nms
from stepgrad.kernels.sorting import descending_order
from stepgrad.metric.arrange import Arrangement, arrange, layout_of
from stepgrad.metric.batch import Target, make_batch
from stepgrad.metric.class_values import class_values
from stepgrad.metric.protocol import PROTOCOLS, Protocol, get_protocol
from stepgrad.parallel import run_threads
from stepgrad.plain_tensors import refuse_unreadable


@dataclass(frozen=True)
class MAPResult:
    """mAP and the AP of each class (nan for a class that is left out because it has no objects)."""

    map: float
    ap: Tensor  # (K,) float64

    def __float__(self) -> float:
        return self.map


def resolve_protocol(
    protocol: str | Protocol, match_threshold: float | Sequence[float] | None, absent_classes: str | None
) -> Protocol:
    """A protocol with the caller's threshold(s) and treatment of absent classes instead of its own."""
    resolved = get_protocol(protocol)
    _refuse_limits(resolved)
    if match_threshold is not None:
        resolved = replace(resolved, match_thresholds=_thresholds(match_threshold))
    if absent_classes is not None:
        resolved = replace(resolved, absent_classes=absent_classes)  # type: ignore[arg-type]  # checked on creation
    return resolved


def _refuse_limits(protocol: Protocol) -> None:
    """Raise ConfigError for rules of final detections: windows have scores of any scale, and each class is on its own."""
    if not protocol.for_final_detections:
        return
    limit = f"max_detections {protocol.max_detections} over all classes of an image" if protocol.joins_classes else ""
    least = "" if protocol.min_score is None else f"min_score {protocol.min_score:g}"
    tail = 'tail "line"' if protocol.tail == "line" else ""
    federated = "federated" if protocol.federated else ""
    rules = ", ".join(filter(None, [limit, least, tail, federated]))
    near = f"{protocol.name.split('-')[0]}-unlimited"
    instead = f'protocol="{near}", the same without limits, or ' if near in PROTOCOLS else ""
    raise ConfigError(
        f"protocol {protocol.name!r} judges final detections: {rules} cannot be applied "
        f'to windows with raw scores. Use {instead}protocol="coco"; `sg.Evaluator` takes {protocol.name!r}.'
    )


def _thresholds(threshold: float | Sequence[float]) -> tuple[float, ...]:
    """One number or several as a tuple of floats."""
    several: tuple[object, ...] = (threshold,)
    if not isinstance(threshold, (int, float, str)):
        with suppress(TypeError):  # a number in an array or a tensor has no entries
            several = tuple(threshold)
    return tuple(real_number("match_threshold", t, "None, a number or several") for t in several)


def check_nms_threshold(nms_threshold: float | None) -> float | None:
    """The threshold as a plain float, or None (no NMS); raises ConfigError unless it is in [0, 1]."""
    if nms_threshold is None:
        return None
    threshold = real_number("nms_threshold", nms_threshold, "None or a number in [0, 1]")
    if not 0.0 <= threshold <= 1.0:
        raise ConfigError(f"Expected nms_threshold to be None or in [0, 1] but got {nms_threshold!r}.")
    return threshold


def mean_over_classes(ap: NDArray[np.float64], present: NDArray[np.bool_], absent_classes: str) -> float:
    """The mean, correctly rounded, over all classes ("zero") or those present ("skip"); 0 without any."""
    counted = ap if absent_classes == "zero" else ap[present]
    return math.fsum(counted.tolist()) / len(counted) if len(counted) else 0.0


def class_ap(arrangement: Arrangement, view: ClassView) -> float:
    """AP of a class, or another metric: the mean over the protocol's thresholds."""
    return mean_of(class_values(arrangement, view))


def mean_of(values: Sequence[float]) -> float:
    """The mean of a correctly rounded sum."""
    return math.fsum(values) / len(values)


def mean_average_precision(
    scores: Sequence[Tensor],
    boxes: Sequence[Tensor],
    targets: Sequence[Target],
    *,
    protocol: str | Protocol = "voc12",
    nms_threshold: float | None = 0.3,
    match_threshold: float | Sequence[float] | None = None,
    absent_classes: str | None = None,
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

    >>> window = torch.tensor([[0.0, 0.0, 10.0, 10.0], [20.0, 0.0, 30.0, 10.0]])
    >>> target = {"boxes": window[1:], "labels": torch.tensor([0])}
    >>> mean_average_precision([torch.tensor([[0.9], [0.4]])], [window], [target]).map
    0.5
    """
    nms_threshold = check_nms_threshold(nms_threshold)
    resolved = resolve_protocol(protocol, match_threshold, absent_classes)
    with explain_wait():
        arrangement = arrange(make_batch(scores, boxes, targets), resolved, nms_threshold)

        def of_class(c: int) -> tuple[float, int]:
            view = arrangement.view(c)
            return class_ap(arrangement, view), view.P

        ap_of_classes = run_threads(of_class, range(arrangement.batch.num_classes), arrangement.threads)
    ap = np.array([value for value, _ in ap_of_classes], dtype=np.float64)
    present = np.array([P > 0 for _, P in ap_of_classes], dtype=np.bool_)
    return result_of(ap, present, resolved.absent_classes)


def result_of(ap: NDArray[np.float64], present: NDArray[np.bool_], absent_classes: str) -> MAPResult:
    """The mean over classes, with classes left out of it shown as nan."""
    shown = ap if absent_classes == "zero" else np.where(present, ap, np.nan)
    return MAPResult(mean_over_classes(ap, present, absent_classes), torch.from_numpy(shown))


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
        layout = layout_of(batch.boxes, batch.offsets, plain_threshold, 1)
        slot_of, window_of = layout.slots.slot_of, layout.slots.window_of
        by_window = descending_order(np.ascontiguousarray(batch.scores[:, 0]))
        order = slot_of[by_window]
        suppressor = greedy_nms(order, layout.rows, len(layout.slots.image_of_word)).suppressor
    by = suppressor[slot_of]
    keep = by_window[by[by_window] < 0].astype(np.int64)
    who = (
        np.where(by >= 0, window_of[np.maximum(by, 0)], -1).astype(np.int64) if len(by) else np.zeros(0, dtype=np.int64)
    )
    return torch.from_numpy(keep).to(boxes.device), torch.from_numpy(who).to(boxes.device)
