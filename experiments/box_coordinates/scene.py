"""One image of one class with one box on the move: what NMS keeps, what is matched, and what AP that makes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepgrad.engine.exact_sum import add_multiple
from stepgrad.engine.jit import inlined, kernel
from stepgrad.engine.matching import ABSENT, FALSE_POSITIVE, IGNORED, TRUE_POSITIVE


class Rule(NamedTuple):
    """The matching conventions at one threshold, as numbers."""

    threshold: float
    equality: bool
    best_free: bool


@kernel
def reaches(overlap: float, rule: Rule) -> bool:
    """Whether an overlap suffices."""
    if rule.best_free:
        return overlap >= min(rule.threshold, 1.0 - 1e-10)
    return overlap >= rule.threshold if rule.equality else overlap > rule.threshold


class Image(NamedTuple):
    """The windows and objects of one image, for one class. Windows come by decreasing score. n windows, g objects."""

    boxes: NDArray[np.float64]  # (n, 4)
    position: NDArray[np.int64]  # (n,) among the windows of all images
    near: NDArray[np.bool_]  # (n, n) IoU above the NMS threshold; all False without NMS
    objects: NDArray[np.float64]  # (g, 4)
    ignored: NDArray[np.bool_]
    crowd: NDArray[np.bool_]
    overlap: NDArray[np.float64]  # (n, g)


class Rest(NamedTuple):
    """The detections of all other images, by decreasing score: T true positives, and how many count above a window."""

    position: NDArray[np.int64]  # (T,) of the true positives
    rank: NDArray[np.int64]  # (T,) among the others' counted detections, from 1
    above: NDArray[np.int64]  # (n,) others' counted detections above each window of the image


class Rules(NamedTuple):
    """How to count."""

    match: Rule
    nms_threshold: float  # 2: no NMS
    offset: float  # the protocol's pixel_offset, for matching; NMS has none
    max_detections: int
    cumulative: NDArray[np.int64]  # (P + 1,) recall levels served by the first k true positives


@inlined
def overlap_of(box: NDArray[np.float64], other: NDArray[np.float64], crowd: bool, offset: float) -> float:
    """IoU, to the bit that of the metric; with a crowd the share of the box inside it."""
    width = min(box[2], other[2]) - max(box[0], other[0]) + offset
    height = min(box[3], other[3]) - max(box[1], other[1]) + offset
    if width <= 0.0 or height <= 0.0:
        return 0.0
    shared = width * height
    area = (box[2] - box[0] + offset) * (box[3] - box[1] + offset)
    if crowd:
        return shared / area
    return shared / (area + (other[2] - other[0] + offset) * (other[3] - other[1] + offset) - shared)


@kernel
def make_image(
    boxes: NDArray[np.float64],
    position: NDArray[np.int64],
    objects: NDArray[np.float64],
    ignored: NDArray[np.bool_],
    crowd: NDArray[np.bool_],
    nms_threshold: float,
    offset: float,
) -> Image:
    n, g = len(boxes), len(objects)
    near = np.zeros((n, n), dtype=np.bool_)
    overlap = np.empty((n, g))
    for b in range(n):
        for other in range(b):
            near[b, other] = near[other, b] = overlap_of(boxes[b], boxes[other], False, 0.0) > nms_threshold
        for o in range(g):
            overlap[b, o] = overlap_of(boxes[b], objects[o], crowd[o], offset)
    return Image(boxes, position, near, objects, ignored, crowd, overlap)


@kernel
def _object_for(image: Image, window: int, rule: Rule, taken: NDArray[np.bool_]) -> int:
    """The object a detection takes, or -1: the best ("best": the first of equals) or the best that is free ("best_free":
    the last of equals, ignored ones only if nothing else is left)."""
    choice, largest = -1, -1.0
    free_only = rule.best_free
    for o in range(len(image.objects)):
        overlap = image.overlap[window, o]
        if not reaches(overlap, rule) or (free_only and taken[o] and not image.ignored[o]):
            continue
        if free_only and choice >= 0 and image.ignored[choice] != image.ignored[o]:
            better = image.ignored[choice]
        else:
            better = overlap >= largest if free_only else overlap > largest
        if better:
            choice, largest = o, overlap
    return choice


@kernel
def _role(image: Image, window: int, rules: Rules, seen: int, taken: NDArray[np.bool_]) -> int:
    """The role of the next detection of the image, the `seen`-th; marks the object it takes."""
    if seen > rules.max_detections:
        return IGNORED
    o = _object_for(image, window, rules.match, taken)
    if o < 0:
        return FALSE_POSITIVE
    if image.ignored[o]:
        return IGNORED
    role = FALSE_POSITIVE if taken[o] else TRUE_POSITIVE
    taken[o] = True
    return role


@kernel
def judge(
    image: Image,
    windows: NDArray[np.int64],
    dead: NDArray[np.bool_],
    seen: int,
    taken: NDArray[np.bool_],
    rules: Rules,
    roles: NDArray[np.int8],
) -> None:
    """NMS and matching of some windows, by decreasing score, after `seen` detections above them that took `taken` objects.

    dead[i] says whether windows[i] is suppressed from above. Writes roles by window; changes `dead` and `taken`.
    """
    for i in range(len(windows)):
        window = windows[i]
        if dead[i]:
            roles[window] = ABSENT
            continue
        seen += 1
        roles[window] = _role(image, window, rules, seen, taken)
        for lower in range(i + 1, len(windows)):
            dead[lower] |= image.near[window, windows[lower]]


@kernel
def roles_now(image: Image, rules: Rules) -> NDArray[np.int8]:
    """The role of each window as things stand."""
    n = len(image.boxes)
    roles = np.empty(n, dtype=np.int8)
    taken = np.zeros(len(image.objects), dtype=np.bool_)
    judge(image, np.arange(n), np.zeros(n, dtype=np.bool_), 0, taken, rules, roles)
    return roles


@kernel
def list_sum(
    image: Image, windows: NDArray[np.int64], roles: NDArray[np.int8], rest: Rest, cumulative: NDArray[np.int64]
) -> tuple[float, float]:
    """sum_k count_k p_k of the image's `windows` (all that are not absent, by decreasing score) among the others."""
    ranks = np.empty(len(cumulative), dtype=np.int64)
    T = own = other = 0
    for window in windows:
        role = roles[window]
        if role == ABSENT or role == IGNORED:
            continue
        while other < len(rest.position) and rest.position[other] < image.position[window]:
            T += 1
            ranks[T] = rest.rank[other] + own
            other += 1
        own += 1
        if role == TRUE_POSITIVE:
            T += 1
            ranks[T] = rest.above[window] + own
    while other < len(rest.position):
        T += 1
        ranks[T] = rest.rank[other] + own
        other += 1
    hi, lo, largest = 0.0, 0.0, 0.0
    for k in range(T, 0, -1):
        largest = max(largest, k / ranks[k])
        hi, lo = add_multiple(hi, lo, cumulative[k] - cumulative[k - 1], largest)
    return hi, lo
