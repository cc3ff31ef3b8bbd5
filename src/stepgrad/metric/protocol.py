"""How a detection benchmark counts: every convention as one field of a frozen dataclass."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stepgrad.errors import ConfigError, one_of, suggest

COCO_THRESHOLDS = tuple(float(t) for t in np.linspace(0.5, 0.95, 10))  # the very floats pycocotools compares with


@dataclass(frozen=True)
class Protocol:
    """The conventions by which detections become an average precision.

    >>> PROTOCOLS["voc07"].recall_levels
    11
    """

    name: str
    recall_levels: int | None
    """11 (VOC 2007) or 101 (COCO) evenly spaced recall levels; None integrates the whole area (VOC 2010 on)."""
    recall_grid: Literal["exact", "float"] = "exact"
    """"exact" takes level q/10 as the fraction; "float" as the product q * 0.1 in float64, which is one ulp high at
    0.3, 0.6 and 0.7, so that a recall of exactly 3/10 misses its level: what the Python tools do."""
    match_thresholds: tuple[float, ...] = (0.5,)
    """IoU thresholds; AP is the mean over them."""
    equality: bool = True
    """True: an IoU that equals the threshold is a match (>=). False: it is not (>)."""
    pixel_offset: float = 0.0
    """Added to x2 - x1 and y2 - y1: 1 for inclusive integer pixels, 0 for continuous boxes."""
    duplicates: Literal["best", "best_free"] = "best"
    """Which object a detection takes: "best" = the largest overlap even if taken (then it is a false positive; VOC);
    "best_free" = the largest overlap among objects still free, crowds reusable (COCO)."""
    difficult: Literal["ignore", "count"] = "ignore"
    """"ignore": difficult objects do not count, and a detection of one is neither true nor false positive."""
    absent_classes: Literal["zero", "skip"] = "zero"
    """A class without countable objects: AP 0 in the mean ("zero") or left out of it ("skip")."""
    max_detections: int | None = None
    """Per image and class, only this many highest-scored detections count."""

    def __post_init__(self) -> None:
        one_of("recall_grid", self.recall_grid, ["exact", "float"])
        one_of("duplicates", self.duplicates, ["best", "best_free"])
        one_of("difficult", self.difficult, ["ignore", "count"])
        one_of("absent_classes", self.absent_classes, ["zero", "skip"])
        if self.recall_levels is not None and self.recall_levels < 2:
            raise ConfigError(f"Expected recall_levels to be None or at least 2 but got {self.recall_levels!r}.")
        if not self.match_thresholds or not all(0.0 < t <= 1.0 for t in self.match_thresholds):
            raise ConfigError(f"Expected match_thresholds in (0, 1] but got {self.match_thresholds!r}.")
        if self.max_detections is not None and self.max_detections < 1:
            raise ConfigError(f"Expected max_detections to be None or at least 1 but got {self.max_detections!r}.")

    def level_counts(self, P: int) -> tuple[NDArray[np.int64], int]:
        """Integer weights of AP = sum_k count[k] * p_k / norm, k = 1..P (count[0] = 0), and the norm.

        >>> PROTOCOLS["voc07"].level_counts(2)   # levels 0 to .5 need one true positive, .6 to 1 need two
        (array([0, 6, 5]), 11)
        """
        if self.recall_levels is None:
            counts = np.ones(P + 1, dtype=np.int64)
            counts[0] = 0
            return counts, max(P, 1)
        counts = np.zeros(P + 1, dtype=np.int64)
        if P > 0:
            np.add.at(counts, self._first_reaching(P, self.recall_levels), 1)
        return counts, self.recall_levels

    def _first_reaching(self, P: int, levels: int) -> NDArray[np.int64]:
        """For each recall level, the number of true positives at which recall first reaches it; P + 1 = never."""
        q = np.arange(levels, dtype=np.int64)
        if self.recall_grid == "exact":
            return np.maximum(1, -(-q * P // (levels - 1)))
        grid = q * (1.0 / (levels - 1))
        grid[-1] = 1.0
        return np.searchsorted(np.arange(1, P + 1) / P, grid, side="left") + 1


VOC07 = Protocol("voc07", recall_levels=11)
VOC12 = Protocol("voc12", recall_levels=None)
COCO = Protocol(
    "coco",
    recall_levels=101,
    recall_grid="float",
    match_thresholds=COCO_THRESHOLDS,
    duplicates="best_free",
    absent_classes="skip",
    max_detections=100,
)
VOC07_DEVKIT = replace(VOC07, name="voc07-devkit", pixel_offset=1.0)
VOC12_DEVKIT = replace(VOC12, name="voc12-devkit", pixel_offset=1.0)
VOC07_PYTHON = replace(VOC07, name="voc07-python", pixel_offset=1.0, equality=False, recall_grid="float")

PROTOCOLS = {p.name: p for p in (VOC07, VOC12, COCO, VOC07_DEVKIT, VOC12_DEVKIT, VOC07_PYTHON)}


def get_protocol(protocol: str | Protocol) -> Protocol:
    """The protocol of that name, in capitals or not, or the protocol itself.

    >>> get_protocol("voc12").name, get_protocol("COCO").name
    ('voc12', 'coco')
    """
    if isinstance(protocol, Protocol):
        return protocol
    names = sorted(PROTOCOLS)
    if not isinstance(protocol, str):
        raise ConfigError(f"Expected a Protocol or one of {names} but got {protocol!r} ({type(protocol).__name__}).")
    if protocol.lower() in PROTOCOLS:
        return PROTOCOLS[protocol.lower()]
    raise ConfigError(f"Expected a Protocol or one of {names} but got {protocol!r}.{suggest(protocol.lower(), names)}")
