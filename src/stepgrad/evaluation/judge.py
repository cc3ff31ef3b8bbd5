"""The verdict of a protocol on every detection of a class, the AP that follows, and the rules protocols may differ in."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from stepgrad.evaluation.records import Evidence
from stepgrad.kernels.class_view import ClassView
from stepgrad.kernels.jit import explain_wait
from stepgrad.kernels.matching import FALSE_POSITIVE, IGNORED, TRUE_POSITIVE
from stepgrad.kernels.roles import roles_of_class
from stepgrad.kernels.sorting import descending_order
from stepgrad.metric.arrange import Areas, Arrangement, layout_of
from stepgrad.metric.batch import Batch
from stepgrad.metric.boxes import areas_of
from stepgrad.metric.class_values import class_average_precisions
from stepgrad.metric.list_metric import ListMetric
from stepgrad.metric.metrics import AVERAGE_PRECISION
from stepgrad.metric.protocol import Protocol
from stepgrad.parallel import run_threads

TieOrder = Literal["file", "image"]
"""How equal scores rank: in the order given ("file": the VOC devkit), or image after image ("image": pycocotools)."""

VERDICTS = {TRUE_POSITIVE: "true positive", FALSE_POSITIVE: "false positive", IGNORED: "ignored"}
RULES: dict[str, tuple[str, ...]] = {
    "pixel offset": ("pixel_offset",),
    "equality": ("equality",),
    "duplicate rule": ("duplicates",),
    "difficult": ("difficult",),
    "max detections": ("max_detections",),
    "ties": (),  # not a field of the protocol: the order in which equal scores are taken
    "match thresholds": ("match_thresholds",),
    "recall levels": ("recall_levels", "recall_grid"),
    "absent classes": ("absent_classes",),
}
"""Name of each rule, and the fields of `Protocol` it lives in."""

VERDICT_RULES = ("pixel offset", "equality", "duplicate rule", "difficult", "max detections", "match thresholds")
"""Those that can change what is said about a detection. Ties change its place; the others only the sum."""


@dataclass(frozen=True)
class Counting:
    """A protocol, and the order in which it takes equal scores, which is no field of `Protocol`."""

    protocol: Protocol
    ties: TieOrder

    @classmethod
    def of(cls, protocol: Protocol) -> Counting:
        """COCO's matching comes with COCO's order of equal scores, VOC's with VOC's."""
        return cls(protocol, "image" if protocol.duplicates == "best_free" else "file")


@dataclass(frozen=True)
class ClassJudgement:
    """Verdicts and AP of one class under one protocol."""

    label: int
    detections: NDArray[np.int64]  # (M,) rows of `Detections` by decreasing score
    verdicts: NDArray[np.int8]  # (thresholds, M) in that order
    ap: NDArray[np.float64]  # (thresholds,)
    area_ap: float  # mean over thresholds of the area under the curve, whatever recall levels the protocol has
    P: int
    ignored: int  # objects that do not count

    @property
    def mean_ap(self) -> float:
        """AP: the mean over thresholds, correctly rounded as the loss does it."""
        return math.fsum(self.ap.tolist()) / len(self.ap)


def ranked_by_class(evidence: Evidence, ties: TieOrder) -> list[NDArray[np.int64]]:
    """For each class its detections by decreasing score."""
    detections = evidence.detections
    sequence = np.arange(len(detections)) if ties == "file" else np.argsort(detections.images, kind="stable")
    ranked = sequence[descending_order(detections.scores[sequence])]
    labels = detections.labels[ranked]
    by_class = ranked[np.argsort(labels.astype(np.min_scalar_type(evidence.num_classes)), kind="stable")]
    return np.split(by_class, np.cumsum(np.bincount(labels, minlength=evidence.num_classes))[:-1])


def judge(evidence: Evidence, counting: Counting, labels: Sequence[int] | None = None) -> list[ClassJudgement]:
    """Judge the classes (all, or those named); boxes of a known convention are turned into the protocol's first."""
    evidence = evidence.seen_with(counting.protocol.pixel_offset)
    ranked = ranked_by_class(evidence, counting.ties)
    chosen = range(evidence.num_classes) if labels is None else labels
    with explain_wait():
        return run_threads(
            lambda c: _judge_class(evidence, counting.protocol, ranked[c], c), chosen, torch.get_num_threads()
        )


def area_average_precisions(
    evidence: Evidence, counting: Counting, metric: ListMetric
) -> list[tuple[list[float], int]]:
    """By class, AP at each threshold of objects of the metric's sizes only, and how many there are."""
    evidence = evidence.seen_with(counting.protocol.pixel_offset)
    ranked = ranked_by_class(evidence, counting.ties)

    def of_class(c: int) -> tuple[list[float], int]:
        arrangement, view = _class_view(evidence, counting.protocol, ranked[c], c, metric)
        return class_average_precisions(view, arrangement.rules), view.P

    with explain_wait():
        return run_threads(of_class, range(evidence.num_classes), torch.get_num_threads())


