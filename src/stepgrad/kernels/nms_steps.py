"""Nearest steps of AP after NMS in every window's score, exactly (docs/method.md, Sec. 5).

For window b, f(x) = AP as a function of its score alone. NMS has two outcomes: W- (b missing) below theta, W+ (b kept)
above. A kept b lives in W+ and falls out at theta, the best window that only b suppresses; a suppressed b lives in W- and
enters at theta, its suppressor's score. Inside W+, b moves through a fixed list; its role changes where it passes *rivals*,
kept windows of its image that reach an object. Between rivals AP is monotone in b's place, so a bisection finds the step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepgrad.kernels.cascade import ADDED, REMOVED, highest_freed, on_top, only_lift_out, without
from stepgrad.kernels.class_view import ClassView, image_of, is_kept
from stepgrad.kernels.exact_sum import differ
from stepgrad.kernels.jit import by_reference, keep_alive, kernel
from stepgrad.kernels.matching import BEST_FREE, FALSE_POSITIVE, IGNORED, Rules
from stepgrad.kernels.metric_code import LEVELS
from stepgrad.kernels.rank_steps import (
    NONE,
    GapSteps,
    false_positive_steps,
    new_gap_steps,
    searched_steps,
    tie_groups,
    true_positive_steps,
)
from stepgrad.kernels.ranked_list import tp_above
from stepgrad.kernels.replay import edit_for_place, list_no_rivals, list_rivals, place_of, sum_with, unrivalled
from stepgrad.kernels.scene import COUNT, Scene, best_of, build_scene, is_bystander, is_plain, is_reacher, role_at
from stepgrad.kernels.shifts import forget_shifts, leaves_list_alone, leaves_ranks_alone, sums_after_replay

THROUGH_NONE, THROUGH_EXACT = 0, 1


class StepSums(NamedTuple):
    """Nearest steps by threshold and slot: the score at which the step is (+-inf: none) and the sum just beyond it."""

    up_at: NDArray[np.float64]  # (t, slots)
    up_sum: NDArray[np.float64]
    down_at: NDArray[np.float64]
    down_sum: NDArray[np.float64]
    present: NDArray[np.float64]  # (t,) the sums as things stand


class Search(NamedTuple):
    """What a search for steps goes by: closed forms for false and true positives; and its results."""

    fp: GapSteps
    tp: GapSteps
    out: StepSums


@kernel
def _gap_beyond(scene: Scene, t: int, k: int, rising: bool) -> int:
    """The gap just beyond true positive k and its ties."""
    passed = scene.ranked.tp_position[t, k]
    return int(scene.ties.start[passed]) if rising else int(scene.ties.end[passed]) + 1


@kernel
def _first_change_past_tps(scene: Scene, t: int, near: int, far: int, hi: float, lo: float) -> tuple[int, float]:
    """`_first_change` for a false positive: only the true positives on its way matter."""
    rising = far < near
    # `same` and `changed` number true positives: beyond the first the sum is as now, beyond the second it is not.
    same, changed = tp_above(scene.ranked, t, near) + int(rising), tp_above(scene.ranked, t, far) + int(rising)
    if same == changed:
        return NONE, hi
    value, far_lo = sum_with(scene, t, FALSE_POSITIVE, _gap_beyond(scene, t, changed, rising))
    if value == hi and far_lo == lo:
        return NONE, hi
    while abs(same - changed) > 1:
        middle = (same + changed) // 2
        mid_hi, mid_lo = sum_with(scene, t, FALSE_POSITIVE, _gap_beyond(scene, t, middle, rising))
        if mid_hi == hi and mid_lo == lo:
            same = middle
        else:
            changed, value = middle, mid_hi
    return _gap_beyond(scene, t, changed, rising), value


@kernel
def _first_change(scene: Scene, t: int, role: int, near: int, far: int, hi: float, lo: float) -> tuple[int, float]:
    """The gap nearest to `near` on the way to `far` at which the sum is no longer (hi, lo), and the sum there.

    Gaps are starts of tie groups (or the end of the list); the sum is monotone between `near` and `far`.
    """
    if role == FALSE_POSITIVE:
        return _first_change_past_tps(scene, t, near, far, hi, lo)
    far_hi, far_lo = sum_with(scene, t, role, far)
    if far_hi == hi and far_lo == lo:
        return NONE, hi
    same = near
    changed = far
    value = far_hi
    while True:
        low, high = min(same, changed), max(same, changed)
        middle = int(scene.ties.start[(low + high) // 2])
        if middle == low:  # the group of equal scores reaches back to `low`: try the one behind it
            middle = int(scene.ties.end[middle]) + 1
            if middle >= high:
                return changed, value
        mid_hi, mid_lo = sum_with(scene, t, role, middle)
        if mid_hi == hi and mid_lo == lo:
            same = middle
        else:
            changed, value = middle, mid_hi


@kernel
def _rise(scene: Scene, t: int, slot: int, gap: int) -> tuple[int, float]:
    """The position first passed, at or above `gap`, beyond which the sum is not as it stands; NONE if there is none."""
    hi, lo = scene.high[t], scene.low[t]
    place = place_of(scene, gap)
    while True:
        role = edit_for_place(scene, t, slot, place)
        now_hi, now_lo = sum_with(scene, t, role, gap)
        if differ(now_hi, now_lo, hi, lo):  # passing the last rival, or entering, was the step
            return gap, now_hi
        # Up to the next rival the window keeps its role and all others keep theirs: the sum is monotone on that stretch.
        top = scene.ties.end[scene.windows.position[scene.rivals.slots[place - 1]]] + 1 if place > 0 else 0
        if role != IGNORED and top < gap:
            passed, value = _first_change(scene, t, role, gap, top, now_hi, now_lo)
            if passed != NONE:
                return passed, value
        if place == 0:
            return NONE, hi
        gap = scene.ties.start[scene.windows.position[scene.rivals.slots[place - 1]]]
        place = place_of(scene, gap)


@kernel
def _sink(scene: Scene, t: int, slot: int, barrier: int) -> tuple[int, float]:
    """Likewise downwards, for a kept window, as long as it stays above position `barrier`."""
    hi, lo = scene.high[t], scene.low[t]
    gap = scene.ties.end[scene.windows.position[slot]] + 1
    while gap <= barrier:
        place = place_of(scene, gap)
        role = edit_for_place(scene, t, slot, place)
        now_hi, now_lo = sum_with(scene, t, role, gap)
        if differ(now_hi, now_lo, hi, lo):
            return gap - 1, now_hi
        bottom = barrier
        if place < scene.rivals.state[COUNT]:
            bottom = min(barrier, scene.ties.start[scene.windows.position[scene.rivals.slots[place]]])
        if role != IGNORED and gap < bottom:
            passed, value = _first_change(scene, t, role, gap, bottom, now_hi, now_lo)
            if passed != NONE:
                return passed - 1, value
        if place == scene.rivals.state[COUNT]:
            break
        gap = scene.ties.end[scene.windows.position[scene.rivals.slots[place]]] + 1
    return NONE, hi


@kernel
def _plain_steps(scene: Scene, t: int, slot: int, barrier: int, fp: GapSteps) -> tuple[int, float, int, float, bool]:
    """`_list_steps` for a window on no object, in closed form; the last is False where ties at the limit forbid it.

    Where more windows are kept than count, one that sinks below the first that does not count changes places with it, and
    one that does not count rises as the last that does. If both are false positives, nothing else happens.
    """
    windows, listed, ties = scene.windows, scene.judged.listed, scene.ties
    at, image, hi = windows.position[slot], image_of(windows, slot), scene.high[t]
    if scene.judged.over_limit[image]:
        next_in = listed.slots[listed.ptr[image] + windows.max_detections]
        last = scene.judged.last_counted[image]
        if not (is_plain(scene, slot) and is_plain(scene, next_in) and is_plain(scene, windows.order[last])):
            return NONE, hi, NONE, hi, False
        if at > last:
            u = tp_above(scene.ranked, t, last)
            return fp.up[t, u], fp.up_sum[t, u], NONE, hi, tp_above(scene.ranked, t, ties.start[last]) == u
        barrier = min(barrier, windows.position[next_in])
    elif is_bystander(scene, slot):
        return NONE, hi, NONE, hi, True
    u = tp_above(scene.ranked, t, at)
    down = fp.down[t, u] if fp.down[t, u] < barrier else NONE
    # Equal scores are passed as a whole: with the limit among them more than this true positive may be passed.
    clean = down == NONE or not scene.judged.over_limit[image] or ties.end[down] < barrier
    return fp.up[t, u], fp.up_sum[t, u], down, fp.down_sum[t, u], clean


@kernel
def _list_steps(scene: Scene, t: int, slot: int, barrier: int, search: Search) -> tuple[int, float, int, float]:
    """A kept window's nearest steps while NMS stays as it is: positions passed and sums beyond."""
    hi, tp = scene.high[t], search.tp
    alone = False
    if not is_reacher(scene, slot):
        up, up_sum, down, down_sum, known = _plain_steps(scene, t, slot, barrier, search.fp)
        if known:
            return up, up_sum, down, down_sum
    elif unrivalled(scene, t, slot):
        role, u = role_at(scene, t, slot), tp_above(scene.ranked, t, scene.windows.position[slot])
        if role == IGNORED:
            return NONE, hi, NONE, hi
        if role == FALSE_POSITIVE:
            up, up_sum, down, down_sum, _ = _plain_steps(scene, t, slot, barrier, search.fp)
            return up, up_sum, down, down_sum
        if scene.ranked.metric.kind == LEVELS:
            down = tp.down[t, u + 1] if tp.down[t, u + 1] < barrier else NONE
            return tp.up[t, u + 1], tp.up_sum[t, u + 1], down, tp.down_sum[t, u + 1]
        alone = True  # no closed form, but nobody's role depends on its place
    only_lift_out(slot, scene.cascade, scene.windows.rows)
    if alone:
        list_no_rivals(scene)
    else:
        list_rivals(scene, slot)
    up, up_sum = _rise(scene, t, slot, scene.ties.start[scene.windows.position[slot]])
    down, down_sum = _sink(scene, t, slot, barrier)
    return up, up_sum, down, down_sum


