"""What holds mAP back: a ladder of bounds, each the mAP of the same detections with one more kind of mistake undone.

    now                  the detections as they are
    without duplicates   less those that find nothing at any threshold and overlap an object that another detection has found
    without background   less those, too, that find nothing at any threshold and overlap no object by as much as `background`
    perfect order        all detections, those that find an object first, by how much they overlap it: no score could be better
    perfect NMS          the same for windows before NMS: each scored by its overlap with an object of its class, then NMS
    every window         the same for all windows, without NMS, each a detection of every class that it overlaps an object of
    recall ceiling       objects that some window overlaps by the lowest threshold, found by perfect boxes and nothing else

Types of mistakes are those of `errors_by_type.py`, at the protocol's lowest threshold. Each rung changes the evidence and asks
the evaluator; nothing is matched in another way. The first three rungs can only rise: a detection that finds nothing at any
threshold takes no object from another. From the perfect order on, matching the best overlaps first need not find the most
objects, so a class keeps the AP of the rung below where that is higher: its order is an order of the same boxes, too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stepgrad.engine.neighbours import Neighbours, given_neighbours, neighbours_of
from stepgrad.engine.nms import suppress
from stepgrad.engine.order import descending_order
from stepgrad.errors import ConfigError
from stepgrad.evaluation.counted import countable, counted_overlaps
from stepgrad.evaluation.edges import seen_by
from stepgrad.evaluation.errors_by_type import TYPES, find_mistakes, rows_by_image
from stepgrad.evaluation.judge import NOTHING, judge, taking_part
from stepgrad.evaluation.likely_mistakes import mistake_in_scores
from stepgrad.evaluation.plots import plot_ladder
from stepgrad.evaluation.records import Detections, Evidence
from stepgrad.evaluation.tables import plain_table
from stepgrad.metric.options import check_nms_threshold
from stepgrad.metric.over_classes import mean_over_classes
from stepgrad.metric.protocol import Protocol
from stepgrad.number_text import per_cent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]
_BACKGROUND = 0.1
_CLEAR = 0.01  # mAP below which nothing is advised


@dataclass(frozen=True)
class Rung:
    """One step of the ladder."""

    name: str
    map: float
    how: str
    """What the detections are on this rung."""


@dataclass(frozen=True)
class Explanation:
    """The ladder of bounds, and the advice that follows from it. `print` shows a table."""

    protocol: str
    images: int
    detections: int
    rungs: tuple[Rung, ...]
    cut: str
    """What the scores say about a confidence threshold; empty if they say nothing."""

    def __getitem__(self, name: str) -> float:
        """mAP on a rung."""
        return next(rung.map for rung in self.rungs if rung.name == name)

    @property
    def losses(self) -> dict[str, float]:
        """mAP lost by each cause: together they are what mAP lacks to 1."""
        values = {rung.name: rung.map for rung in self.rungs}
        kept = values.get("perfect NMS", values["perfect order"])
        return {
            "ranking": values["perfect order"] - values["now"],
            "NMS": kept - values["perfect order"],
            "labels": values["every window"] - kept,
            "boxes": values["recall ceiling"] - values["every window"],
            "objects": 1.0 - values["recall ceiling"],
        }

    @property
    def advice(self) -> str:
        """What to do about the largest loss; about a confidence threshold first, which makes all others look small."""
        return f"{self.first} Then {self.then}" if self.cut else self.then

    @property
    def first(self) -> str:
        """What the scores say about a confidence threshold, as a sentence; empty if they say nothing."""
        return f"threshold first: {self.cut}." if self.cut else ""

    @property
    def then(self) -> str:
        """What to do about the largest loss."""
        cause, loss = max(self.losses.items(), key=lambda item: item[1])
        largest = (
            f"{cause}: {per_cent(loss)} points are lost {_ADVICE[cause]}"
            if loss >= _CLEAR
            else "nothing: less than a point is lost by any one cause"
        )
        return f"{largest}."

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Headings, and a row per rung; mAP in per cent."""
        below = [self.rungs[0].map, *(rung.map for rung in self.rungs)]
        rows = [
            [rung.name, per_cent(rung.map), per_cent(rung.map - before, sign=True) if i else "", rung.how]
            for i, (rung, before) in enumerate(zip(self.rungs, below, strict=False))
        ]
        return ["bound", "mAP", "gain", "detections"], rows

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for json."""
        return {
            "protocol": self.protocol,
            "images": self.images,
            "detections": self.detections,
            "rungs": [dict(vars(rung)) for rung in self.rungs],
            "losses": self.losses,
            "cut": self.cut,
            "advice": self.advice,
        }

    def plot(self, path: str | Path | None = None) -> Figure:
        """The ladder as bars in a matplotlib figure, written to `path` if given."""
        title = f"What holds mAP back ({self.protocol}, {self.images} images)"
        return plot_ladder({rung.name: rung.map for rung in self.rungs}, title, path)

    def __str__(self) -> str:
        title = f"{self.protocol}, {self.images} images, {self.detections} detections: what holds mAP back"
        return "\n".join(line for line in (title, self.first, plain_table(*self.table()), self.then) if line)


_ADVICE = {
    "ranking": "by order within classes: train the head for mAP, or try task-aligned labels",
    "NMS": "to better boxes that NMS suppresses: let scores follow the overlap (train for mAP through NMS), or choose another "
    "NMS threshold",
    "labels": "where an object is covered by windows of other classes only: see which with `stepgrad evaluate --errors true`, "
    "and look at the labels of these classes",
    "boxes": "by boxes that fit loosely: train the box regression by overlap, or with larger images",
    "objects": "on objects that no window overlaps enough: use more windows or larger images, and look at these labels",
}


def explain(
    evidence: Evidence, protocol: Protocol, nms_threshold: float | None = None, background: float = _BACKGROUND
) -> Explanation:
    """The ladder of bounds of some detections under a protocol.

    Args:
        evidence: detections and objects, such as `Evaluator.evidence()`.
        protocol: how they are judged.
        nms_threshold: if the detections are windows before NMS, the overlap above which the higher of two of a class
            suppresses the lower; "now" is what NMS leaves. None: the detections are final.
        background: overlap below which a detection is on no object.
    """
    if protocol.nearness == "distance":
        raise ConfigError("Expected a protocol of overlaps but got one of distances, which have no perfect score.")
    threshold = min(protocol.match_thresholds)
    nms_threshold = check_nms_threshold(nms_threshold)
    final = evidence if nms_threshold is None else _after_nms(evidence, nms_threshold)
    final = _only(final, taking_part(final, protocol))
    # Limits that concern scores or all classes have been applied: other scores must not bring them back.
    limit = None if protocol.joins_classes else protocol.max_detections
    protocol = replace(protocol, min_score=None, max_detections=limit)
    ladder = _Ladder(evidence, protocol)
    ladder.climb("now", final, "as they are")
    useless = _useless(final, protocol, threshold, min(background, threshold / 2))
    rest = np.ones(len(final.detections), dtype=np.bool_)
    for kind, how in (("duplicate", "less duplicates"), ("background", "less those on background, too")):
        rest &= ~useless[kind]
        ladder.climb(f"without {kind}{'s' if kind == 'duplicate' else ''}", _only(final, rest), how)
    ladder.climb("perfect order", _in_perfect_order(final, protocol), "all, the best overlaps first")
    pairs = _pairs(evidence, protocol)
    if nms_threshold is not None:
        scored = _scored(evidence, _best_overlaps(evidence, pairs))
        kept = _in_perfect_order(_after_nms(scored, nms_threshold), protocol)
        ladder.climb("perfect NMS", kept, "all windows, scored by overlap, then NMS")
    relabelled = _of_every_class(evidence, pairs, threshold)
    ladder.climb("every window", _in_perfect_order(relabelled, protocol), "all windows, of any class, without NMS")
    ladder.climb(
        "recall ceiling", _perfect_boxes(evidence, protocol, pairs), "perfect boxes of objects that have a window"
    )
    return Explanation(
        protocol=protocol.name,
        images=evidence.num_images,
        detections=len(final.detections),
        rungs=tuple(ladder.rungs),
        cut=mistake_in_scores(evidence.detections.scores) if len(evidence.detections) else "",
    )


class _Ladder:
    """Rungs so far, and the AP of each class on the last of them."""

    def __init__(self, evidence: Evidence, protocol: Protocol) -> None:
        self.protocol = protocol
        self.rungs: list[Rung] = []
        self._ap = np.zeros(evidence.num_classes)

    def climb(self, name: str, evidence: Evidence, how: str) -> None:
        """Add a rung: the evaluator's mAP of this evidence."""
        judged = judge(evidence, self.protocol)
        ap = np.array([row.mean_ap for row in judged], dtype=np.float64)
        self._ap = ap if len(self.rungs) < 3 else np.maximum(ap, self._ap)
        present = np.array([row.P > 0 for row in judged], dtype=np.bool_)
        self.rungs.append(Rung(name, mean_over_classes(self._ap, present, self.protocol.absent_classes), how))


