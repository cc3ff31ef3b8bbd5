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
from stepgrad.kernels.class_view import ClassView, image_of
from stepgrad.kernels.edited_ap import edited_sum
from stepgrad.kernels.exact_sum import differ
from stepgrad.kernels.jit import by_reference, keep_alive, kernel
from stepgrad.kernels.matching import ABSENT, BEST_FREE, FALSE_POSITIVE, IGNORED, TRUE_POSITIVE, Rule
from stepgrad.kernels.rank_steps import NONE, GapSteps, envelope_of, false_positive_steps, true_positive_steps
from stepgrad.kernels.replay import (
    edit_for_place,
    list_rivals,
    place_of,
    replay_shifts_a_true_positive,
    replay_touches_objects,
    sum_with,
    unrivalled,
)
from stepgrad.kernels.scene import COUNT, Scene, build_scene, list_sum

THROUGH_NONE, THROUGH_EXACT, THROUGH_PAPER = 0, 1, 2


class StepSums(NamedTuple):
    """Nearest steps by slot: the score at which the step is (+-inf: none) and the sum just beyond it."""

    up_at: NDArray[np.float64]
    up_sum: NDArray[np.float64]
    down_at: NDArray[np.float64]
    down_sum: NDArray[np.float64]
    present: float  # the sum as things stand


@kernel
def _gap_beyond(scene: Scene, k: int, rising: bool) -> int:
    """The gap just beyond true positive k and its ties."""
    passed = scene.ranked.tp_position[k]
    return int(scene.ties.start[passed]) if rising else int(scene.ties.end[passed]) + 1


@kernel
def _first_change_past_tps(scene: Scene, near: int, far: int, hi: float, lo: float) -> tuple[int, float]:
    """`_first_change` for a false positive: only the true positives on its way matter."""
    rising = far < near
    tp_above = scene.ranked.tp_above
    # `same` and `changed` number true positives: beyond the first the sum is as now, beyond the second it is not.
    same, changed = (tp_above[near] + 1, tp_above[far] + 1) if rising else (tp_above[near], tp_above[far])
    if same == changed:
        return NONE, hi
    value, far_lo = sum_with(scene, FALSE_POSITIVE, _gap_beyond(scene, changed, rising))
    if value == hi and far_lo == lo:
        return NONE, hi
    while abs(same - changed) > 1:
        middle = (same + changed) // 2
        mid_hi, mid_lo = sum_with(scene, FALSE_POSITIVE, _gap_beyond(scene, middle, rising))
        if mid_hi == hi and mid_lo == lo:
            same = middle
        else:
            changed, value = middle, mid_hi
    return _gap_beyond(scene, changed, rising), value


@kernel
def _first_change(scene: Scene, role: int, near: int, far: int, hi: float, lo: float) -> tuple[int, float]:
    """The gap nearest to `near` on the way to `far` at which the sum is no longer (hi, lo), and the sum there.

    Gaps are starts of tie groups (or the end of the list); the sum is monotone between `near` and `far`.
    """
    if role == FALSE_POSITIVE:
        return _first_change_past_tps(scene, near, far, hi, lo)
    far_hi, far_lo = sum_with(scene, role, far)
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
        mid_hi, mid_lo = sum_with(scene, role, middle)
        if mid_hi == hi and mid_lo == lo:
            same = middle
        else:
            changed, value = middle, mid_hi


@kernel
def _rise(scene: Scene, slot: int, gap: int, hi: float, lo: float) -> tuple[int, float]:
    """The position first passed, at or above `gap`, beyond which the sum differs from (hi, lo); NONE if there is none."""
    place = place_of(scene, gap)
    while True:
        role = edit_for_place(scene, slot, place)
        now_hi, now_lo = sum_with(scene, role, gap)
        if differ(now_hi, now_lo, hi, lo):  # passing the last rival, or entering, was the step
            return gap, now_hi
        # Up to the next rival the window keeps its role and all others keep theirs: the sum is monotone on that stretch.
        top = scene.ties.end[scene.windows.position[scene.rivals.slots[place - 1]]] + 1 if place > 0 else 0
        if role != IGNORED and top < gap:
            passed, value = _first_change(scene, role, gap, top, now_hi, now_lo)
            if passed != NONE:
                return passed, value
        if place == 0:
            return NONE, hi
        gap = scene.ties.start[scene.windows.position[scene.rivals.slots[place - 1]]]
        place = place_of(scene, gap)


