"""Labels that are likely wrong, with what mAP would gain if the label were changed.

A label can be changed in four ways:

    add     a false alarm becomes an object
    swap    an object gets the class of a detection that lies on it and is of another class
    redraw  an object gets the box of a detection of its class that overlaps it too little
    remove  an object goes that no detection tells of

Each change is judged by itself, by the mAP of all labels with this one changed. It concerns one image and one or two classes. So
the detections of that image are matched anew, as those of an image of their own, and stand in the class's list in place of the
old ones; nothing else of the list changes.

mAP counts a label of a rare class for more, and does not ask whether the detection is right. So there are two orders: by the
gain itself, and by what a look at the label is worth. That is the product of

    the gain, times the number of labels of the detection's class: what the label counts, whatever its class
    r / (r + 1 - p), the probability that the label is wrong where label and detection disagree: p is the share of detections
        with such a score that are right, of all classes, and r = 0.05 how many labels are taken to be wrong beforehand
    (1 - o)^2, for labels to add or to redraw: o is the detection's overlap with the nearest label. A detection that lies partly
        on a label is more likely a poor box of what is labelled there than an object of its own

Among detections that are nearly always right, a higher score says more than a larger gain: the second factor tells 99 in 100
from 95 in 100, while gains there differ by class only. The second order finds more errors in fewer looks
(`experiments/label_errors.py`, which also says on which images it was chosen).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from stepgrad.engine.jit import explain_wait
from stepgrad.engine.matching import IGNORED, TRUE_POSITIVE
from stepgrad.errors import ConfigError, one_of
from stepgrad.evaluation.counted import counted_overlaps
from stepgrad.evaluation.edges import seen_by
from stepgrad.evaluation.errors_by_type import TYPES, find_mistakes, rows_by_image
from stepgrad.evaluation.judge import NOTHING, ClassJudgement, judge, pairs_in_images, taking_part
from stepgrad.evaluation.records import Evidence, GroundTruth, LookedFor
from stepgrad.evaluation.resampling import Drawn, JudgedList, class_values, joined
from stepgrad.metric.boxes import areas_of, overlaps_with
from stepgrad.metric.metrics import AVERAGE_PRECISION
from stepgrad.metric.over_classes import OverClasses
from stepgrad.metric.protocol import Protocol, get_protocol
from stepgrad.threads import run_threads

KINDS = ("add", "swap", "redraw", "remove")
ORDERS = ("likely", "gain")
SAME_PLACE = 0.5
"""IoU from which two changes are about the same thing; the one that gains more is kept."""
_WRONG = 0.05  # share of labels that are taken to be wrong; a fifth or twice as many hardly change the order
_TOGETHER = 500  # changes whose lists are valued at a time
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class LabelError:
    """A change of one label, and the mAP that it would gain."""

    kind: str
    """One of KINDS."""
    image: int
    """Position of the image in `Evidence.image_ids`."""
    object: int | None
    """Row of the label that is changed, in `Evidence.objects`; None for one to add."""
    detection: int | None
    """Row of the detection that speaks for the change, in `Evidence.detections`; None for a label to remove."""
    label: int
    """The class that the label would have; of one to remove, the class that it has."""
    box: tuple[float, float, float, float]
    """The box that the label would have, x1 y1 x2 y2; of one to remove, the box that it has."""
    gain: float
    """mAP with this label changed, minus mAP as it is."""
    likely: float
    """What the order "likely" goes by; 0 for a label to remove, as no detection speaks for it."""


@dataclass(frozen=True)
class _Changes:
    """C changes: each takes an object away, or puts one in, or both in one place."""

    kinds: NDArray[np.int8]  # (C,) positions in KINDS
    detections: Rows  # (C,) rows, or NOTHING
    objects: Rows  # (C,) rows, or NOTHING
    images: NDArray[np.int32]  # (C,)
    old_labels: Rows  # (C,) class of the object that goes, or NOTHING
    new_labels: Rows  # (C,) class of the object that comes, or NOTHING
    pool: GroundTruth  # (G + C,) all objects, then for each change its object, with the box that it has afterwards

    def of_class(self, label: int) -> Rows:
        """Which changes concern a class."""
        return np.flatnonzero((self.old_labels == label) | (self.new_labels == label))


def find_label_errors(
    evidence: Evidence,
    protocol: str | Protocol = "coco",
    *,
    order: str = "likely",
    kinds: Sequence[str] = KINDS,
) -> list[LabelError]:
    """The labels whose change would gain mAP, best first; of changes in one place only the first.

    The detections must come from a model that did not train on these labels: it would repeat their errors.

    Args:
        evidence: boxes that were detected, and labels: `Evaluator.evidence()`.
        protocol: what mAP means, and which detections are false alarms.
        order: "likely": by what a look at the label is worth (see the head of this file), which finds more errors in fewer looks.
            "gain": by what mAP would gain.
        kinds: changes to look for: "add", "swap", "redraw", "remove".

    >>> import torch
    >>> from stepgrad.evaluation import Evaluator
    >>> evaluator = Evaluator(2, "voc12")
    >>> cat, dog = torch.tensor([[0.0, 0.0, 9.0, 9.0]]), torch.tensor([[20.0, 0.0, 29.0, 9.0]])
    >>> found = {"boxes": torch.cat([cat, dog]), "scores": torch.tensor([0.9, 0.8]), "labels": torch.tensor([0, 1])}
    >>> evaluator.update([found], [{"boxes": dog, "labels": torch.tensor([1])}])
    >>> [(error.kind, error.label, error.gain) for error in find_label_errors(evaluator.evidence(), "voc12")]
    [('add', 0, 0.5)]
    """
    if evidence.has_shapes:
        raise ConfigError(
            "Expected boxes but got masks, poses or oriented boxes; label errors are found for boxes only."
        )
    one_of("order", order, list(ORDERS))
    for kind in kinds:
        one_of("kinds", kind, list(KINDS))
    protocol = get_protocol(protocol)
    changes = _possible_changes(evidence, protocol)
    gains, likely = _gains(evidence, protocol, changes)
    found, detections = changes.pool.take(np.arange(len(gains)) + len(evidence.objects)), changes.detections
    wanted = (gains > 0.0) & np.isin(changes.kinds, [KINDS.index(kind) for kind in kinds])
    ranked = np.lexsort((-gains, -(likely if order == "likely" else gains)))
    chosen = _one_per_place(found, ranked[wanted[ranked]], evidence.pixel_offset or 0.0)
    return [
        LabelError(
            kind=KINDS[changes.kinds[c]],
            image=int(changes.images[c]),
            object=None if changes.objects[c] == NOTHING else int(changes.objects[c]),
            detection=None if detections[c] == NOTHING else int(detections[c]),
            label=int(found.labels[c]),
            box=tuple(found.boxes[c].tolist()),
            gain=float(gains[c]),
            likely=float(likely[c]),
        )
        for c in chosen
    ]


def _possible_changes(evidence: Evidence, protocol: Protocol) -> _Changes:
    """Every change that a mistake of the detector suggests. A duplicate suggests none: its object has a label.

    A detection of the wrong class or with a poor box may be an object of its own, so it suggests a new label, too.
    """
    mistakes = find_mistakes(evidence, protocol)
    of_type = {kind: np.flatnonzero(mistakes.of_detections == TYPES.index(kind)) for kind in TYPES}
    new = np.sort(np.concatenate([of_type[kind] for kind in ("box", "class", "background", "both")]))
    offset = evidence.pixel_offset or 0.0
    new = new[(evidence.detections.sizes[new] + offset > 0.0).all(axis=1)]  # no label is a box without area
    poor = np.intersect1d(of_type["box"], new)
    missed = np.flatnonzero(mistakes.of_objects == TYPES.index("missed"))
    nothing = np.full(max(len(new), len(missed)), NOTHING)
    parts = {
        "add": (new, nothing[: len(new)]),
        "swap": (of_type["class"], mistakes.touched[of_type["class"]]),
        "redraw": (poor, mistakes.touched[poor]),
        "remove": (nothing[: len(missed)], missed),
    }
    detections, objects = (np.concatenate([part[side] for part in parts.values()]) for side in (0, 1))
    kinds = np.repeat(np.arange(len(parts), dtype=np.int8), [len(part[0]) for part in parts.values()])
    return _changes(evidence, kinds, detections, objects)


def _changes(evidence: Evidence, kinds: NDArray[np.int8], detections: Rows, objects: Rows) -> _Changes:
    """The changes with the objects that they make. Rows that are NOTHING (-1) are looked up, and not used."""
    found, labels = evidence.detections, evidence.objects
    add, swap, redraw, remove = (kinds == kind for kind in range(len(KINDS)))
    has_class = np.where(objects == NOTHING, NOTHING, _rows(labels.labels, objects))
    of_detection = _rows(found.labels, detections)
    by_box = (add | redraw)[:, None]
    boxes = np.where(by_box, _rows(found.boxes, detections), _rows(labels.boxes, objects))
    sizes = np.where(by_box, _rows(found.sizes, detections), _rows(labels.sizes, objects))
    areas = np.where(add | redraw, areas_of(sizes, evidence.pixel_offset or 0.0), _rows(labels.area, objects))
    images = np.where(add, _rows(found.images, detections), _rows(labels.images, objects)).astype(np.int32)
    after = np.where(add | swap, of_detection, has_class)
    plain = np.zeros(len(kinds), dtype=np.bool_)
    pool = GroundTruth(
        images=np.concatenate([labels.images, images]),
        labels=np.concatenate([labels.labels, after]),
        boxes=np.concatenate([labels.boxes, boxes]),
        difficult=np.concatenate([labels.difficult, plain]),
        crowd=np.concatenate([labels.crowd, plain]),
        area=np.concatenate([labels.area, areas]),
        sizes=np.concatenate([labels.sizes, sizes]),
    )
    return _Changes(kinds, detections, objects, images, has_class, np.where(remove, NOTHING, after), pool)


def _rows(values: NDArray[np.generic], rows: Rows) -> NDArray[np.generic]:
    """The values of rows; anything for NOTHING, also where there are no values at all."""
    return values[rows] if len(values) else np.zeros((len(rows), *values.shape[1:]), dtype=values.dtype)


def _gains(
    evidence: Evidence, protocol: Protocol, changes: _Changes
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(C,) mAP after each change alone, minus mAP as it is; and what a look at the label is worth."""
    judged = judge(evidence, protocol)
    takes_part = taking_part(evidence, protocol)
    within = replace(protocol, max_detections=None) if protocol.joins_classes else protocol
    parts = [
        (row, part)
        for row in judged
        for part in np.array_split(changes.of_class(row.label), -(-len(changes.of_class(row.label)) // _TOGETHER) or 1)
    ]

    def values(part: tuple[ClassJudgement, Rows]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        return _class_values(evidence, within, changes, *part, takes_part)

    with explain_wait():
        found = run_threads(values, parts, torch.get_num_threads())
    ap = np.tile([row.mean_ap for row in judged], (len(changes.kinds) + 1, 1))  # the last row: as it is
    P = np.tile([row.P for row in judged], (len(changes.kinds) + 1, 1))
    for (row, chosen), (own_ap, own_P) in zip(parts, found, strict=True):
        ap[chosen, row.label] = own_ap
        P[chosen, row.label] = own_P
    maps = joined(ap, P, AVERAGE_PRECISION, OverClasses(absent_classes=protocol.absent_classes))
    gains = maps[:-1] - maps[-1]
    # A label to remove has no detection: nothing speaks for it, and it gets 0.
    told = changes.detections != NOTHING
    right = np.append(_share_right(judged, evidence.detections.scores), 0.0)[changes.detections]
    apart = 1.0 - np.append(_on_labels(evidence, protocol, changes), 0.0)[changes.detections]
    apart[changes.kinds == KINDS.index("swap")] = 1.0  # the label that the detection lies on is the one in question
    return gains, gains * P[-1][changes.new_labels] * told * (_WRONG / (_WRONG + 1.0 - right)) * apart**2


def _share_right(judged: Sequence[ClassJudgement], scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """(M,) the share of detections with such a score that are right, at the first threshold; it never falls with the score."""
    rows = np.concatenate([row.detections[row.verdicts[0] != IGNORED] for row in judged])
    verdicts = np.concatenate([row.verdicts[0][row.verdicts[0] != IGNORED] for row in judged])
    order = np.argsort(-scores[rows], kind="stable")
    shares = np.zeros(len(scores))
    shares[rows[order]] = falling(verdicts[order] == TRUE_POSITIVE)
    return shares


def falling(values: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The sequence that never rises and is nearest to the values: neighbours that would rise share their mean.

    >>> falling(np.array([True, False, True, False]))
    array([1. , 0.5, 0.5, 0. ])
    """
    means: list[float] = []
    counts: list[int] = []
    for value in values.tolist():
        means.append(float(value))
        counts.append(1)
        while len(means) > 1 and means[-2] < means[-1]:
            mean, count = means.pop(), counts.pop()
            means[-1] = (means[-1] * counts[-1] + mean * count) / (counts[-1] + count)
            counts[-1] += count
    return np.repeat(means, counts)


def _on_labels(evidence: Evidence, protocol: Protocol, changes: _Changes) -> NDArray[np.float64]:
    """(M,) the largest overlap with a label of any class, of the detections that speak for a change; 0 for others."""
    seen = seen_by(evidence, protocol)
    wanted = np.unique(changes.detections[changes.detections != NOTHING])
    found = np.zeros(len(seen.detections))
    rows_of = rows_by_image(wanted, seen.detections.images, seen.num_images)
    labels_of = rows_by_image(np.arange(len(seen.objects)), seen.objects.images, seen.num_images)
    for rows, labels in zip(rows_of, labels_of, strict=True):
        if len(rows) and len(labels):
            found[rows] = counted_overlaps(seen, rows, labels, protocol).max(axis=1)
    return found


def _class_values(
    evidence: Evidence,
    protocol: Protocol,
    changes: _Changes,
    judged: ClassJudgement,
    chosen: Rows,
    takes_part: NDArray[np.bool_],
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """AP of a class after each of some changes, and how many objects it then has.

    Each change has an image of its own, numbered from the last image on, in place of the one that it is made in.
    """
    N, R = evidence.num_images, len(chosen)
    detections = evidence.detections
    ranked_images = detections.images[judged.detections]
    own, places = pairs_in_images(changes.images[chosen], ranked_images, N)
    counted = takes_part[judged.detections[places]]
    own, places = own[counted], places[counted]
    changed = replace(
        evidence,
        detections=replace(detections.take(judged.detections[places]), images=own.astype(np.int32)),
        objects=_objects_after(evidence, changes, chosen, judged.label),
        image_ids=range(R),
        looked_for=_looked_for(evidence.looked_for, changes.images[chosen], N),
        limits=None if evidence.limits is None else evidence.limits[changes.images[chosen]],
        resizings=None if evidence.resizings is None else evidence.resizings[changes.images[chosen]],
    )
    (after,) = judge(changed, protocol, [judged.label])
    verdicts = np.empty_like(after.verdicts)
    verdicts[:, after.detections] = after.verdicts
    order = np.argsort(np.concatenate([np.arange(len(ranked_images)), places]), kind="stable")
    rows = np.concatenate([judged.detections, judged.detections[places]])[order]
    both = JudgedList(
        images=np.concatenate([ranked_images, N + own])[order].astype(np.int32),
        verdicts=np.concatenate([judged.verdicts, verdicts], axis=1)[:, order],
        object_images=np.zeros(0, dtype=np.int32),
        scores=detections.scores[rows],
    )
    weights = np.concatenate([np.ones((R, N), dtype=np.uint8), np.eye(R, dtype=np.uint8)], axis=1)
    weights[np.arange(R), changes.images[chosen]] = 0
    less, more = (side[chosen] == judged.label for side in (changes.old_labels, changes.new_labels))
    P = judged.P - less.astype(np.int64) + more
    unit = np.arange(N + R, dtype=np.int32)
    return class_values(both, AVERAGE_PRECISION, protocol, Drawn.of(weights), unit, P), P


def _objects_after(evidence: Evidence, changes: _Changes, chosen: Rows, label: int) -> GroundTruth:
    """The objects of a class after each change, in images of their own; a changed object keeps its place, a new one is last."""
    of_class = np.flatnonzero(evidence.objects.labels == label)
    own, columns = pairs_in_images(changes.images[chosen], evidence.objects.images[of_class], evidence.num_images)
    rows = of_class[columns]
    stays = rows != changes.objects[chosen][own]
    comes = np.flatnonzero(changes.new_labels[chosen] == label)
    G = len(evidence.objects)
    new_rows = G + chosen[comes]
    old_rows = changes.objects[chosen[comes]]
    place = np.concatenate([rows[stays], np.where(old_rows == NOTHING, new_rows, old_rows)])
    images = np.concatenate([own[stays], comes])
    order = np.lexsort((place, images))
    taken: GroundTruth = changes.pool.take(np.concatenate([rows[stays], new_rows])[order])
    return replace(taken, images=images[order].astype(np.int32))


def _looked_for(looked_for: LookedFor | None, images: NDArray[np.int32], count: int) -> LookedFor | None:
    """What is known of each image, for images that stand in their place."""
    if looked_for is None:
        return None
    pairs = []
    for known in (looked_for.absent, looked_for.partly):
        own, columns = pairs_in_images(images, known[:, 0].astype(np.int32), count)
        pairs.append(np.stack([own, known[columns, 1]], axis=1))
    return LookedFor(*pairs)


def _one_per_place(found: GroundTruth, order: Sequence[int] | Rows, offset: float) -> list[int]:
    """Of changes in this order, those that do not lie on an earlier one of their image."""
    kept: dict[int, list[int]] = {}
    chosen = []
    for c in map(int, order):
        there = kept.setdefault(int(found.images[c]), [])
        if not (overlaps_with(found.boxes[c], found.boxes[there], offset) >= SAME_PLACE).any():
            there.append(c)
            chosen.append(c)
    return chosen