def _only(evidence: Evidence, rows: NDArray[Any]) -> Evidence:
    """The evidence with some of its detections."""
    rows = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
    return replace(evidence, detections=evidence.detections.take(rows, evidence.overlap))


def _scored(evidence: Evidence, scores: Floats) -> Evidence:
    return replace(evidence, detections=replace(evidence.detections, scores=scores))


def _useless(
    evidence: Evidence, protocol: Protocol, threshold: float, background: float
) -> dict[str, NDArray[np.bool_]]:
    """(M,) by type of mistake, the detections of that type that find nothing at any threshold."""
    never = np.ones(len(evidence.detections), dtype=np.bool_)
    for row in judge(evidence, protocol):
        never[row.detections] = (row.found == NOTHING).all(axis=0)
    types = find_mistakes(evidence, protocol, threshold, background).of_detections
    return {kind: never & (types == TYPES.index(kind)) for kind in ("duplicate", "background")}


@dataclass(frozen=True)
class _Pairs:
    """Detections and objects of one image that overlap."""

    detection: NDArray[np.int64]
    object: NDArray[np.int64]
    overlap: Floats


def _pairs(evidence: Evidence, protocol: Protocol) -> _Pairs:
    """Every detection with every object that counts, of whatever classes, as the protocol sees them."""
    seen = seen_by(evidence, protocol)
    there = np.flatnonzero(countable(seen, protocol))
    parts = [np.zeros((3, 0))]
    images = seen.num_images
    rows_of = rows_by_image(np.arange(len(seen.detections)), seen.detections.images, images)
    for rows, near in zip(rows_of, rows_by_image(there, seen.objects.images, images), strict=True):
        if len(rows) and len(near):
            table = counted_overlaps(seen, rows, near, protocol)
            i, j = np.nonzero(table > 0.0)
            parts.append(np.stack([rows[i], near[j], table[i, j]]))
    detection, of_object, overlap = np.concatenate(parts, axis=1)
    return _Pairs(detection.astype(np.int64), of_object.astype(np.int64), overlap)