def _judge_class(evidence: Evidence, protocol: Protocol, ranked: NDArray[np.int64], label: int) -> ClassJudgement:
    arrangement, view = _class_view(evidence, protocol, ranked, label)
    rules = arrangement.rules
    ap = class_average_precisions(view, rules)
    area = ap if protocol.recall_levels is None else class_average_precisions(_with_area(view, protocol), rules)
    return ClassJudgement(
        label=label,
        detections=ranked,
        verdicts=roles_of_class(view, rules),
        ap=np.array(ap),
        area_ap=math.fsum(area) / len(area),
        P=view.P,
        ignored=len(view.objects.ignored) - view.P,
    )


def _class_view(
    evidence: Evidence,
    protocol: Protocol,
    ranked: NDArray[np.int64],
    label: int,
    metric: ListMetric = AVERAGE_PRECISION,
) -> tuple[Arrangement, ClassView]:
    """The detections of one class as the windows of a batch without NMS.

    Windows must lie image by image. Their scores serve only to order them, so each gets minus its rank.
    """
    detections, objects = evidence.detections, evidence.objects
    images = detections.images[ranked]
    rank = np.argsort(images, kind="stable")  # of each window
    counts = np.bincount(images, minlength=evidence.num_images)
    chosen = np.flatnonzero(objects.labels == label)
    batch = Batch(
        offsets=np.concatenate([[0], np.cumsum(counts)]),
        scores=-rank[:, None].astype(np.float64),
        boxes=detections.boxes[ranked[rank]],
        object_boxes=objects.boxes[chosen],
        object_labels=np.zeros(len(chosen), dtype=np.int64),
        object_images=objects.images[chosen],
        difficult=objects.difficult[chosen],
        crowd=objects.crowd[chosen],
        annotated_areas=objects.area[chosen],
    )
    sizes = detections.sizes[ranked[rank]], objects.sizes[chosen]
    areas = Areas(*(areas_of(written, protocol.pixel_offset) for written in sizes))
    layout = layout_of(batch.boxes, batch.offsets, None, 1)
    arrangement = Arrangement(batch, protocol, None, 1, layout, areas, metric=metric)
    return arrangement, arrangement.view(0)


def _with_area(view: ClassView, protocol: Protocol) -> ClassView:
    counts, norm = replace(protocol, recall_levels=None).level_counts(view.P)
    return view._replace(cumulative=np.cumsum(counts), norm=norm)


def differing(a: Counting, b: Counting) -> list[str]:
    """The rules in which two protocols differ.

    >>> from stepgrad.metric.protocol import VOC07_DEVKIT, VOC07_PYTHON
    >>> differing(Counting.of(VOC07_DEVKIT), Counting.of(VOC07_PYTHON))
    ['equality', 'recall levels']
    """
    return [rule for rule in RULES if setting(a, rule) != setting(b, rule)]


def setting(counting: Counting, rule: str) -> object:
    """The setting of one rule in a protocol."""
    if rule == "ties":
        return counting.ties
    return tuple(getattr(counting.protocol, name) for name in RULES[rule])


def switched(a: Counting, b: Counting, rules: Iterable[str]) -> Counting:
    """`a`, but with `b`'s settings of these rules."""
    rules = list(rules)
    names = [name for rule in rules for name in RULES[rule]]
    protocol = replace(a.protocol, **{name: getattr(b.protocol, name) for name in names})
    return Counting(protocol, b.ties if "ties" in rules else a.ties)


def describe_rule(counting: Counting, rule: str) -> str:
    """One rule in words.

    >>> from stepgrad.metric.protocol import COCO
    >>> describe_rule(Counting.of(COCO), "duplicate rule")
    'takes the best object still free'
    """
    p = counting.protocol
    words = {
        "pixel offset": f"adds {p.pixel_offset:g} to widths and heights",
        "equality": "IoU >= threshold" if p.equality else "IoU > threshold",
        "duplicate rule": "takes the best object" if p.duplicates == "best" else "takes the best object still free",
        "difficult": "difficult objects ignored" if p.difficult == "ignore" else "difficult objects count",
        "max detections": "every detection" if p.max_detections is None else f"at most {p.max_detections} per image",
        "ties": "equal scores in the order given" if counting.ties == "file" else "equal scores image by image",
        "match thresholds": _thresholds(p.match_thresholds),
        "recall levels": "area" if p.recall_levels is None else f"{p.recall_levels} levels ({p.recall_grid})",
        "absent classes": "count as 0" if p.absent_classes == "zero" else "left out",
    }
    return words[rule]


def _thresholds(values: tuple[float, ...]) -> str:
    if len(values) < 4:
        return ", ".join(f"{t:g}" for t in values)
    return f"{values[0]:g} to {values[-1]:g}, {len(values)} of them"
