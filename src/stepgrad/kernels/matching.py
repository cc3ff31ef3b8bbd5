"""Which object a detection finds, by the rule of the protocol."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepgrad.kernels.jit import kernel

FALSE_POSITIVE, TRUE_POSITIVE, IGNORED, ABSENT = 0, 1, 2, 3
BEST, BEST_FREE = 0, 1  # protocol.duplicates
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
    iou: NDArray[np.float64]


class Objects(NamedTuple):
    """The objects of one class, in the order of the targets."""

    image: NDArray[np.int32]
    ignored: NDArray[np.bool_]  # difficult or crowd: not to be found, no fault to find


class Candidates(NamedTuple):
    """What each window could be matched to at one threshold."""

    best: NDArray[np.int32]  # (slots,) object of the largest IoU, -1 if none reaches the threshold
    first: NDArray[np.int32]  # (slots,) its entries in Pairs ...
    last: NDArray[np.int32]  # ... up to here
    several: NDArray[np.bool_]  # (images,) some window of the image reaches more than one object


@kernel
def reaches(iou: float, rule: Rule) -> bool:
    """Whether an overlap suffices; the one place where an IoU meets a match threshold."""
    if rule.rule == BEST_FREE:
        return iou >= min(rule.threshold, _ALMOST_ONE)
    if rule.equality:
        return iou >= rule.threshold
    return iou > rule.threshold


@kernel
def candidates_of(pairs: Pairs, objects: Objects, rule: Rule, slots: int, images: int) -> Candidates:
    """The objects each window reaches; among equal overlaps "best" takes the first, "best_free" the last."""
    best = np.full(slots, -1, dtype=np.int32)
    first = np.zeros(slots, dtype=np.int32)
    last = np.zeros(slots, dtype=np.int32)
    several = np.zeros(images, dtype=np.bool_)
    largest = 0.0
    for k in range(len(pairs.slot)):
        slot = pairs.slot[k]
        if not reaches(pairs.iou[k], rule):
            continue
        if best[slot] < 0:
            first[slot] = k
            largest = -1.0
        else:
            several[objects.image[pairs.object[k]]] = True
        last[slot] = k + 1
        if pairs.iou[k] > largest:
            largest = pairs.iou[k]
            best[slot] = pairs.object[k]
    return Candidates(best, first, last, several)


@kernel
def _best_free(
    slot: int, pairs: Pairs, objects: Objects, candidates: Candidates, rule: Rule, taken: NDArray[np.int32], stamp: int
) -> int:
    """The free object of the largest IoU (the later of equals); an ignored one only if no countable one is free."""
    choice, largest = -1, -1.0
    for k in range(candidates.first[slot], candidates.last[slot]):
        target = pairs.object[k]
        if not reaches(pairs.iou[k], rule) or (taken[target] == stamp and not objects.ignored[target]):
            continue
        # COCO: once a countable object is at hand, ignored ones are not looked at; the later of equal overlaps wins.
        if choice >= 0 and objects.ignored[choice] != objects.ignored[target]:
            better = objects.ignored[choice]
        else:
            better = pairs.iou[k] >= largest
        if better:
            choice, largest = target, pairs.iou[k]
    return choice


@kernel
def role_of(
    slot: int, pairs: Pairs, objects: Objects, candidates: Candidates, rule: Rule, taken: NDArray[np.int32], stamp: int
) -> int:
    """The role of the next detection of an image, marking the object it takes with `stamp`."""
    if candidates.best[slot] < 0:
        return FALSE_POSITIVE
    target = candidates.best[slot]
    if rule.rule == BEST_FREE:
        target = _best_free(slot, pairs, objects, candidates, rule, taken, stamp)
        if target < 0:
            return FALSE_POSITIVE
    if objects.ignored[target]:
        return IGNORED
    if taken[target] == stamp:
        return FALSE_POSITIVE
    taken[target] = stamp
    return TRUE_POSITIVE


@kernel
def match_all(
    order: NDArray[np.int32],
    kept: NDArray[np.uint64],
    image_of_word: NDArray[np.int32],
    pairs: Pairs,
    objects: Objects,
    candidates: Candidates,
    rule: Rule,
    max_detections: int,
) -> NDArray[np.int8]:
    """The role of every slot: kept windows in decreasing score, the others ABSENT.

    Objects belong to one image, so walking the whole batch in score order matches each image in its own order.
    """
    roles = np.full(64 * len(kept), ABSENT, dtype=np.int8)
    taken = np.zeros(len(objects.image), dtype=np.int32)
    seen = np.zeros(len(candidates.several), dtype=np.int32)
    best = candidates.best
    for slot in order:
        word = slot >> 6
        if not kept[word] & (np.uint64(1) << np.uint64(slot & 63)):
            continue
        seen[image_of_word[word]] += 1
        if seen[image_of_word[word]] > max_detections:
            roles[slot] = IGNORED
        elif best[slot] < 0:
            roles[slot] = FALSE_POSITIVE
        else:
            roles[slot] = role_of(slot, pairs, objects, candidates, rule, taken, 1)
    return roles


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
