"""The verdict of a protocol on every detection of a class, the AP that follows, and the rules protocols may differ in."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from stepgrad.engine.classes import prepare
from stepgrad.engine.jit import explain_wait
from stepgrad.engine.lists import judge_detections
from stepgrad.engine.matching import FALSE_POSITIVE, IGNORED, TRUE_POSITIVE
from stepgrad.engine.order import descending_order
from stepgrad.engine.overlaps import Areas
from stepgrad.evaluation.edges import seen_by
from stepgrad.evaluation.federated import in_checked_images, with_regions
from stepgrad.evaluation.records import Evidence
from stepgrad.metric.batch import Batch
from stepgrad.metric.boxes import areas_of
from stepgrad.metric.list_metric import ListMetric
from stepgrad.metric.metrics import AVERAGE_PRECISION
from stepgrad.metric.protocol import Protocol
from stepgrad.threads import run_threads

TieOrder = Literal["file", "image"]
"""How equal scores rank: in the order given ("file": the VOC devkit), or image after image ("image": pycocotools)."""

VERDICTS = {TRUE_POSITIVE: "true positive", FALSE_POSITIVE: "false positive", IGNORED: "ignored"}
RULES: dict[str, tuple[str, ...]] = {
    "clipping": ("clip",),
    "pixel offset": ("pixel_offset",),
    "overlaps": ("overlaps",),
    "equality": ("equality",),
    "duplicate rule": ("duplicates", "equal_overlaps"),
    "difficult": ("difficult",),
    "crowds": ("crowds",),
    "classes looked for": ("federated",),
    "least score": ("min_score",),
    "max detections": ("max_detections", "max_detections_of"),
    "ties": ("ties",),
    "IoU thresholds": ("match_thresholds",),
    "recall levels": ("recall_levels", "recall_grid"),
    "interpolation": ("interpolation", "integral", "tail"),
    "absent classes": ("absent_classes",),
}
"""Name of each rule, and the fields of `Protocol` it lives in. What makes a verdict comes before what makes the sum."""

VERDICT_RULES = (*list(RULES)[: list(RULES).index("ties")], "IoU thresholds")
"""Those that can change what is said about a detection. Ties change its place; the others only the sum."""

_ARITHMETIC = {"double": "double precision", "single": "single precision", "single_sizes": "boxes in single precision"}
_DIFFICULT = {"ignore": "ignored", "count": "count", "drop": "are removed"}


@dataclass(frozen=True)
class Counting:
    """A protocol, and the order in which it takes equal scores."""

    protocol: Protocol
    ties: TieOrder

    @classmethod
    def of(cls, protocol: Protocol) -> Counting:
        """Unless the protocol says it, COCO's matching comes with COCO's order of equal scores, VOC's with VOC's."""
        return cls(protocol, protocol.ties or ("image" if protocol.duplicates == "best_free" else "file"))


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


def taking_part(evidence: Evidence, protocol: Protocol) -> NDArray[np.bool_]:
    """(M,) detections that no limit over all classes leaves out: not too low, and among the highest of their image."""
    detections = evidence.detections
    takes_part = np.ones(len(detections), dtype=np.bool_)
    if protocol.min_score is not None:
        takes_part &= detections.scores >= protocol.min_score
    if protocol.max_detections is not None and protocol.max_detections_of == "image":
        ranked = descending_order(detections.scores)
        ranked = ranked[np.argsort(detections.images[ranked], kind="stable")]  # image by image, by decreasing score
        counts = np.bincount(detections.images, minlength=evidence.num_images)
        place = np.arange(len(ranked)) - np.repeat(np.cumsum(counts) - counts, counts)
        takes_part[ranked[place >= protocol.max_detections]] = False
    return takes_part


def judge(
    evidence: Evidence,
    counting: Counting,
    labels: Sequence[int] | None = None,
    metric: ListMetric = AVERAGE_PRECISION,
) -> list[ClassJudgement]:
    """Judge the classes (all, or those named); with AP of some sizes as the metric, objects of those sizes only."""
    evidence, ranked, takes_part = _seen_by(evidence, counting)
    chosen = range(evidence.num_classes) if labels is None else labels

    def of_class(c: int) -> ClassJudgement:
        part = takes_part[ranked[c]]
        judged = _judge_class(evidence, _within_class(counting.protocol), ranked[c][part], c, metric)
        return judged if part.all() else _with_left_out(judged, ranked[c], part)

    with explain_wait():
        return run_threads(of_class, chosen, torch.get_num_threads())


def _seen_by(evidence: Evidence, counting: Counting) -> tuple[Evidence, list[NDArray[np.int64]], NDArray[np.bool_]]:
    """The evidence as the protocol sees it, boxes of a known convention in its own; the classes ranked; and who takes part."""
    evidence = seen_by(evidence, counting.protocol)
    ranked, takes_part = ranked_by_class(evidence, counting.ties), taking_part(evidence, counting.protocol)
    if not counting.protocol.federated:
        return evidence, ranked, takes_part
    return with_regions(evidence), ranked, takes_part & in_checked_images(evidence)


def _within_class(protocol: Protocol) -> Protocol:
    """Without the limit that concerns all classes of an image, which has been applied."""
    return replace(protocol, max_detections=None) if protocol.joins_classes else protocol


def _with_left_out(judged: ClassJudgement, ranked: NDArray[np.int64], part: NDArray[np.bool_]) -> ClassJudgement:
    """Detections that took no part stand in their places of the ranked list, ignored."""
    verdicts = np.full((len(judged.verdicts), len(ranked)), IGNORED, dtype=np.int8)
    verdicts[:, part] = judged.verdicts
    return replace(judged, detections=ranked, verdicts=verdicts)


def _judge_class(
    evidence: Evidence, protocol: Protocol, ranked: NDArray[np.int64], label: int, metric: ListMetric
) -> ClassJudgement:
    one = prepare(**_class_batch(evidence, protocol, ranked, label), metric=metric).one_class(0)
    P, thresholds = one.rules.objects, len(one.rules.thresholds)
    counts, area_norm = replace(protocol, recall_levels=None).level_counts(P)
    verdicts, _, sums, area_sums = judge_detections(one, np.cumsum(counts))
    ap = sums / one.rules.norm if P else np.zeros(thresholds)
    area = area_sums / area_norm if P else np.zeros(thresholds)
    if protocol.tail == "line":
        ap += [_tail_ap(row, P, protocol) for row in verdicts]
    return ClassJudgement(
        label=label,
        detections=ranked,
        verdicts=verdicts,
        ap=ap,
        area_ap=math.fsum(area) / thresholds,
        P=P,
        ignored=len(one.objects.ignored) - P,
    )


def _tail_ap(verdicts: NDArray[np.int8], P: int, protocol: Protocol) -> float:
    counted = verdicts[verdicts != IGNORED]
    return protocol.tail_ap(int(np.count_nonzero(counted == TRUE_POSITIVE)), len(counted), P)


def _class_batch(evidence: Evidence, protocol: Protocol, ranked: NDArray[np.int64], label: int) -> dict[str, Any]:
    """The detections of one class as the windows of a batch without NMS: what `prepare` takes.

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
    return {"batch": batch, "protocol": protocol, "nms_threshold": None, "threads": 1, "areas": areas}


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
    if rule == "duplicate rule":
        return counting.protocol.duplicates, counting.protocol.last_of_equal_overlaps
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
    limit = "every detection" if p.max_detections is None else f"at most {p.max_detections} per image"
    words = {
        "clipping": "boxes cut at the image's edges" if p.clip else "boxes as they are",
        "pixel offset": f"adds {p.pixel_offset:g} to widths and heights",
        "overlaps": _ARITHMETIC[p.overlaps],
        "equality": "IoU >= threshold" if p.equality else "IoU > threshold",
        "duplicate rule": ("takes the best object" if p.duplicates == "best" else "takes the best object still free")
        + (f", the {p.equal_overlaps} of equals" if p.equal_overlaps else ""),
        "difficult": f"difficult objects {_DIFFICULT[p.difficult]}",
        "crowds": "crowds are regions" if p.crowds == "region" else "crowds are removed",
        "classes looked for": "those looked for in an image" if p.federated else "every class in every image",
        "least score": "any score" if p.min_score is None else f"scores of at least {p.min_score:g}",
        "max detections": limit + (" over all classes" if p.joins_classes else ""),
        "ties": "equal scores in the order given" if counting.ties == "file" else "equal scores image by image",
        "IoU thresholds": _thresholds(p.match_thresholds),
        "recall levels": "area" if p.recall_levels is None else f"{p.recall_levels} levels ({p.recall_grid})",
        "interpolation": _interpolation(p),
        "absent classes": "count as 0" if p.absent_classes == "zero" else "left out",
    }
    return words[rule]


def _thresholds(values: tuple[float, ...]) -> str:
    """A few are listed; of many the ends, and whether they are in single precision (0.55 has no exact float).

    >>> _thresholds((0.5, 0.75)), _thresholds((0.5, 0.55, 0.6, 0.65)), _thresholds((0.5, 0.550000011920929, 0.75, 0.8))
    ('0.5, 0.75', '0.5 to 0.65, 4 of them', '0.5 to 0.8, 4 of them in single precision')
    """
    single = any(t != round(t, 6) and t == float(np.float32(round(t, 6))) for t in values)
    of_what = " in single precision" if single else ""
    if len(values) < 4:
        return ", ".join(f"{t:g}" for t in values) + of_what
    return f"{values[0]:g} to {values[-1]:g}, {len(values)} of them{of_what}"


def _interpolation(p: Protocol) -> str:
    if p.recall_levels is None:
        return "none: the area"
    mean = "mean" if p.integral == "mean" else "trapezoid"
    tail = ", then a line to 0 at recall 1" if p.tail == "line" else ""
    return f"{mean} of the best precision at recall {'>=' if p.interpolation == 'reached' else '>'} level{tail}"
