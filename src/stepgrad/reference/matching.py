"""Which detections are true positives: the rules of PASCAL VOC and of COCO (Henderson & Ferrari 2016, Sec. 2.2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepgrad.metric.protocol import Protocol
from stepgrad.reference.boxes import Floats, areas
from stepgrad.reference.other_tools import overlaps_of

TRUE, FALSE, IGNORED = "true positive", "false positive", "ignored"


@dataclass(frozen=True)
class Objects:
    """What matching needs to know of the objects of one class in one image."""

    overlaps: tuple[tuple[float, ...], ...]  # (N, G): of each window with each object
    ignored: tuple[bool, ...]  # (G,): does not count, and neither does what detects it
    crowd: tuple[bool, ...]  # (G,): may be detected many times
    wrong_size: frozenset[int] = frozenset()  # objects that are ignored for their size, and forgive one detection each
    excused: frozenset[int] = frozenset()  # windows of a wrong size: none of them is a false positive (COCO)

    @property
    def countable(self) -> int:
        return sum(not i for i in self.ignored)


def describe_objects(
    windows: Floats,
    boxes: Floats,
    difficult: Sequence[bool],
    crowd: Sequence[bool],
    protocol: Protocol,
    area: tuple[float, float] = (0.0, math.inf),
    overlaps: Floats | None = None,
) -> Objects:
    """Overlaps and flags of the objects `boxes` as seen by `windows` under `protocol`, without those that it drops.

    Only objects with these areas count. `overlaps` (N, G), if given, stand in place of those of the boxes.
    """
    if overlaps is None:
        overlaps = overlaps_of(windows, boxes, np.asarray(crowd, dtype=bool), protocol)
    drop = (protocol.difficult == "drop", protocol.crowds == "drop")
    there = [g for g in range(len(boxes)) if not (difficult[g] and drop[0]) and not (crowd[g] and drop[1])]
    overlaps, boxes = overlaps[:, there], boxes[there]
    difficult, crowd = [difficult[g] for g in there], [crowd[g] for g in there]
    ignored = [c or (d and protocol.difficult == "ignore") for d, c in zip(difficult, crowd, strict=True)]
    outside = [{i for i, a in enumerate(areas(b)) if not area[0] <= a <= area[1]} for b in (windows, boxes)]
    wrong_size = frozenset(g for g in outside[1] if not ignored[g])
    ignored = [i or g in wrong_size for g, i in enumerate(ignored)]
    overlap_rows = tuple(map(tuple, overlaps.tolist()))
    return Objects(overlap_rows, tuple(map(bool, ignored)), tuple(map(bool, crowd)), wrong_size, frozenset(outside[0]))


def best_object(overlaps: Sequence[float], threshold: float, equality: bool, last: bool = False) -> int | None:
    """VOC: the object with the largest overlap (the first of equals, or the last), if that reaches the threshold.

    >>> best_object([0.2, 0.5, 0.5], 0.5, True), best_object([0.2, 0.5, 0.5], 0.5, False)
    (1, None)
    >>> best_object([0.2, 0.5, 0.5], 0.5, True, last=True)
    2
    """
    if not overlaps:
        return None
    o = max(range(len(overlaps)), key=lambda g: (overlaps[g], g if last else -g))
    reached = overlaps[o] >= threshold if equality else overlaps[o] > threshold
    return o if reached else None


def best_free_object(
    overlaps: Sequence[float],
    objects: Objects,
    taken: set[int],
    threshold: float,
    equality: bool = True,
    last: bool = True,
) -> int | None:
    """COCO: the free object with the largest overlap (the last of equals, or the first), countable before ignored ones."""
    forgiving = {g for g, ignored in enumerate(objects.ignored) if ignored} - objects.wrong_size
    reached = [v > min(threshold, 1 - 1e-10) or (equality and v == min(threshold, 1 - 1e-10)) for v in overlaps]
    usable = [g for g, is_near in enumerate(reached) if is_near and (g not in taken or g in forgiving)]
    countable = [g for g in usable if not objects.ignored[g]]
    return max(countable or usable, key=lambda g: (overlaps[g], g if last else -g), default=None)


def match(detections: Sequence[int], objects: Objects, protocol: Protocol, threshold: float) -> list[str]:
    """The verdict on each detection (window indices in decreasing score).

    >>> from stepgrad.metric.protocol import COCO, VOC12
    >>> two = Objects(overlaps=((0.9, 0.6), (0.8, 0.7)), ignored=(False, False), crowd=(False, False))
    >>> match([0, 1], two, VOC12, 0.5)      # both want object 0
    ['true positive', 'false positive']
    >>> match([0, 1], two, COCO, 0.5)       # the second takes what is left
    ['true positive', 'true positive']
    """
    last = protocol.last_of_equal_overlaps
    taken: set[int] = set()
    verdicts = []
    for b in detections:
        if protocol.duplicates == "best":
            o = best_object(objects.overlaps[b], threshold, protocol.equality, last)
        else:
            o = best_free_object(objects.overlaps[b], objects, taken, threshold, protocol.equality, last)
        if o is None:
            verdicts.append(IGNORED if b in objects.excused else FALSE)
        elif objects.ignored[o]:
            verdicts.append(IGNORED)
            taken.add(o)
        elif o in taken:
            verdicts.append(FALSE)
        else:
            verdicts.append(TRUE)
            taken.add(o)
    return verdicts
