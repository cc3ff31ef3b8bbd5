"""Mean average precision of a batch of scored windows (Henderson & Ferrari 2016, Sec. 2.2), class by class."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from numpy.typing import NDArray

from stepgrad.metric.protocol import Protocol, get_protocol
from stepgrad.reference.class_ap import ClassScene, class_ap, describe_class

Array = NDArray[Any]


@dataclass(frozen=True)
class Batch:
    """What the library takes, as NumPy arrays: one entry per image."""

    scores: list[Array]  # (N, K)
    boxes: list[Array]  # (N, 4), or (N, K, 4) with one box per class
    targets: list[dict[str, Array]]  # boxes (G, 4), labels (G,) and, if wanted, difficult (G,) and iscrowd (G,)
    overlaps: list[Array] | None = None  # (N, G) of windows with objects, in place of the boxes' IoU
    likeness: list[Array] | None = None  # (N, N) of windows, for NMS, in place of the boxes' IoU

    @property
    def K(self) -> int:
        return self.scores[0].shape[1]

    def column(self, label: int) -> list[list[float]]:
        """The scores of one class as plain numbers."""
        return [s[:, label].tolist() for s in self.scores]

    def windows(self) -> list[tuple[int, int, int]]:
        """(image, window, class) of every score."""
        return [(i, b, c) for i, s in enumerate(self.scores) for b in range(s.shape[0]) for c in range(s.shape[1])]


class Options(NamedTuple):
    """The settings of the metric and of its pseudogradient, by the names the library gives them."""

    protocol: str | Protocol = "voc12"
    nms_threshold: float | None = 0.3
    match_threshold: float | None = None  # the protocol's own
    through_nms: str = "exact"
    estimator: str = "mee"
    radius: float = 1.0
    min_step: float = 0.0
    absent_classes: str | None = None  # the protocol's own
    balance: str = "none"

    def thresholds(self) -> tuple[float, ...]:
        if self.match_threshold is not None:
            return (self.match_threshold,)
        return get_protocol(self.protocol).cuts

    def skips_absent_classes(self) -> bool:
        return (self.absent_classes or get_protocol(self.protocol).absent_classes) == "skip"


def scene_of(batch: Batch, label: int, options: Options, threshold: float) -> ClassScene:
    """One class of the batch, judged at one match threshold."""
    protocol = get_protocol(options.protocol)
    return describe_class(
        batch.boxes,
        batch.targets,
        label,
        protocol,
        threshold,
        options.nms_threshold,
        overlaps=batch.overlaps,
        likeness=batch.likeness,
    )


def batch_ap(batch: Batch, options: Options) -> list[float]:
    """AP of each class; the mean over thresholds where there are several, and 0 for a class without objects.

    >>> import numpy as np
    >>> boxes = np.array([[0.0, 0, 10, 10], [20.0, 0, 30, 10]])
    >>> batch = Batch([np.array([[0.9], [0.4]])], [boxes], [{"boxes": boxes[1:], "labels": np.array([0])}])
    >>> batch_ap(batch, Options())      # the false alarm stands above the object
    [0.5]
    """
    means = []
    for c in range(batch.K):
        values = [class_ap(scene_of(batch, c, options, t), batch.column(c)).rounded for t in options.thresholds()]
        means.append(math.fsum(values) / len(values))
    return means


def counted_classes(batch: Batch, options: Options) -> list[int]:
    """The classes that enter the mean: all of them, or those with countable objects."""
    everything = range(batch.K)
    if not options.skips_absent_classes():
        return list(everything)
    return [c for c in everything if scene_of(batch, c, options, options.thresholds()[0]).P > 0]


def shown_ap(batch: Batch, options: Options) -> list[float]:
    """AP of each class as it is reported: nan for a class that is left out of the mean."""
    counted = counted_classes(batch, options)
    return [value if c in counted else math.nan for c, value in enumerate(batch_ap(batch, options))]


def batch_map(batch: Batch, options: Options) -> float:
    """Mean AP over the classes that count; 0 when none does."""
    ap = batch_ap(batch, options)
    counted = counted_classes(batch, options)
    return math.fsum(ap[c] for c in counted) / len(counted) if counted else 0.0