@kernel
def _sink(scene: Scene, slot: int, barrier: int, hi: float, lo: float) -> tuple[int, float]:
    """Likewise downwards, for a kept window, as long as it stays above position `barrier`."""
    gap = scene.ties.end[scene.windows.position[slot]] + 1
    while gap <= barrier:
        place = place_of(scene, gap)
        role = edit_for_place(scene, slot, place)
        now_hi, now_lo = sum_with(scene, role, gap)
        if differ(now_hi, now_lo, hi, lo):
            return gap - 1, now_hi
        bottom = barrier
        if place < scene.rivals.state[COUNT]:
            bottom = min(barrier, scene.ties.start[scene.windows.position[scene.rivals.slots[place]]])
        if role != IGNORED and gap < bottom:
            passed, value = _first_change(scene, role, gap, bottom, now_hi, now_lo)
            if passed != NONE:
                return passed - 1, value
        if place == scene.rivals.state[COUNT]:
            break
        gap = scene.ties.end[scene.windows.position[scene.rivals.slots[place]]] + 1
    return NONE, hi


@kernel
def _list_steps(
    scene: Scene, slot: int, barrier: int, fp: GapSteps, tp: GapSteps, hi: float, lo: float
) -> tuple[int, float, int, float]:
    """A kept window's nearest steps while NMS stays as it is: positions passed and sums beyond."""
    role, u = scene.roles[slot], int(scene.ranked.tp_above[scene.windows.position[slot]])
    if role == IGNORED and unrivalled(scene, slot):
        return NONE, hi, NONE, hi
    if unrivalled(scene, slot):
        steps, i = (tp, u + 1) if role == TRUE_POSITIVE else (fp, u)
        down = steps.down[i] if steps.down[i] < barrier else NONE
        return steps.up[i], steps.up_sum[i], down, steps.down_sum[i]
    only_lift_out(slot, scene.cascade, scene.windows.rows)
    list_rivals(scene, slot)
    up, up_sum = _rise(scene, slot, scene.ties.start[scene.windows.position[slot]], hi, lo)
    down, down_sum = _sink(scene, slot, barrier, hi, lo)
    return up, up_sum, down, down_sum


@kernel
def _score_at(scene: Scene, position: int, missing: float) -> float:
    return missing if position == NONE else scene.windows.scores[scene.windows.order[position]]


@kernel
def _kept_steps(
    scene: Scene, slot: int, theta: int, fp: GapSteps, tp: GapSteps, hi: float, lo: float, out: StepSums
) -> None:
    image = image_of(scene.windows, slot)
    barrier = scene.ties.start[theta] if theta != NONE else len(scene.windows.order)
    up, up_sum, down, down_sum = _list_steps(scene, slot, barrier, fp, tp, hi, lo)
    out.up_at[slot], out.up_sum[slot] = _score_at(scene, up, np.inf), up_sum if up != NONE else hi
    out.down_at[slot], out.down_sum[slot] = _score_at(scene, down, -np.inf), down_sum if down != NONE else hi
    # Below theta another window is kept in its stead. That is the step if none came before; it cannot matter where both
    # stand below everything that could be a true positive.
    limit = scene.last_relevant[image]
    if down != NONE or theta == NONE or (theta > limit and scene.windows.position[slot] > limit):
        return
    without(slot, scene.cascade, scene.windows, limit)
    list_rivals(scene, slot)
    edit_for_place(scene, slot, NONE)
    now_hi, now_lo = edited_sum(scene.ranked, scene.lift, scene.edits)
    if differ(now_hi, now_lo, hi, lo):
        out.down_at[slot], out.down_sum[slot] = scene.windows.scores[scene.windows.order[theta]], now_hi


@kernel
def _replaces(scene: Scene, slot: int) -> bool:
    """Whether the replay only put this window in its suppressor's place, with the same claim on objects."""
    counts = scene.cascade.counts
    best = scene.candidates.best
    other = scene.windows.kept.suppressor[slot]
    if counts[REMOVED] != 1 or counts[ADDED] != 0 or best[slot] != best[other]:
        return False
    return scene.rule.rule != BEST_FREE or best[slot] < 0 or not scene.candidates.several[image_of(scene.windows, slot)]


