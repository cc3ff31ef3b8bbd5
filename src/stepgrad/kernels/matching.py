"""Which object a detection finds, by the rule of the protocol."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepgrad.kernels.jit import inlined, kernel

FALSE_POSITIVE, TRUE_POSITIVE, IGNORED, ABSENT = 0, 1, 2, 3
BEST, BEST_FREE = 0, 1  # protocol.duplicates
EXCUSED = np.inf
ONLY_EXCUSED = -2  # in Reach.number
_ALMOST_ONE = 1.0 - 1e-10  # pycocotools never asks for more overlap than this


class Rule(NamedTuple):
    """The matching conventions as numbers."""

    threshold: float
    equality: bool
    rule: int  # BEST or BEST_FREE


class Pairs(NamedTuple):
    """Windows and the objects of one class they overlap enough, sorted by slot, then by object."""

    slot: NDArray[np.int32]
    object: NDArray[np.int32]
    iou: NDArray[np.float64]  # EXCUSED: reaches every threshold, but any other object is preferred


class Objects(NamedTuple):
    """The objects of one class, in the order of the targets."""

    image: NDArray[np.int32]
    ignored: NDArray[np.bool_]  # difficult or crowd: not to be found, no fault to find
    once: NDArray[np.bool_]  # of the ignored, those that forgive one detection only (COCO: of another size)


class Rules(NamedTuple):
    """One rule per match threshold."""

    thresholds: NDArray[np.float64]
    equality: bool
    rule: int


class Reach(NamedTuple):
    """What windows could be matched to, at each match threshold t. *Reachers* overlap an object enough at one of them.

    *Bystanders* reach nothing but an excuse: they are ignored wherever they stand, and nobody's role depends on them.
    """

    number: NDArray[np.int32]  # (slots,) of a window among the reachers; ONLY_EXCUSED for bystanders, -1 for the others
    slots: NDArray[np.int32]  # (R,) the reachers in slot order
    first: NDArray[np.int32]  # (R,) their entries in Pairs ...
    last: NDArray[np.int32]  # (R,) ... up to here
    best: NDArray[np.int32]  # (t, R) object of the largest IoU, -1 if none reaches the threshold
    several: NDArray[np.bool_]  # (t, images) some window of the image reaches more than one object
    fresh: NDArray[np.bool_]  # (t, images) some window of the image reaches other objects than at threshold t - 1


@kernel
def reaches(iou: float, rule: Rule) -> bool:
    """Whether an overlap suffices; the one place where an IoU meets a match threshold."""
    if rule.rule == BEST_FREE:
        return iou >= min(rule.threshold, _ALMOST_ONE)
    if rule.equality:
        return iou >= rule.threshold
    return iou > rule.threshold


@inlined
def rule_at(rules: Rules, t: int) -> Rule:
    """The rule at threshold number t."""
    return Rule(rules.thresholds[t], rules.equality, rules.rule)


@kernel
def _reachers(pairs: Pairs, rules: Rules, slots: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The slots that reach an object (few), in slot order, so image after image; and `Reach.number`."""
    number = np.full(slots, -1, dtype=np.int32)
    found = np.empty(len(pairs.slot), dtype=np.int32)
    count = 0
    for k in range(len(pairs.slot)):
        slot = pairs.slot[k]
        if number[slot] >= 0:
            continue
        if pairs.iou[k] == EXCUSED:
            number[slot] = ONLY_EXCUSED  # so far
            continue
        for t in range(len(rules.thresholds)):
            if reaches(pairs.iou[k], rule_at(rules, t)):
                found[count] = slot
                number[slot] = count
                count += 1
                break
    return found[:count], number


@kernel
def reach_of(pairs: Pairs, objects: Objects, rules: Rules, slots: int, images: int) -> Reach:
    """The objects each window reaches; among equal overlaps "best" takes the first, "best_free" the last."""
    found, number = _reachers(pairs, rules, slots)
    T = len(rules.thresholds)
    first = np.full(len(found), len(pairs.slot), dtype=np.int32)
    last = np.zeros(len(found), dtype=np.int32)
    best = np.full((T, len(found)), -1, dtype=np.int32)
    largest = np.empty(len(found))
    several = np.zeros((T, images), dtype=np.bool_)
    fresh = np.ones((T, images), dtype=np.bool_)
    fresh[1:] = False
    for k in range(len(pairs.slot)):
        r = number[pairs.slot[k]]
        if r >= 0:
            first[r] = min(first[r], k)
            last[r] = k + 1
    for t in range(T):
        largest[:] = -1.0
        for k in range(len(pairs.slot)):
            r = number[pairs.slot[k]]
            if r < 0:
                continue
            image = objects.image[pairs.object[k]]
            here = reaches(pairs.iou[k], rule_at(rules, t))
            if t > 0 and here != reaches(pairs.iou[k], rule_at(rules, t - 1)):
                fresh[t, image] = True
            if not here:
                continue
            if best[t, r] >= 0:
                several[t, image] = True
            if pairs.iou[k] > largest[r]:
                largest[r] = pairs.iou[k]
                best[t, r] = pairs.object[k]
    return Reach(number, found, first, last, best, several, fresh)


