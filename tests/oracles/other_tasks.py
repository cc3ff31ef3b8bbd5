"""How DOTA counts oriented boxes and ActivityNet segments, one detection at a time, restated from their definitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stepgrad.reference.overlaps import rotated_iou


def area_under(hits: Sequence[bool], objects: int) -> float:
    """The area under the interpolated curve of precision over recall."""
    true = np.cumsum(hits)
    precision, recall = true / np.arange(1, len(hits) + 1), true / objects
    envelope = [max(precision[i:]) for i in range(len(precision))]
    return float(sum(p * (r - q) for p, r, q in zip(envelope, recall, [0.0, *recall], strict=False)))


def eleven_points(hits: Sequence[bool], objects: int) -> float:
    """The mean of the best precision at a recall of at least 0, 0.1, ..., 1, levels as floating point has them."""
    true = np.cumsum(hits)
    precision, recall = true / np.arange(1, len(hits) + 1), true / objects
    levels = np.arange(0.0, 1.1, 0.1)
    return float(
        sum(max((p for p, r in zip(precision, recall, strict=True) if r >= level), default=0.0) for level in levels)
        / 11
    )


def dota_ap(found: Sequence[Any], objects: Sequence[Any], ap: Callable[[Sequence[bool], int], float]) -> float:
    """AP of one class: `found` (image, score, box), `objects` (image, box, difficult).

    A detection goes to the object that it overlaps most. If that is more than a half, the first one there is right and later
    ones are wrong; those of difficult objects do not count.
    """
    taken: set[int] = set()
    hits = []
    for image, _, box in sorted(found, key=lambda f: -f[1]):
        near = [(rotated_iou(box, o[1]), n) for n, o in enumerate(objects) if o[0] == image]
        overlap, best = max(near, key=lambda pair: (pair[0], -pair[1]), default=(0.0, -1))
        if overlap > 0.5 and objects[best][2]:
            continue
        hits.append(overlap > 0.5 and best not in taken)
        taken |= {best} if overlap > 0.5 else set()
    countable = sum(not o[2] for o in objects)
    return ap(hits, countable) if hits and countable else 0.0


def activitynet_ap(found: Sequence[Any], objects: Sequence[Any], threshold: float) -> float:
    """AP of one class: `found` (video, score, (begin, end)), `objects` (video, (begin, end)).

    A detection takes the object that it overlaps most among those not taken yet, if that is at least the threshold.
    """
    taken: set[int] = set()
    hits = []
    for video, _, (begin, end) in sorted(found, key=lambda f: -f[1]):
        free = []
        for n, (other, (first, last)) in enumerate(objects):
            shared = max(0.0, min(end, last) - max(begin, first))
            overlap = shared / ((end - begin) + (last - first) - shared)
            if other == video and n not in taken and overlap >= threshold:
                free.append((overlap, n))
        hits.append(bool(free))
        taken |= {max(free)[1]} if free else set()
    return area_under(hits, len(objects)) if hits else 0.0
