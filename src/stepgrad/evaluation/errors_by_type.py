"""What kind of mistakes a detector makes, and the mAP that fixing each kind would gain (after TIDE, Bolya 2020).

Every false positive is of one type, and so is every object that was not found:

    box         overlaps an object of its class, but too little: between `background` and the match threshold
    class       overlaps an object of another class enough
    duplicate   overlaps an object of its class enough, which a better detection has found
    background  overlaps no object by as much as `background`
    both        what is left: of the wrong class, and overlapping too little
    missed      an object not found, of which no box or class mistake tells

Overlaps are those of the task: of masks, poses, oriented boxes or segments. With distances of centres, a box mistake is too far
from an object of its class, but not more than five times as far as the match threshold allows.

The first type that fits is taken, in this order, which is TIDE's. Mending a box or class mistake makes it a true positive of
its object, if that was not found and no higher mistake claims it; otherwise, as with the other types, the detection goes.
Mending a missed object takes it off the list of those to find.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stepgrad.engine.matching import FALSE_POSITIVE, IGNORED
from stepgrad.errors import ConfigError
from stepgrad.evaluation.counted import countable, counted_overlaps
from stepgrad.evaluation.edges import seen_by
from stepgrad.evaluation.judge import NOTHING, judge
from stepgrad.evaluation.plots import plot_error_types
from stepgrad.evaluation.records import Evidence
from stepgrad.evaluation.tables import plain_table
from stepgrad.metric.metrics import AVERAGE_PRECISION
from stepgrad.metric.over_classes import mean_over_classes
from stepgrad.metric.protocol import Protocol
from stepgrad.number_text import per_cent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TYPES = ("box", "class", "duplicate", "background", "both", "missed")
_BOX, _CLASS, _DUPLICATE, _BACKGROUND, _BOTH, _MISSED = range(len(TYPES))
RIGHT, LEFT_OUT = -1, -2
"""In the place of a type: no mistake; not judged by the protocol."""
_NEAR = 5.0
"""Of distances: how many match thresholds away a detection still is about an object."""


@dataclass(frozen=True, eq=False)
class Mistakes:
    """Every detection and every object with its type: a position in TYPES, RIGHT, or LEFT_OUT."""

    evidence: Evidence
    protocol: Protocol
    """With one match threshold."""
    of_detections: NDArray[np.int8]  # (M,)
    # (G,) missed, right, or left out; found through a fixed mistake: the type of that mistake
    of_objects: NDArray[np.int8]
    claimed: NDArray[np.int64]  # (M,) row of the object that a fixed mistake would find, NOTHING for others
    places: NDArray[np.int64]  # (M,) place of each detection in its class's ranking
    # (M,) row of the object that a detection found, or that its mistake is about, else NOTHING
    touched: NDArray[np.int64]

    def count(self, kind: str) -> int:
        """How many mistakes there are of a type."""
        side = self.of_objects if kind == "missed" else self.of_detections
        return int(np.count_nonzero(side == TYPES.index(kind)))

    def map_after(self, fixed: Sequence[str]) -> float:
        """mAP when these types are fixed; classes that had objects stay in the mean."""
        kinds = {TYPES.index(kind) for kind in fixed}
        objects = self.evidence.objects
        counted = self.of_objects != LEFT_OUT
        gone = counted & (self.of_objects == _MISSED) & (_MISSED in kinds)
        before, after = (
            np.bincount(objects.labels[rows], minlength=self.evidence.num_classes)
            for rows in (counted, counted & ~gone)
        )
        labels, hits = self._list_after(kinds)
        ap = [
            _ap(hits[labels == c], int(after[c]), self.protocol) if before[c] else 0.0
            for c in range(self.evidence.num_classes)
        ]
        return mean_over_classes(np.array(ap), before > 0, self.protocol.absent_classes)

    def _list_after(self, kinds: set[int]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Class of each detection that counts, by decreasing score, and whether it is right."""
        types, labels = self.of_detections, self.evidence.detections.labels.copy()
        wanted = np.isin(types, list(kinds))
        fixed = wanted & (self.claimed != NOTHING)
        labels[fixed] = self.evidence.objects.labels[self.claimed[fixed]]
        stays = (types != LEFT_OUT) & (~wanted | fixed)
        # Within a class the ranking stays what it was; a detection that changes class comes by its score.
        order = np.lexsort((self.places, -self.evidence.detections.scores))
        order = order[stays[order]]
        return labels[order], (types[order] == RIGHT) | fixed[order]