@kernel
def _best_free(
    r: int, pairs: Pairs, objects: Objects, reach: Reach, rule: Rule, taken: NDArray[np.int32], stamp: int
) -> int:
    """The free object of the largest IoU (the later of equals); an ignored one only if no countable one is free."""
    choice, largest = -1, -1.0
    for k in range(reach.first[r], reach.last[r]):
        target = pairs.object[k]
        forgives = objects.ignored[target] and not objects.once[target]
        if not reaches(pairs.iou[k], rule) or (taken[target] == stamp and not forgives):
            continue
        overlap = pairs.iou[k] if pairs.iou[k] < EXCUSED else 0.0
        # COCO: once a countable object is at hand, ignored ones are not looked at; the later of equal overlaps wins.
        if choice >= 0 and objects.ignored[choice] != objects.ignored[target]:
            better = objects.ignored[choice]
        else:
            better = overlap >= largest
        if better:
            choice, largest = target, overlap
    return choice


@kernel
def role_of(
    r: int, t: int, pairs: Pairs, objects: Objects, reach: Reach, rules: Rules, taken: NDArray[np.int32], stamp: int
) -> int:
    """The role of reacher r, the next detection of its image, marking the object it takes with `stamp`."""
    target = reach.best[t, r]
    if target < 0:
        return FALSE_POSITIVE
    if rules.rule == BEST_FREE:
        target = _best_free(r, pairs, objects, reach, rule_at(rules, t), taken, stamp)
        if target < 0:
            return FALSE_POSITIVE
    if objects.ignored[target]:
        if objects.once[target]:
            taken[target] = stamp
        return IGNORED
    if taken[target] == stamp:
        return FALSE_POSITIVE
    taken[target] = stamp
    return TRUE_POSITIVE


@kernel
def overlap_pairs(
    boxes: NDArray[np.float64],
    areas: NDArray[np.float64],
    by_left: NDArray[np.int32],
    start: int,
    stop: int,
    target: NDArray[np.float64],
    target_area: float,
    crowd: bool,
    pixel_offset: float,
    lowest: float,
    out_window: NDArray[np.int32],
    out_iou: NDArray[np.float64],
) -> int:
    """Windows start..stop whose IoU with `target` is at least `lowest`; returns how many were written.

    If `by_left` is not empty, boxes[i] is window by_left[i] and an image's boxes are sorted by x1. A window of that overlap
    cannot be wider than target / lowest, which bounds its left edge. A crowd's IoU divides by the window's area (COCO).
    Empty `areas`, and a negative `target_area`, stand for the areas that follow from the corners.
    """
    target_width = target[2] - target[0] + pixel_offset
    target_height = target[3] - target[1] + pixel_offset
    object_area = target_area if target_area >= 0.0 else target_width * target_height
    low, high = start, stop
    # IoU >= lowest means that the window is at most target / lowest wide, so its left edge is not far. The factor and the
    # offset leave room for rounding; a crowd divides by the window's own area, so nothing follows for its windows.
    if len(by_left) > 0 and not crowd and lowest > 0.0:
        low = _first_not_left_of(boxes, start, stop, target[0] - target_width / lowest * 1.000001 - 2.0 * pixel_offset)
        high = _first_not_left_of(boxes, start, stop, target[2] + pixel_offset * 1.000001)
    written = 0
    for i in range(low, high):
        width = min(boxes[i, 2], target[2]) - max(boxes[i, 0], target[0]) + pixel_offset
        height = min(boxes[i, 3], target[3]) - max(boxes[i, 1], target[1]) + pixel_offset
        if width <= 0.0 or height <= 0.0:
            continue
        inter = width * height
        if len(areas) > 0:
            area = areas[i]
        else:
            area = (boxes[i, 2] - boxes[i, 0] + pixel_offset) * (boxes[i, 3] - boxes[i, 1] + pixel_offset)
        iou = inter / (area if crowd else area + object_area - inter)
        if iou >= lowest:
            out_window[written] = by_left[i] if len(by_left) > 0 else i
            out_iou[written] = iou
            written += 1
    return written


@kernel
def _first_not_left_of(boxes: NDArray[np.float64], low: int, high: int, x: float) -> int:
    """The first of boxes[low:high], sorted by x1, with x1 >= x."""
    while low < high:
        middle = (low + high) // 2
        if boxes[middle, 0] < x:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def all_pairs(
    boxes: NDArray[np.float64],
    areas: NDArray[np.float64],
    by_left: NDArray[np.int32],
    offsets: NDArray[np.int64],
    object_boxes: NDArray[np.float64],
    object_areas: NDArray[np.float64],
    object_images: NDArray[np.int32],
    crowd: NDArray[np.bool_],
    pixel_offset: float,
    lowest: float,
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float64]]:
    """Windows, objects (numbered as given) and IoUs of at least `lowest`."""
    capacity, filled = 1024, 0
    windows = np.empty(capacity, dtype=np.int32)
    object_of = np.empty(capacity, dtype=np.int32)
    iou = np.empty(capacity)
    for g in range(len(object_boxes)):
        start, stop = offsets[object_images[g]], offsets[object_images[g] + 1]
        if filled + stop - start > capacity:
            capacity = max(2 * capacity, filled + stop - start)
            windows, old_windows = np.empty(capacity, dtype=np.int32), windows
            windows[:filled] = old_windows[:filled]
            object_of, old_object_of = np.empty(capacity, dtype=np.int32), object_of
            object_of[:filled] = old_object_of[:filled]
            iou, old_iou = np.empty(capacity), iou
            iou[:filled] = old_iou[:filled]
        target_area = object_areas[g] if len(object_areas) > 0 else -1.0
        written = overlap_pairs(
            boxes,
            areas,
            by_left,
            start,
            stop,
            object_boxes[g],
            target_area,
            crowd[g],
            pixel_offset,
            lowest,
            windows[filled:],
            iou[filled:],
        )
        object_of[filled : filled + written] = g
        filled += written
    return windows[:filled].copy(), object_of[:filled].copy(), iou[:filled].copy()