@kernel
def _amounts_to_replacing(scene: Scene, slot: int) -> bool:
    """Whether, one false positive in another's place apart, the replay leaves every true positive's rank as it is."""
    image = image_of(scene.windows, slot)
    if (
        len(scene.listed.slots) > 0
        and scene.listed.ptr[image + 1] - scene.listed.ptr[image] + scene.cascade.counts[ADDED]
        >= scene.windows.max_detections
    ):
        return False
    if replay_touches_objects(scene, slot):
        return False
    other = scene.windows.kept.suppressor[slot]
    tp_above, at = scene.ranked.tp_above, scene.windows.position[other]
    # Equal scores are passed as a whole, so the window enters above the whole group: true positives in it would be passed.
    if tp_above[scene.ties.start[at]] != tp_above[at]:
        return False
    cascade = scene.cascade
    cascade.added[cascade.counts[ADDED]] = other  # stands for the window that takes its place
    cascade.counts[ADDED] += 1
    shifted = replay_shifts_a_true_positive(scene)
    cascade.counts[ADDED] -= 1
    return not shifted


@kernel
def _suppressed_steps(scene: Scene, slot: int, hi: float, lo: float, out: StepSums) -> None:
    above = scene.windows.kept.suppressor[slot]
    limit = scene.last_relevant[image_of(scene.windows, slot)]
    out.down_at[slot], out.down_sum[slot] = -np.inf, hi
    # Entering next to its suppressor, a window that changes nothing there rises through the same list to the same steps.
    same = scene.windows.position[above] > limit
    if not same:
        on_top(slot, scene.cascade, scene.windows, limit)
        same = _replaces(scene, slot) or _amounts_to_replacing(scene, slot)
    if same:
        out.up_at[slot], out.up_sum[slot] = out.up_at[above], out.up_sum[above]
        return
    list_rivals(scene, slot)
    up, up_sum = _rise(scene, slot, scene.ties.start[scene.windows.position[above]], hi, lo)
    out.up_at[slot], out.up_sum[slot] = _score_at(scene, up, np.inf), up_sum


@kernel
def nearest_steps(scene: Scene, through: int) -> StepSums:
    """Nearest steps of every window; with THROUGH_NONE the kept set is held fixed and suppressed windows have none."""
    slots = len(scene.windows.position)
    hi, lo = list_sum(scene)
    env = envelope_of(scene.ranked)
    fp = false_positive_steps(scene.ranked, scene.lift, scene.edits, env, scene.ties)
    tp = true_positive_steps(scene.ranked, scene.lift, scene.edits, env, scene.ties)
    out = StepSums(np.full(slots, np.inf), np.full(slots, hi), np.full(slots, -np.inf), np.full(slots, hi), hi)
    exact = through == THROUGH_EXACT
    roles = scene.roles
    best = scene.candidates.best
    tp_above = scene.ranked.tp_above
    for slot in range(slots):  # image after image, so that what is looked up stays near
        if roles[slot] == ABSENT:
            continue
        theta = highest_freed(slot, scene.windows) if exact else NONE
        # The common case, written out: a false positive on no object that suppresses nobody alone.
        if theta == NONE and roles[slot] == FALSE_POSITIVE and best[slot] < 0 and unrivalled(scene, slot):
            u = tp_above[scene.windows.position[slot]]
            if fp.up[u] != NONE:
                out.up_at[slot], out.up_sum[slot] = scene.windows.scores[scene.windows.order[fp.up[u]]], fp.up_sum[u]
            if fp.down[u] != NONE:
                out.down_at[slot], out.down_sum[slot] = (
                    scene.windows.scores[scene.windows.order[fp.down[u]]],
                    fp.down_sum[u],
                )
        else:
            _kept_steps(scene, slot, theta, fp, tp, hi, lo, out)
    if exact:
        for slot in range(slots):  # a window may share the steps of its suppressor, known by now
            if scene.windows.kept.suppressor[slot] >= 0:
                _suppressed_steps(scene, slot, hi, lo, out)
    return out


@kernel
def steps_of_class(view: ClassView, rule: Rule, through: int) -> StepSums:
    """`nearest_steps` of one class at one threshold."""
    owned = build_scene(view, rule)
    steps = nearest_steps(by_reference(owned), through)
    keep_alive(owned)
    return steps
