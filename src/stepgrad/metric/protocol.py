"""How a detection benchmark counts: every convention as one field of a frozen dataclass."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stepgrad.errors import ConfigError, one_of, suggest

COCO_THRESHOLDS = tuple(float(t) for t in np.linspace(0.5, 0.95, 10))  # the very floats pycocotools compares with
SINGLE_THRESHOLDS = tuple(float(np.float32(t)) for t in COCO_THRESHOLDS)  # those of tools that make them with torch


@dataclass(frozen=True)
class Protocol:
    """The rules by which an average precision is computed from detections.

    >>> PROTOCOLS["voc07"].recall_levels
    11
    """

    name: str
    recall_levels: int | None
    """11 (VOC 2007) or 101 (COCO) evenly spaced recall levels; None integrates the whole area (VOC 2010 on)."""
    recall_grid: Literal["exact", "float", "single"] = "exact"
    """"exact" takes level q/10 as the fraction; "float" as the product q * 0.1 in float64, which is one ulp high at
    0.3, 0.6 and 0.7, so that a recall of exactly 3/10 misses its level: what the Python tools do; "single" as torch's
    float32."""
    interpolation: Literal["reached", "passed"] = "reached"
    """Which precision stands at a recall level: the best of those at a recall of at least the level ("reached"), or of
    more than it ("passed"). The latter is what `np.interp` makes of the interpolated curve: on the way to the next true
    positive the curve is flat, and at a recall that is a level it takes the last of several values."""
    integral: Literal["mean", "trapezoid"] = "mean"
    """The mean over the recall levels, or their trapezoid: the first and the last level weigh half."""
    match_thresholds: tuple[float, ...] = (0.5,)
    """IoU thresholds; AP is the mean over them. Under nearness "distance" they are distances."""
    nearness: Literal["overlap", "distance"] = "overlap"
    """What a window and an object are compared by: an overlap in [0, 1], the larger the better, or a distance, the smaller
    the better (nuScenes)."""
    equality: bool = True
    """True: an IoU that equals the threshold is a match (>=). False: it is not (>)."""
    tail: Literal["zero", "line"] = "zero"
    """Precision at recall levels beyond the recall that was reached: none ("zero"), or a straight line from the precision
    of the last detection down to none at a recall of 1 ("line"), which `np.interp` draws by default."""
    clip: bool = False
    """True: boxes are cut at the edges of their image before they are counted, where its size is known: annotation files
    give it, `Evaluator` is not told."""
    pixel_offset: float = 0.0
    """Added to x2 - x1 and y2 - y1: 1 for inclusive integer pixels, 0 for continuous boxes."""
    overlaps: Literal["double", "single", "single_sizes"] = "double"
    """The numbers that overlaps are computed in: float64; float32 throughout, with 1e-7 added to the union ("single"); or
    float64 from float32 boxes whose widths and heights were taken in float32 ("single_sizes")."""
    mask_size: int | None = None
    """Masks are compared at this many pixels of the image's longer side (ultralytics: a quarter of the network's input), or as
    the tool counted them, where files say how (`save_counted`); None: as they are."""
    mask_edges: Literal["half", "whole"] = "half"
    """Which pixels of a resized mask lie inside: where interpolation exceeds a half, or only where it is 1 ("whole": `yolo val`
    cuts off decimals when it saves masks). It matters where files say how masks were counted."""
    hidden: Literal["kept", "smaller"] = "kept"
    """Pixels that several objects cover: they belong to each ("kept"), or to the smallest alone ("smaller")."""
    poses: Literal["annotated", "box"] = "annotated"
    """"annotated": the area of a pose is the object's, and objects without labelled keypoints are not counted (COCO). "box":
    the area is 0.53 of the box's, and such objects count, though nothing can find them (ultralytics)."""
    oriented: Literal["polygon", "gauss"] = "polygon"
    """What oriented boxes are compared by: the IoU of polygons, or probIoU, which takes them as Gaussians (ultralytics)."""
    duplicates: Literal["best", "best_free"] = "best"
    """Which object a detection takes: "best" = the largest overlap even if taken (then it is a false positive; VOC);
    "best_free" = the largest overlap among objects still free, crowds reusable (COCO)."""
    equal_overlaps: Literal["first", "last"] | None = None
    """Which of several objects of the same overlap; None: the first under "best" (the devkit), the last under
    "best_free" (pycocotools)."""
    difficult: Literal["ignore", "count", "drop"] = "ignore"
    """"ignore": difficult objects are not counted, and a detection of one is neither a true nor a false positive. "count": they
    are objects like others. "drop": as if not annotated, so a detection of one is a false positive."""
    crowds: Literal["region", "drop"] = "region"
    """"region": under "best_free" a crowd absorbs any number of detections, under "best" it is an object like others.
    "drop": as if not annotated."""
    absent_classes: Literal["zero", "skip"] = "zero"
    """A class without countable objects: AP 0 in the mean ("zero") or left out of it ("skip")."""
    max_detections: int | None = None
    """Per image, only this many highest-scored detections count."""
    max_detections_of: Literal["class", "image"] = "class"
    """Whether this is the limit per class of an image, or for all its classes together."""
    federated: bool = False
    """True: detections of a class count only in images where it was looked for, and where not all of its objects are
    annotated, a detection that finds none is neither right nor wrong. Detections without area do not count (LVIS)."""
    min_score: float | None = None
    """Detections with a lower score are not counted."""
    ties: Literal["file", "image"] | None = None
    """How equal scores rank: in the order given ("file"), or image after image ("image"). None: "file" under "best",
    "image" under "best_free"."""

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if name not in _MAY_BE_NONE or getattr(self, name) is not None:
                one_of(name, getattr(self, name), choices)
        if self.recall_levels is not None and self.recall_levels < 2:
            raise ConfigError(f"Expected recall_levels to be None or at least 2 but got {self.recall_levels!r}.")
        most, bounds = (1.0, "in (0, 1]") if self.nearness == "overlap" else (np.finfo(np.float64).max, "above 0")
        if not self.match_thresholds or not all(0.0 < t <= most for t in self.match_thresholds):
            raise ConfigError(f"Expected match_thresholds {bounds} but got {self.match_thresholds!r}.")
        if self.max_detections is not None and self.max_detections < 1:
            raise ConfigError(f"Expected max_detections to be None or at least 1 but got {self.max_detections!r}.")
        if self.min_score is not None and not np.isfinite(self.min_score):
            raise ConfigError(f"Expected min_score to be None or a finite number but got {self.min_score!r}.")

    @property
    def last_of_equal_overlaps(self) -> bool:
        """Whether of objects with the same overlap a detection takes the last."""
        return (self.equal_overlaps or ("first" if self.duplicates == "best" else "last")) == "last"

    @property
    def cuts(self) -> tuple[float, ...]:
        """The thresholds as numbers of which more is better: distances are compared by their negatives, which is exact."""
        return self.match_thresholds if self.nearness == "overlap" else tuple(-t for t in self.match_thresholds)

    @property
    def tie_order(self) -> str:
        """How equal scores rank: unless `ties` says it, COCO's matching comes with COCO's order, VOC's with VOC's."""
        return self.ties or ("image" if self.duplicates == "best_free" else "file")

    @property
    def joins_classes(self) -> bool:
        """Whether the detections of one class can push out those of another."""
        return self.max_detections is not None and self.max_detections_of == "image"

    @property
    def for_final_detections(self) -> bool:
        """Whether it has rules that cannot be applied to windows with raw scores, class by class, as losses see them."""
        limited = self.joins_classes or self.min_score is not None
        return limited or self.tail == "line" or self.federated or self.clip

    def level_counts(self, P: int) -> tuple[NDArray[np.int64], int]:
        """Integer weights of AP = sum_k count[k] * p_k / norm, k = 1..P (count[0] = 0), and the norm.

        >>> PROTOCOLS["voc07"].level_counts(2)   # levels 0 to .5 need one true positive, .6 to 1 need two
        (array([0, 6, 5]), 11)
        """
        if self.recall_levels is None:
            counts = np.ones(P + 1, dtype=np.int64)
            counts[0] = 0
            return counts, max(P, 1)
        weights, norm = self._weights(self.recall_levels)
        counts = np.zeros(P + 2, dtype=np.int64)
        if P > 0:
            np.add.at(counts, self._true_positives_needed(P, self.recall_levels), weights)
        return counts[:-1], norm

    def tail_ap(self, T: int, detections: int, P: int) -> float:
        """What the levels beyond the recall reached add to AP, of T true positives among so many counted detections.

        >>> half = replace(ULTRALYTICS_OLD, name="four levels", recall_levels=5)
        >>> half.tail_ap(T=1, detections=2, P=2)   # from (0.5, 0.5) to (1, 0): 0.5 at level 0.5, 0.25 at level 0.75
        0.1875
        """
        if self.tail == "zero" or self.recall_levels is None or T == 0 or T >= P:
            return 0.0
        levels = np.arange(self.recall_levels) / (self.recall_levels - 1)
        if self.recall_grid != "exact":
            levels = self._float_levels(self.recall_levels)
        beyond = self._true_positives_needed(P, self.recall_levels) > T
        line = T / detections * (1.0 - levels) / (1.0 - T / P)
        weights, norm = self._weights(self.recall_levels)
        return math.fsum((weights * line)[beyond].tolist()) / norm

    def _weights(self, levels: int) -> tuple[NDArray[np.int64], int]:
        """Of each level, and of all; those of a trapezoid in halves, to stay with whole numbers."""
        if self.integral == "mean":
            return np.ones(levels, dtype=np.int64), levels
        weights = np.full(levels, 2, dtype=np.int64)
        weights[[0, -1]] = 1
        return weights, 2 * (levels - 1)

    def _true_positives_needed(self, P: int, levels: int) -> NDArray[np.int64]:
        """For each recall level, how many true positives reach (or pass) it; P + 1 = no number does."""
        q = np.arange(levels, dtype=np.int64)
        if self.recall_grid == "exact":
            if self.interpolation == "passed":
                return q * P // (levels - 1) + 1
            return np.maximum(1, -(-q * P // (levels - 1)))
        side: Literal["left", "right"] = "left" if self.interpolation == "reached" else "right"
        return np.searchsorted(np.arange(1, P + 1) / P, self._float_levels(levels), side=side) + 1

    def _float_levels(self, levels: int) -> NDArray[np.float64]:
        q = np.arange(levels, dtype=np.int64)
        if self.recall_grid == "float":
            grid = q.astype(np.float64) * (1.0 / (levels - 1))
            grid[-1] = 1.0
            return grid
        # torch.linspace counts up from 0 and, from the middle on, down from 1; each is rounded once where the CPU has
        # instructions that multiply and add at once, as all recent ones do.
        step = float(np.float32(1.0) / np.float32(levels - 1))
        return (
            np.where(2 * q < levels - 1, q * step, 1.0 - (levels - 1 - q) * step).astype(np.float32).astype(np.float64)
        )


_CHOICES = {
    "recall_grid": ["exact", "float", "single"],
    "interpolation": ["reached", "passed"],
    "integral": ["mean", "trapezoid"],
    "tail": ["zero", "line"],
    "nearness": ["overlap", "distance"],
    "overlaps": ["double", "single", "single_sizes"],
    "mask_edges": ["half", "whole"],
    "hidden": ["kept", "smaller"],
    "poses": ["annotated", "box"],
    "oriented": ["polygon", "gauss"],
    "duplicates": ["best", "best_free"],
    "equal_overlaps": ["first", "last"],
    "difficult": ["ignore", "count", "drop"],
    "crowds": ["region", "drop"],
    "absent_classes": ["zero", "skip"],
    "max_detections_of": ["class", "image"],
    "ties": ["file", "image"],
}
_MAY_BE_NONE = ("equal_overlaps", "ties")


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
LVIS = replace(COCO, name="lvis", max_detections=300, max_detections_of="image", federated=True)
# torchmetrics hands its numbers to pycocotools, but makes thresholds and levels with torch, and widths from float32 boxes.
TORCHMETRICS = replace(
    COCO, name="torchmetrics", match_thresholds=SINGLE_THRESHOLDS, recall_grid="single", overlaps="single_sizes"
)
# What `yolo val` prints from version 8.4.176 on. Its own NMS has already left at most 300 detections per image that score
# more than 0.001; files hold rounded scores, so one of exactly 0.001 counts. Its label files know neither crowds nor
# difficult objects.
ULTRALYTICS = replace(
    COCO,
    name="ultralytics",
    match_thresholds=SINGLE_THRESHOLDS,
    interpolation="passed",
    integral="trapezoid",
    overlaps="single",
    mask_size=160,
    hidden="smaller",
    poses="box",
    oriented="gauss",
    equal_overlaps="first",
    difficult="drop",
    crowds="drop",
    max_detections=300,
    max_detections_of="image",
    min_score=0.001,
    ties="file",
)
# Versions 8.4.37 to 8.4.175: a detection has its best object or none.
ULTRALYTICS_8_4 = replace(ULTRALYTICS, name="ultralytics-8.4", duplicates="best", equal_overlaps="last")
# Versions 8.3.168 to 8.4.36: the curve also continues to recall 1.
ULTRALYTICS_8_3 = replace(ULTRALYTICS_8_4, name="ultralytics-8.3", tail="line")
# Versions up to 8.3.167 count the boxes that they save; later ones count them before they are cut at the image's edges.
ULTRALYTICS_OLD = replace(ULTRALYTICS_8_3, name="ultralytics-old", clip=True)
# The second table of `yolo val save_json=True`: pycocotools on the boxes, masks and poses saved.
ULTRALYTICS_JSON = replace(COCO, name="ultralytics-json", clip=True, mask_edges="whole")
# The same without limits: what a loss can train for.
ULTRALYTICS_UNLIMITED = replace(ULTRALYTICS, name="ultralytics-unlimited", max_detections=None, min_score=None)
# DOTA_devkit for oriented boxes: VOC's rules with an overlap that has to exceed 0.5; the first with 11 points.
DOTA07 = replace(VOC07_PYTHON, name="dota07", pixel_offset=0.0, absent_classes="skip")
DOTA = replace(DOTA07, name="dota", recall_levels=None, recall_grid="exact")
# ActivityNet's eval_detection.py for segments of time: the area, at COCO's thresholds, the best object that is free.
ACTIVITYNET = replace(
    COCO, name="activitynet", recall_levels=None, recall_grid="exact", max_detections=None, ties="file"
)

PROTOCOLS = {
    p.name: p
    for p in (
        *(VOC07, VOC12, COCO, VOC07_DEVKIT, VOC12_DEVKIT, VOC07_PYTHON),
        *(LVIS, TORCHMETRICS, ULTRALYTICS, ULTRALYTICS_8_4, ULTRALYTICS_8_3, ULTRALYTICS_OLD),
        *(ULTRALYTICS_JSON, ULTRALYTICS_UNLIMITED, DOTA07, DOTA, ACTIVITYNET),
    )
}

OTHER_NAMES = {
    **dict.fromkeys(("yolo", "yolov5", "yolov8", "yolo11", "yolov11"), "ultralytics"),
    **dict.fromkeys(("pycocotools", "coco-eval", "mscoco", "detectron2", "map50-95"), "coco"),
    **dict.fromkeys(("voc", "pascal", "pascal-voc", "pascal_voc"), "voc12"),
}
"""Tools and datasets by which people call a protocol; they get a suggestion, since each has had several rules."""


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
    close = suggest(OTHER_NAMES.get(protocol.lower(), protocol), names)
    raise ConfigError(f"Expected a Protocol or one of {names} but got {protocol!r}.{close}")
