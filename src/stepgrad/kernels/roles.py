"""What the windows of one class are at every match threshold: false or true positive, ignored, or absent.

NMS does not know the match threshold, and a window that reaches no object at any of them is the same at all: it is judged
once. Only reachers are judged at each threshold.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepgrad.kernels.class_view import ClassView, image_of, is_kept
from stepgrad.kernels.edited_ap import ranked_sum
from stepgrad.kernels.jit import by_reference, inlined, keep_alive, kernel
from stepgrad.kernels.matching import ABSENT, FALSE_POSITIVE, IGNORED, ONLY_EXCUSED, Reach, Rules, reach_of, role_of
from stepgrad.kernels.metric_code import NO_CUT, copied
from stepgrad.kernels.ranked_list import Ranked, rank_detections


class ByImage(NamedTuple):
    """Windows by image, in decreasing score: those of image i are slots[ptr[i]:ptr[i + 1]]."""

    slots: NDArray[np.int32]
    ptr: NDArray[np.int32]  # (images + 1,)


class RoleTable(NamedTuple):
    """The windows of a class at each match threshold t."""

    reach: Reach
    roles: NDArray[np.int8]  # (t, R) of the reachers
    contenders: NDArray[np.int32]  # (C,) slots of the kept reachers, by decreasing score
    listed: ByImage  # kept windows; empty if max_detections cannot bind
    last_counted: NDArray[np.int32]  # (images,) detections beyond this position exceed max_detections
    over_limit: NDArray[np.bool_]  # (images,) more windows are kept than count


@inlined
def role_in(judged: RoleTable, view: ClassView, t: int, slot: int) -> int:
    """The role of any window at threshold number t."""
    r = judged.reach.number[slot]
    if r >= 0:
        return judged.roles[t, r]
    if not is_kept(view, slot):
        return ABSENT
    counts = view.position[slot] <= judged.last_counted[image_of(view, slot)]
    return FALSE_POSITIVE if counts and r != ONLY_EXCUSED else IGNORED


@kernel
def _kept_by_image(view: ClassView) -> ByImage:
    """The order is walked twice, to count and to fill."""
    ptr = np.zeros(view.images + 1, dtype=np.int32)
    for slot in view.order:
        if is_kept(view, slot):
            ptr[image_of(view, slot) + 1] += 1
    for image in range(view.images):
        ptr[image + 1] += ptr[image]
    listed = np.empty(ptr[view.images], dtype=np.int32)
    filled = ptr[: view.images].copy()
    for slot in view.order:
        if is_kept(view, slot):
            image = image_of(view, slot)
            listed[filled[image]] = slot
            filled[image] += 1
    return ByImage(listed, ptr)


@kernel
def _limit_of_detections(view: ClassView) -> tuple[ByImage, NDArray[np.int32], NDArray[np.bool_]]:
    """Kept windows by image, the last position that counts, and which images keep more than count."""
    most = view.max_detections
    last_counted = np.full(view.images, len(view.order), dtype=np.int32)
    over = np.zeros(view.images, dtype=np.bool_)
    if most >= len(view.order):  # cannot bind, whatever NMS keeps
        nobody = ByImage(np.zeros(0, dtype=np.int32), np.zeros(view.images + 1, dtype=np.int32))
        return nobody, last_counted, over
    listed = _kept_by_image(view)
    for image in range(view.images):
        first, stop = listed.ptr[image], listed.ptr[image + 1]
        if stop - first >= most:
            last_counted[image] = view.position[listed.slots[first + most - 1]]
            over[image] = stop - first > most
    return listed, last_counted, over


@kernel
def _contenders(reach: Reach, view: ClassView) -> NDArray[np.int32]:
    """The kept ones of the few reachers: sorting them is quicker than walking the whole order."""
    kept = np.empty(len(reach.slots), dtype=np.int32)
    count = 0
    for slot in reach.slots:
        if is_kept(view, slot):
            kept[count] = view.position[slot]
            count += 1
    return view.order[np.sort(kept[:count])]


@kernel
def judge_class(view: ClassView, rules: Rules) -> RoleTable:
    """Match the contenders in decreasing score, at every threshold.

    Objects belong to one image, so walking the whole batch in score order matches each image in its own order.
    """
    reach = reach_of(view.pairs, view.objects, rules, len(view.position), view.images)
    known = by_reference(reach)
    listed, last_counted, over_limit = _limit_of_detections(view)
    contenders = _contenders(known, view)
    roles = np.full(reach.best.shape, ABSENT, dtype=np.int8)
    taken = np.zeros(len(view.objects.image), dtype=np.int32)
    for t in range(len(rules.thresholds)):
        for slot in contenders:
            r = reach.number[slot]
            if view.position[slot] > last_counted[image_of(view, slot)]:
                roles[t, r] = IGNORED
            else:
                roles[t, r] = role_of(r, t, view.pairs, view.objects, known, rules, taken, t + 1)
    keep_alive(reach)
    return RoleTable(reach, roles, contenders, listed, last_counted, over_limit)


@kernel
def rank_judged(judged: RoleTable, view: ClassView) -> Ranked:
    """The ranked list at every threshold."""
    limited = len(judged.listed.slots) > 0
    plain = np.empty(len(view.order), dtype=np.bool_)
    for p in range(len(view.order)):
        slot = view.order[p]
        counts = is_kept(view, slot) and (not limited or p <= judged.last_counted[image_of(view, slot)])
        plain[p] = counts and judged.reach.number[slot] != ONLY_EXCUSED
    at = view.position[judged.contenders]
    roles = np.empty((len(judged.roles), len(at)), dtype=np.int8)
    for z in range(len(at)):
        plain[at[z]] = False
        roles[:, z] = judged.roles[:, judged.reach.number[judged.contenders[z]]]
    cut = view.position[view.metric.cut] if view.metric.cut != NO_CUT else NO_CUT
    return rank_detections(plain, at, roles, view.cumulative.copy(), copied(view.metric), cut)


@kernel
def sums_of_class(view: ClassView, rules: Rules) -> NDArray[np.float64]:
    """AP times the protocol's norm, at every threshold."""
    windows = by_reference(view)
    judged = judge_class(windows, by_reference(rules))
    ranked = rank_judged(by_reference(judged), windows)
    sums = np.empty(len(rules.thresholds))
    for t in range(len(sums)):
        sums[t] = ranked_sum(by_reference(ranked), t)
    keep_alive(judged)
    keep_alive(ranked)
    return sums


@kernel
def roles_of_class(view: ClassView, rules: Rules) -> NDArray[np.int8]:
    """(t, N) the role of every window, by position."""
    windows = by_reference(view)
    judged = judge_class(windows, by_reference(rules))
    known = by_reference(judged)
    roles = np.empty((len(rules.thresholds), len(view.order)), dtype=np.int8)
    for t in range(len(roles)):
        for p in range(len(view.order)):
            roles[t, p] = role_in(known, windows, t, view.order[p])
    keep_alive(judged)
    return roles