@kernel
def _score_at(scene: Scene, position: int, missing: float) -> float:
    return missing if position == NONE else scene.windows.scores[scene.windows.order[position]]


@kernel
def _kept_steps(scene: Scene, slot: int, theta: int, search: Search) -> None:
    out, place = search.out, scene.windows.position
    barrier = scene.ties.start[theta] if theta != NONE else len(scene.windows.order)
    open_below = False
    for t in range(len(scene.high)):
        hi = scene.high[t]
        up, up_sum, down, down_sum = _list_steps(scene, t, slot, barrier, search)
        out.up_at[t, slot], out.up_sum[t, slot] = _score_at(scene, up, np.inf), up_sum if up != NONE else hi
        out.down_at[t, slot], out.down_sum[t, slot] = _score_at(scene, down, -np.inf), down_sum if down != NONE else hi
        open_below |= down == NONE
    # Below theta another window is kept in its stead. That is the step if none came before; it cannot matter where both
    # stand below everything that could be a true positive.
    limit = scene.last_relevant[image_of(scene.windows, slot)]
    if not open_below or theta == NONE or (theta > limit and place[slot] > limit):
        return
    without(slot, scene.cascade, scene.windows, limit)
    if not sums_after_replay(scene, slot, NONE):
        return
    for t in range(len(scene.high)):
        now_hi, now_lo = scene.replayed.high[t], scene.replayed.low[t]
        if out.down_at[t, slot] == -np.inf and differ(now_hi, now_lo, scene.high[t], scene.low[t]):
            out.down_at[t, slot], out.down_sum[t, slot] = scene.windows.scores[scene.windows.order[theta]], now_hi


