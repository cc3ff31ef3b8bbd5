"""What each detection of a class is at every match threshold: true positive, false positive, ignored, or absent.

A detection claims an object by the rule of the protocol (Henderson & Ferrari 2016, Sec. 2.2, for VOC's). NMS does not know the
match thresholds, and a window that reaches no object at any of them is the same at all: it is judged once. Only windows that
*reach* an object at some threshold are judged at each. Those of them that NMS kept are the *contenders*: few, and all that
true positives can be made of.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepgrad.engine.jit import inlined, kernel, lend, take_back
from stepgrad.engine.neighbours import Neighbours
from stepgrad.engine.nms import NONE, AfterNMS, image_of, is_kept
from stepgrad.engine.overlaps import EXCUSED, Objects

FALSE_POSITIVE, TRUE_POSITIVE, IGNORED, ABSENT = 0, 1, 2, 3
BYSTANDER = -2
"""In Judged.number: a window that reaches nothing but an excuse, ignored wherever it stands. It counts for the limit only."""
_ALMOST_ONE = 1.0 - 1e-10  # pycocotools never asks for more overlap than this


class Rules(NamedTuple):
    """How one class is counted, as numbers."""

    thresholds: NDArray[np.float64]  # (t,) overlaps at which a window finds an object; of distances their negatives
    equality: bool  # whether an overlap of exactly the threshold is enough
    best_free: bool  # a window takes the best object that is free (COCO), or only the best one (VOC)
    images: int
    max_detections: int  # per image; those beyond are ignored
    cumulative: NDArray[np.int64]  # (P + 1,) recall levels that k true positives reach
    norm: int  # recall levels in all: AP = sum / norm
    kind: int  # which metric (lists.py)
    objects: int  # P, the number of objects to be found
    first: float  # numbers of the metric: the precision to reach, or the price of a false alarm
    second: float  # the price of a miss
    cut: int  # the window that stands for a fixed threshold of the score, or NONE
    allowed: NDArray[np.int64]  # false positives allowed at each point of the miss rate, increasing
    logs: NDArray[np.float64]  # (P + 1,) log of the miss rate, by the number of objects missed


class Judged(NamedTuple):
    """The windows of a class at each match threshold t. R windows reach an object, C of them are contenders."""

    # (windows,) of a window among those that reach an object; BYSTANDER, or NONE for the others
    number: NDArray[np.int32]
    first: NDArray[np.int32]  # (R,) its pairs in Objects ...
    last: NDArray[np.int32]  # (R,) ... up to here
    best: NDArray[np.int32]  # (t, R) object of the largest overlap, NONE if it reaches none at this threshold
    role: NDArray[np.int8]  # (t, R)
    took: NDArray[np.int32]  # (t, R) the object of a detection that counts or is ignored for one, else NONE
    several: NDArray[np.bool_]  # (t, images) some window of the image reaches more than one object
    fresh: NDArray[np.bool_]  # (t, images) some window of the image reaches other objects than at threshold t - 1
    lowest: NDArray[np.int32]  # (images,) position of the lowest window that reaches an object, NONE without one
    contenders: NDArray[np.int32]  # (C,) by decreasing score
    contenders_of: NDArray[np.int32]  # (C,) the same image after image ...
    contender_ptr: NDArray[np.int32]  # (images + 1,) ... those of image i from ptr[i] to ptr[i + 1]
    listed: NDArray[np.int32]  # kept windows image after image by decreasing score; none if max_detections cannot bind
    listed_ptr: NDArray[np.int32]  # (images + 1,)
    last_counted: NDArray[np.int32]  # (images,) detections beyond this position exceed max_detections


class OneClass(NamedTuple):
    """One class of a batch, ordered and suppressed, and how it is counted: what the kernels take."""

    ranking: AfterNMS
    neighbours: Neighbours
    objects: Objects
    rules: Rules

    @property
    def kept(self) -> int:
        """How many windows NMS kept."""
        return int(np.unpackbits(self.ranking.kept.view(np.uint8)).sum())

    @property
    def by_score(self) -> NDArray[np.int32]:
        """Indices of the windows by decreasing score."""
        return self.neighbours.index_of[self.ranking.order]


@kernel
def reaches(overlap: float, rules: Rules, t: int) -> bool:
    """Whether an overlap suffices: the one place where an overlap meets a match threshold."""
    # COCO lowers a threshold of 1, so that a perfect box reaches it in floating point too.
    threshold = min(rules.thresholds[t], _ALMOST_ONE) if rules.best_free else rules.thresholds[t]
    return overlap >= threshold if rules.equality else overlap > threshold


@inlined
def role_at(judged: Judged, ranking: AfterNMS, neighbours: Neighbours, t: int, window: int) -> int:
    """The role of any window at threshold t."""
    r = judged.number[window]
    if r >= 0:
        return judged.role[t, r]
    if not is_kept(ranking, window):
        return ABSENT
    # A window that reaches no object is a false positive wherever it stands, unless only so many detections count.
    counts = ranking.position[window] <= judged.last_counted[image_of(neighbours, window)]
    return FALSE_POSITIVE if counts and r != BYSTANDER else IGNORED


@kernel
def judge(ranking: AfterNMS, neighbours: Neighbours, objects: Objects, rules: Rules) -> Judged:
    """Match the contenders in decreasing score, at every threshold.

    Objects belong to one image, so walking the whole batch in score order matches each image in its own order.
    """
    owned = _reach(objects, rules, ranking, neighbours)
    judged = lend(owned)
    taken = np.zeros(len(objects.image), dtype=np.int32)
    for t in range(len(rules.thresholds)):
        for window in judged.contenders:
            r = judged.number[window]
            # Beyond the limit of detections per image: neither right nor wrong, and it takes no object.
            if ranking.position[window] > judged.last_counted[image_of(neighbours, window)]:
                judged.role[t, r] = IGNORED
            else:
                judged.role[t, r], judged.took[t, r] = claim(r, t, objects, judged, rules, taken, t + 1)
    take_back(owned)
    return owned


@kernel
def _that_reach(objects: Objects, rules: Rules, windows: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """`Judged.number`, and the windows that reach an object at some threshold, increasing, so image after image."""
    number = np.full(windows, NONE, dtype=np.int32)
    reaching = np.empty(len(objects.pair_window), dtype=np.int32)
    count = 0
    for k in range(len(objects.pair_window)):
        window = objects.pair_window[k]
        if number[window] >= 0:
            continue
        if objects.pair_overlap[k] == EXCUSED:
            number[window] = BYSTANDER  # unless a later pair is with a real object
            continue
        for t in range(len(rules.thresholds)):
            # One threshold is enough; the lowest is the likeliest, and comes first in every protocol.
            if reaches(objects.pair_overlap[k], rules, t):
                reaching[count] = window
                number[window] = count
                count += 1
                break
    return number, reaching[:count]


@kernel
def _reach(objects: Objects, rules: Rules, ranking: AfterNMS, neighbours: Neighbours) -> Judged:
    """Which objects each window reaches, who the contenders are, and how many detections count; no roles yet."""
    number, windows = _that_reach(objects, rules, len(ranking.position))
    R, thresholds = len(windows), len(rules.thresholds)
    # Windows that NMS removed take no object, so only kept ones are matched; the others are asked about in other worlds.
    contenders = _by_score(windows, ranking)
    contenders_of, contender_ptr = _by_image(contenders, rules.images, neighbours)
    listed, listed_ptr, last_counted = _limit(ranking, neighbours, rules)
    judged = Judged(
        number=number,
        first=np.full(R, len(objects.pair_window), dtype=np.int32),
        last=np.zeros(R, dtype=np.int32),
        best=np.full((thresholds, R), NONE, dtype=np.int32),
        role=np.full((thresholds, R), ABSENT, dtype=np.int8),
        took=np.full((thresholds, R), NONE, dtype=np.int32),
        several=np.zeros((thresholds, rules.images), dtype=np.bool_),
        fresh=np.zeros((thresholds, rules.images), dtype=np.bool_),
        lowest=np.full(rules.images, NONE, dtype=np.int32),
        contenders=contenders,
        contenders_of=contenders_of,
        contender_ptr=contender_ptr,
        listed=listed,
        listed_ptr=listed_ptr,
        last_counted=last_counted,
    )
    for window in windows:
        image = image_of(neighbours, window)
        judged.lowest[image] = max(judged.lowest[image], ranking.position[window])
    for k in range(len(objects.pair_window)):
        # Pairs of a window follow each other: the first and the last tell them all.
        r = number[objects.pair_window[k]]
        if r >= 0:
            judged.first[r] = min(judged.first[r], k)
            judged.last[r] = k + 1
    lent = lend(judged)
    for t in range(thresholds):
        _find_best(objects, rules, t, lent)
    take_back(judged)
    return judged


@kernel
def _find_best(objects: Objects, rules: Rules, t: int, judged: Judged) -> None:
    """The object that each window overlaps most at threshold t, of equal overlaps the first; `several` and `fresh`."""
    judged.fresh[t] = t == 0
    largest = np.full(len(judged.first), -np.inf)
    for k in range(len(objects.pair_window)):
        r = judged.number[objects.pair_window[k]]
        if r < 0:
            continue
        overlap, image = objects.pair_overlap[k], objects.image[objects.pair_object[k]]
        # `fresh` lets the next threshold copy what this one has found, `several` tells whether an order of claims can matter.
        here = reaches(overlap, rules, t)
        if t > 0 and here != reaches(overlap, rules, t - 1):
            judged.fresh[t, image] = True
        if not here:
            continue
        if judged.best[t, r] != NONE:
            judged.several[t, image] = True
        if overlap > largest[r]:
            largest[r] = overlap
            judged.best[t, r] = objects.pair_object[k]


@kernel
def claim(
    r: int, t: int, objects: Objects, judged: Judged, rules: Rules, taken: NDArray[np.int32], stamp: int
) -> tuple[int, int]:
    """The role of window number r as the next detection of its image, and its object; taken objects are marked with `stamp`."""
    target = judged.best[t, r]
    if target == NONE:
        return FALSE_POSITIVE, NONE
    if rules.best_free:
        target = _best_free(r, t, objects, judged, rules, taken, stamp)
        if target == NONE:
            return FALSE_POSITIVE, NONE
    # An ignored object excuses every detection of it, or, of another size under COCO, the first.
    if objects.ignored[target]:
        if objects.once[target]:
            taken[target] = stamp
        return IGNORED, target
    if taken[target] == stamp:  # VOC: the best object is found already, and no other is looked at
        return FALSE_POSITIVE, NONE
    taken[target] = stamp
    return TRUE_POSITIVE, target


@kernel
def _best_free(
    r: int, t: int, objects: Objects, judged: Judged, rules: Rules, taken: NDArray[np.int32], stamp: int
) -> int:
    """COCO: the free object of the largest overlap, of equals the last; an ignored one only if no countable one is free."""
    choice, largest = NONE, -np.inf
    # Two rules, in this order: a countable object before an ignored one, then the larger overlap.
    for k in range(judged.first[r], judged.last[r]):
        target = objects.pair_object[k]
        # A crowd may be found any number of times.
        always_free = objects.ignored[target] and not objects.once[target]
        if not reaches(objects.pair_overlap[k], rules, t) or (taken[target] == stamp and not always_free):
            continue
        overlap = objects.pair_overlap[k] if objects.pair_overlap[k] < EXCUSED else -np.inf
        if choice != NONE and objects.ignored[choice] != objects.ignored[target]:
            better = objects.ignored[choice]  # a countable object before any ignored one
        else:
            better = overlap >= largest
        if better:
            choice, largest = target, overlap
    return choice


@kernel
def _by_score(windows: NDArray[np.int32], ranking: AfterNMS) -> NDArray[np.int32]:
    """The kept ones of some windows, by decreasing score."""
    # Positions are known, so marking and collecting sorts in one walk.
    marked = np.zeros(len(ranking.order), dtype=np.bool_)
    count = 0
    for window in windows:
        if is_kept(ranking, window):
            marked[ranking.position[window]] = True
            count += 1
    sorted_windows = np.empty(count, dtype=np.int32)
    count = 0
    for p in range(len(marked)):
        if marked[p]:
            sorted_windows[count] = ranking.order[p]
            count += 1
    return sorted_windows


@kernel
def _by_image(
    windows: NDArray[np.int32], images: int, neighbours: Neighbours
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Windows image after image, in each in the order given; and where each image begins (images + 1,)."""
    ptr = np.zeros(images + 1, dtype=np.int32)
    for window in windows:
        ptr[image_of(neighbours, window) + 1] += 1
    for image in range(images):
        ptr[image + 1] += ptr[image]
    grouped = np.empty(len(windows), dtype=np.int32)
    filled = ptr[:images].copy()
    for window in windows:
        image = image_of(neighbours, window)
        grouped[filled[image]] = window
        filled[image] += 1
    return grouped, ptr


@kernel
def _limit(
    ranking: AfterNMS, neighbours: Neighbours, rules: Rules
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """Kept windows by image, and the last position of each image that counts: COCO judges so many detections per image."""
    most, n = rules.max_detections, len(ranking.order)
    last_counted = np.full(rules.images, n, dtype=np.int32)
    if most >= n:  # cannot bind, whatever NMS keeps
        return np.zeros(0, dtype=np.int32), np.zeros(rules.images + 1, dtype=np.int32), last_counted
    kept = np.empty(n, dtype=np.int32)
    count = 0
    for window in ranking.order:
        if is_kept(ranking, window):
            kept[count] = window
            count += 1
    listed, ptr = _by_image(kept[:count], rules.images, neighbours)
    for image in range(rules.images):
        if ptr[image + 1] - ptr[image] >= most:
            last_counted[image] = ranking.position[listed[ptr[image] + most - 1]]
    return listed, ptr, last_counted