def _ap(hits: NDArray[np.bool_], P: int, protocol: Protocol) -> float:
    """AP of a ranked list. Where nothing is left to find, a list without mistakes is perfect and any other is worth 0."""
    if P == 0:
        counts, norm = protocol.level_counts(1)
        return 0.0 if len(hits) else float(counts.sum() / norm)
    return AVERAGE_PRECISION.of_list(hits, P, 1, protocol)


def find_mistakes(evidence: Evidence, protocol: Protocol, threshold: float = 0.5, background: float = 0.1) -> Mistakes:
    """Judge at one threshold on overlaps and give every detection and object its type."""
    if not 0.0 < background < threshold <= 1.0 and evidence.overlap.nearness == "overlap":
        raise ConfigError(f"Expected 0 < background < threshold <= 1 but got {background!r} and {threshold!r}.")
    protocol = replace(protocol, match_thresholds=(_nearest(protocol, threshold),))
    seen = seen_by(evidence, protocol)
    there = countable(seen, protocol)
    types = np.full(len(seen.detections), LEFT_OUT, dtype=np.int8)
    places = np.zeros(len(types), dtype=np.int64)
    found = np.zeros(len(there), dtype=np.bool_)
    touched = np.full(len(types), NOTHING, dtype=np.int64)
    for row in judge(evidence, protocol):
        verdicts = row.verdicts[0]
        places[row.detections] = np.arange(len(row.detections))
        types[row.detections[verdicts != IGNORED]] = RIGHT
        types[row.detections[verdicts == FALSE_POSITIVE]] = _BACKGROUND  # until an overlap is seen
        by = row.found[0]
        touched[row.detections] = by
        found[by[by != NOTHING]] = True
    wrong = rows_by_image(np.flatnonzero(types == _BACKGROUND), seen.detections.images, seen.num_images)
    objects = rows_by_image(np.flatnonzero(there), seen.objects.images, seen.num_images)
    for rows, near in zip(wrong, objects, strict=True):
        if len(rows) and len(near):
            _type_image(seen, protocol, background, rows, near, types, touched)
    claimed = np.where((types == _BOX) | (types == _CLASS), touched, NOTHING)
    _keep_first_claims(claimed, found, seen, places)
    of_objects = np.where(~there, LEFT_OUT, np.where(found, RIGHT, _MISSED)).astype(np.int8)
    claims = claimed != NOTHING
    of_objects[claimed[claims]] = types[claims]
    return Mistakes(seen, protocol, types, of_objects, claimed, places, touched)


def _nearest(protocol: Protocol, threshold: float) -> float:
    """The protocol's own float of a threshold, where it has it."""
    own = [t for t in protocol.match_thresholds if math.isclose(t, threshold, abs_tol=1e-6)]
    return own[0] if own else threshold


def rows_by_image(rows: NDArray[np.int64], images: NDArray[np.int32], count: int) -> list[NDArray[np.int64]]:
    """The rows of each image, in their order."""
    by_image = rows[np.argsort(images[rows], kind="stable")]
    return np.split(by_image, np.cumsum(np.bincount(images[rows], minlength=count))[:-1]) if count else []


def _type_image(
    evidence: Evidence,
    protocol: Protocol,
    background: float,
    rows: NDArray[np.int64],
    objects: NDArray[np.int64],
    types: NDArray[np.int8],
    touched: NDArray[np.int64],
) -> None:
    """Fill in the types of the false positives of one image, and the objects of it that they are about."""
    overlaps = counted_overlaps(evidence, rows, objects, protocol)
    own_class = evidence.detections.labels[rows][:, None] == evidence.objects.labels[objects][None]
    own, other = np.where(own_class, overlaps, -np.inf), np.where(own_class, -np.inf, overlaps)
    threshold = protocol.match_thresholds[0]
    if evidence.overlap.nearness == "distance":  # overlaps are minus distances
        threshold, background = -threshold, -_NEAR * threshold
    reaches = np.greater_equal if protocol.equality else np.greater
    box = (own.max(axis=1) >= background) & ~reaches(own.max(axis=1), threshold)
    wrong_class = ~box & reaches(other.max(axis=1), threshold)
    duplicate = ~box & ~wrong_class & reaches(own.max(axis=1), threshold)
    both = ~box & ~wrong_class & ~duplicate & (other.max(axis=1) >= background)
    for kind, fits in ((_BOX, box), (_CLASS, wrong_class), (_DUPLICATE, duplicate), (_BOTH, both)):
        types[rows[fits]] = kind
    for fits, overlapped in ((box | duplicate, own), (wrong_class | both, other)):
        touched[rows[fits]] = objects[overlapped.argmax(axis=1)[fits]]