@kernel
def _replaces(scene: Scene, t: int, slot: int) -> bool:
    """Whether the replay only put this window in its suppressor's place, with the same claim on objects, or excuse."""
    counts = scene.cascade.counts
    best = best_of(scene, t, slot)
    other = scene.windows.kept.suppressor[slot]
    if counts[REMOVED] != 1 or counts[ADDED] != 0 or best != best_of(scene, t, other):
        return False
    if is_bystander(scene, slot) != is_bystander(scene, other):
        return False
    return scene.rules.rule != BEST_FREE or best < 0 or not scene.judged.reach.several[t, image_of(scene.windows, slot)]


@kernel
def _enters_alone(scene: Scene, t: int, at: int) -> bool:
    """Whether no true positive of list t is tied, above it, with the window at a position.

    Equal scores are passed as a whole, so a window enters above the whole group: true positives in it would be passed.
    """
    return tp_above(scene.ranked, t, scene.ties.start[at]) == tp_above(scene.ranked, t, at)


@kernel
def _enters_below_all(scene: Scene, slot: int, at: int, search: Search) -> bool:
    """Steps of a window that enters below everything that matters, while its suppressor has another role; False where ties or
    the limit of detections have a say."""
    ranked, fp, out = scene.ranked, search.fp, search.out
    if scene.judged.over_limit[image_of(scene.windows, slot)] or ranked.zone[scene.ties.start[at]] != ranked.zone[at]:
        return False
    if is_plain(scene, slot):  # one false positive more, from behind the last true positive
        for t in range(len(scene.high)):
            up = fp.up[t, ranked.T[t]]
            if up != NONE:
                out.up_at[t, slot], out.up_sum[t, slot] = _score_at(scene, up, np.inf), fp.up_sum[t, ranked.T[t]]
    return True