def _best_overlaps(evidence: Evidence, pairs: _Pairs) -> Floats:
    """(M,) the largest overlap of each detection with an object of its class."""
    best = np.zeros(len(evidence.detections))
    own = evidence.detections.labels[pairs.detection] == evidence.objects.labels[pairs.object]
    np.maximum.at(best, pairs.detection[own], pairs.overlap[own])
    return best


def _in_perfect_order(evidence: Evidence, protocol: Protocol) -> Evidence:
    """The same boxes with scores by which those that find an object come first, those that overlap it most on top."""
    pairs = _pairs(evidence, protocol)
    scores = _best_overlaps(evidence, pairs)
    lowest = replace(protocol, match_thresholds=(min(protocol.match_thresholds),))
    found = np.full(len(scores), NOTHING)
    for row in judge(_scored(evidence, scores), lowest):
        found[row.detections] = row.found[0]
    taken = found[pairs.detection] == pairs.object
    scores[pairs.detection[taken]] = 1.0 + pairs.overlap[taken]  # above all that find nothing
    return _scored(evidence, scores)


def _of_every_class(evidence: Evidence, pairs: _Pairs, threshold: float) -> Evidence:
    """Each window as a detection of every class of which it overlaps an object, nearly by the threshold."""
    labels = evidence.objects.labels[pairs.object]
    near = pairs.overlap > 0.9 * threshold  # judged by the protocol; others could only come last
    keys = np.unique(pairs.detection[near] * evidence.num_classes + labels[near])
    windows = _only(evidence, keys // evidence.num_classes)
    return replace(windows, detections=replace(windows.detections, labels=keys % evidence.num_classes))


def _perfect_boxes(evidence: Evidence, protocol: Protocol, pairs: _Pairs) -> Evidence:
    """The objects that some window overlaps enough, as their own detections."""
    reaches = np.greater_equal if protocol.equality else np.greater
    rows = np.unique(pairs.object[reaches(pairs.overlap, min(protocol.match_thresholds))])
    reached = evidence.objects.take(rows, evidence.overlap)
    scores = np.ones(len(reached))
    columns = {name: getattr(reached, name) for name in ("images", "labels", "boxes", "sizes", "shapes")}
    return replace(evidence, detections=Detections(scores=scores, **columns))


def _after_nms(evidence: Evidence, threshold: float) -> Evidence:
    """The detections that NMS leaves, class by class."""
    found = evidence.detections
    groups = found.images.astype(np.int64) * evidence.num_classes + found.labels
    by_group = np.argsort(groups, kind="stable")
    # A class of an image stands for an image of its own: only windows of the same suppress each other.
    offsets = np.concatenate([np.flatnonzero(np.diff(groups[by_group], prepend=-1)), [len(groups)]])
    column = found.scores[by_group]
    neighbours = _neighbours(_only(evidence, by_group), offsets, threshold)
    suppressor = suppress(column, descending_order(column), neighbours).suppressor[neighbours.number_of]
    return _only(evidence, np.sort(by_group[suppressor < 0]))


def _neighbours(evidence: Evidence, offsets: NDArray[np.int64], threshold: float) -> Neighbours:
    """Which windows, group by group, overlap by more than the threshold."""
    overlap, shapes = evidence.overlap, evidence.detections.shapes
    if shapes is None or overlap.nms == "boxes":
        return neighbours_of(evidence.detections.boxes, offsets, threshold, 1)
    return given_neighbours(overlap.near(shapes, offsets, threshold), offsets)