def _keep_first_claims(
    claimed: NDArray[np.int64], found: NDArray[np.bool_], evidence: Evidence, places: NDArray[np.int64]
) -> None:
    """An object that was found, or that a higher mistake claims, cannot be claimed."""
    taken = found.copy()
    order = np.lexsort((places, -evidence.detections.scores))
    for row in order[claimed[order] != NOTHING].tolist():
        if taken[claimed[row]]:
            claimed[row] = NOTHING
        else:
            taken[claimed[row]] = True


@dataclass(frozen=True)
class ErrorTypes:
    """How many mistakes of each type there are, and the mAP that fixing them would gain. `print` shows a table."""

    protocol: str
    threshold: float
    background: float
    map: float
    """At this threshold."""
    counts: dict[str, int]
    gains: dict[str, float]
    """mAP with that type fixed, minus mAP as it is."""
    fixed: float
    """mAP with all types fixed."""
    detections: int = 0
    """Detections that are counted, right or wrong ..."""
    least_score: float | None = None
    """... and the lowest of their scores; None without any."""
    overlap: str = "IoU"
    """What the threshold is on: "mask IoU", "OKS" and so on."""
    nouns: tuple[str, str] = ("box", "boxes")
    """What is detected, one and several: a box mistake of masks is shown as one of the mask."""

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Headings and a row per type."""
        rows = [[str(self.counts[kind]), per_cent(self.gains[kind], sign=True)] for kind in TYPES]
        return ["mistake", "count", "mAP"], [[name, *row] for name, row in zip(self._names(), rows, strict=True)]

    def _names(self) -> list[str]:
        return [self.nouns[0] if kind == "box" else kind for kind in TYPES]

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for json."""
        return dict(vars(self))

    def plot(self, path: str | Path | None = None) -> Figure:
        """Bars of what each type costs as a matplotlib figure, written to `path` if given."""
        names = self._names()
        return plot_error_types(list(self.gains.values()), list(self.counts.values()), names, self._title(), path)

    def _title(self) -> str:
        return f"{self.protocol} at {self.overlap} {self.threshold:g}: mAP {per_cent(self.map)}"

    def __str__(self) -> str:
        title = f"{self._title()}; what fixing each mistake would gain"
        if self.least_score is not None:
            title += f" (all {self.detections} detections count, down to a score of {self.least_score:.2g})"
        return f"{title}\n{plain_table(*self.table())}"


def error_types(evidence: Evidence, protocol: Protocol, threshold: float = 0.5, background: float = 0.1) -> ErrorTypes:
    """Count the mistakes of each type under a protocol at one threshold on overlaps, and what fixing each would gain."""
    return summarise(find_mistakes(evidence, protocol, threshold, background), threshold, background)


def summarise(mistakes: Mistakes, threshold: float, background: float) -> ErrorTypes:
    """The counts of mistakes that were found with these thresholds, and what fixing each type would gain."""
    now = mistakes.map_after([])
    scores = mistakes.evidence.detections.scores[mistakes.of_detections != LEFT_OUT]
    return ErrorTypes(
        protocol=mistakes.protocol.name,
        threshold=threshold,
        background=background,
        map=now,
        counts={kind: mistakes.count(kind) for kind in TYPES},
        gains={kind: mistakes.map_after([kind]) - now for kind in TYPES},
        fixed=mistakes.map_after(TYPES),
        detections=len(scores),
        least_score=float(scores.min()) if len(scores) else None,
        overlap=mistakes.evidence.overlap.word,
        nouns=mistakes.evidence.overlap.nouns,
    )