@kernel
def _suppressed_steps(scene: Scene, slot: int, search: Search) -> None:
    out, above = search.out, scene.windows.kept.suppressor[slot]
    at, image = scene.windows.position[above], image_of(scene.windows, slot)
    limit = scene.last_relevant[image]
    same_kind = is_bystander(scene, slot) == is_bystander(scene, above)
    # Entering next to its suppressor, a window that changes nothing there rises through the same list to the same steps.
    if at > limit and same_kind:
        _share_all(out, slot, above)
        return
    if at > limit and _enters_below_all(scene, slot, at, search):
        return
    on_top(slot, scene.cascade, scene.windows, limit)
    alone = leaves_ranks_alone(scene, slot, at)
    if alone == 1 and same_kind and scene.ranked.zone[scene.ties.start[at]] == scene.ranked.zone[at]:
        _share_all(out, slot, above)
        forget_shifts(scene)
        return
    listed = False
    unseen = is_bystander(scene, slot) and at <= scene.judged.last_counted[image]  # wherever it rises to from there
    for t in range(len(scene.high)):
        unchanged = alone != NONE and leaves_list_alone(scene, t)
        if unchanged and unseen:
            continue
        same = unchanged and same_kind and _enters_alone(scene, t, at)
        if same or _replaces(scene, t, slot):
            out.up_at[t, slot], out.up_sum[t, slot] = out.up_at[t, above], out.up_sum[t, above]
            continue
        if not listed:
            list_rivals(scene, slot)
            listed = True
        up, up_sum = _rise(scene, t, slot, scene.ties.start[at])
        out.up_at[t, slot], out.up_sum[t, slot] = _score_at(scene, up, np.inf), up_sum
    forget_shifts(scene)


@kernel
def _share_all(out: StepSums, slot: int, above: int) -> None:
    """The suppressor's steps upwards, at all thresholds."""
    for t in range(len(out.present)):
        out.up_at[t, slot], out.up_sum[t, slot] = out.up_at[t, above], out.up_sum[t, above]


@kernel
def new_search(scene: Scene) -> Search:
    """Closed forms for all lists, and no steps found yet."""
    thresholds, slots = len(scene.high), len(scene.windows.position)
    fp, tp = new_gap_steps(scene.ranked), new_gap_steps(scene.ranked)
    for t in range(thresholds):
        if scene.ranked.metric.kind == LEVELS:
            false_positive_steps(scene.ranked, scene.lift, t, scene.edits, scene.ties, fp)
            true_positive_steps(scene.ranked, scene.lift, t, scene.edits, scene.ties, tp)
        else:
            searched_steps(scene.ranked, scene.lift, t, scene.edits, scene.ties, fp)
    shape = (thresholds, slots)
    out = StepSums(np.full(shape, np.inf), np.empty(shape), np.full(shape, -np.inf), np.empty(shape), scene.high.copy())
    for t in range(thresholds):
        out.up_sum[t] = scene.high[t]
        out.down_sum[t] = scene.high[t]
    return Search(fp, tp, out)


@kernel
def nearest_steps(scene: Scene, through: int, search: Search) -> None:
    """Nearest steps of every window; with THROUGH_NONE the kept set is held fixed and suppressed windows have none."""
    slots = len(scene.windows.position)
    exact = through == THROUGH_EXACT
    for slot in range(slots):  # image after image, so that what is looked up stays near
        if scene.windows.position[slot] >= 0 and is_kept(scene.windows, slot):
            _kept_steps(scene, slot, highest_freed(slot, scene.windows) if exact else NONE, search)
    if exact:
        for slot in range(slots):  # a window may share the steps of its suppressor, known by now
            if scene.windows.kept.suppressor[slot] >= 0:
                _suppressed_steps(scene, slot, search)


@kernel
def steps_of_class(view: ClassView, rules: Rules, through: int) -> StepSums:
    """The nearest steps of one class at every threshold."""
    owned = build_scene(view, rules, tie_groups(view.scores, view.order))
    scene = by_reference(owned)
    search = new_search(scene)
    nearest_steps(scene, through, by_reference(search))
    keep_alive(owned)
    return search.out
