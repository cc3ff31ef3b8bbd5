"""A fixed radius away: AP with each window's score alone raised, and lowered, by the same amount."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepgrad.kernels.cascade import clear, highest_freed, on_top, only_lift_out, without
from stepgrad.kernels.class_view import ClassView, image_of, is_kept
from stepgrad.kernels.jit import by_reference, keep_alive, kernel
from stepgrad.kernels.matching import Rules
from stepgrad.kernels.nms_steps import THROUGH_EXACT
from stepgrad.kernels.rank_steps import NONE, no_ties
from stepgrad.kernels.scene import Scene, build_scene, is_bystander, is_reacher
from stepgrad.kernels.shifts import sums_after_replay, sums_of_move


@kernel
def gaps_at(view: ClassView, distance: float) -> NDArray[np.int32]:
    """By position, the gap its window would take with a score `distance` higher: after all higher ones and the equal ones of
    lower index. Scores fall along the order, so one walk finds all."""
    n = len(view.order)
    scores = view.scores[view.order]
    end = 0  # of the group of equal scores that begins at `gap`
    gaps = np.empty(n, dtype=np.int32)
    gap = 0
    for p in range(n):
        score = scores[p] + distance
        while gap < n and scores[gap] > score:
            gap += 1
        low = gap
        if gap < n and scores[gap] == score:
            end = max(end, gap)
            while end < n and scores[end] == score:
                end += 1
            high = end
            window = view.slots.window_of[view.order[p]]
            while low < high:
                middle = (low + high) // 2
                if view.slots.window_of[view.order[middle]] < window:
                    low = middle + 1
                else:
                    high = middle
        gaps[p] = low
    return gaps


@kernel
def _raised(scene: Scene, slot: int, gap: int) -> bool:
    """`scene.replayed` with the window's score raised, its gap then being `gap`; False if all is as now."""
    windows = scene.windows
    limit = scene.last_relevant[image_of(windows, slot)]
    if gap > limit:
        return False
    if not is_kept(windows, slot):  # it enters if it passes its suppressor
        at = windows.position[windows.kept.suppressor[slot]]
        if gap > at:
            return False
        if (
            at > limit and len(scene.judged.listed.slots) == 0
        ):  # whom it suppresses is too low to matter: one more, no less
            zone = scene.ranked.zone
            return not is_bystander(scene, slot) and sums_of_move(scene, zone[len(windows.order)], zone[gap])
        if at > limit:
            clear(scene.cascade, windows.rows)
        else:
            on_top(slot, scene.cascade, windows, limit)
        return sums_after_replay(scene, slot, gap)
    return _moved_within_list(scene, slot, gap)


@kernel
def _moved_within_list(scene: Scene, slot: int, gap: int) -> bool:
    """`scene.replayed` with a kept window at another gap of the same list."""
    if not is_reacher(scene, slot) and not scene.judged.over_limit[image_of(scene.windows, slot)]:
        zone = scene.ranked.zone
        return not is_bystander(scene, slot) and sums_of_move(scene, zone[scene.windows.position[slot]], zone[gap])
    only_lift_out(slot, scene.cascade, scene.windows.rows)
    return sums_after_replay(scene, slot, gap)


@kernel
def _lowered(scene: Scene, slot: int, gap: int, through: int) -> bool:
    """`scene.replayed` with the window's score lowered. A suppressed window stays so, and nothing changes."""
    limit = scene.last_relevant[image_of(scene.windows, slot)]
    if scene.windows.position[slot] > limit or not is_kept(scene.windows, slot):
        return False
    # Below the best window that it alone suppresses, it makes room for that one, and may itself be suppressed.
    theta = highest_freed(slot, scene.windows) if through == THROUGH_EXACT else NONE
    if theta == NONE or gap <= theta:
        return _moved_within_list(scene, slot, gap)
    without(slot, scene.cascade, scene.windows, limit)
    return sums_after_replay(scene, slot, NONE)


@kernel
def slopes_at_radius(scene: Scene, radius: float, through: int) -> NDArray[np.float64]:
    """By slot: (sum with the score raised by `radius` - sum with it lowered) / (2 radius norm), over all thresholds."""
    windows = scene.windows
    slopes = np.zeros(len(windows.position))
    up, down = gaps_at(windows, radius), gaps_at(windows, -radius)
    thresholds = len(scene.high)
    raised = np.empty(thresholds)
    width = 2.0 * (radius * windows.norm)
    for slot in range(len(slopes)):  # image after image, so that what is looked up stays near
        p = windows.position[slot]
        if p < 0 or (through != THROUGH_EXACT and not is_kept(windows, slot)):
            continue
        rose = _raised(scene, slot, up[p])
        for t in range(thresholds):
            raised[t] = scene.replayed.high[t] if rose else scene.high[t]
        sank = _lowered(scene, slot, down[p], through)
        if rose or sank:
            for t in range(thresholds):
                below = scene.replayed.high[t] if sank else scene.high[t]
                slopes[slot] += (raised[t] - below) / width
    return slopes


@kernel
def radius_of_class(
    view: ClassView, rules: Rules, radius: float, through: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """`slopes_at_radius` of one class, and the sums as things stand."""
    owned = build_scene(view, rules, no_ties())
    slopes = slopes_at_radius(by_reference(owned), radius, through)
    keep_alive(owned)
    return slopes, owned.high
