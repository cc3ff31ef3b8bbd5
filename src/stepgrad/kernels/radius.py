"""The sums a fixed radius away: AP with each window's score alone raised, and lowered, by the same amount."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepgrad.kernels.cascade import ADDED, REMOVED, highest_freed, on_top, only_lift_out, without
from stepgrad.kernels.class_view import ClassView, image_of
from stepgrad.kernels.edited_ap import edited_sum
from stepgrad.kernels.jit import by_reference, keep_alive, kernel
from stepgrad.kernels.matching import ABSENT, FALSE_POSITIVE, Rule
from stepgrad.kernels.nms_steps import THROUGH_EXACT
from stepgrad.kernels.rank_steps import NONE
from stepgrad.kernels.replay import edit_for_place, list_rivals, place_of, sum_with
from stepgrad.kernels.scene import Scene, build_scene, list_sum


@kernel
def _gap_for(scene: Scene, slot: int, score: float) -> int:
    """The gap window `slot` would take with that score: after all higher ones and the equal ones of lower index."""
    low, high = 0, len(scene.windows.order)
    while low < high:
        middle = (low + high) // 2
        other = scene.windows.order[middle]
        ahead = scene.windows.scores[other] > score or (
            scene.windows.scores[other] == score
            and scene.windows.slots.window_of[other] < scene.windows.slots.window_of[slot]
        )
        if ahead:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def _sum_at(scene: Scene, slot: int, gap: int, hi: float) -> float:
    """The sum with the window at `gap` of the replayed scene."""
    tp_above = scene.ranked.tp_above
    # A window on no object in the place of a false positive on no object, between the same true positives: no change.
    plain = scene.candidates.best[slot] < 0 and not scene.over_limit[image_of(scene.windows, slot)]
    if plain and scene.cascade.counts[REMOVED] == 1 and scene.cascade.counts[ADDED] == 0:
        left = scene.cascade.removed[0]
        if (
            scene.roles[left] == FALSE_POSITIVE
            and scene.candidates.best[left] < 0
            and tp_above[gap] == tp_above[scene.windows.position[left]]
        ):
            return hi
    list_rivals(scene, slot)
    role = edit_for_place(scene, slot, place_of(scene, gap))
    now, _ = sum_with(scene, role, gap)
    return now


@kernel
def sums_at_radius(scene: Scene, radius: float, through: int) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """The sums with each window's score alone raised, and lowered, by `radius`, and as things stand."""
    slots = len(scene.windows.position)
    hi, _ = list_sum(scene)
    raised, lowered = np.full(slots, hi), np.full(slots, hi)
    for slot in range(slots):
        if scene.windows.position[slot] < 0:
            continue  # padding
        limit = scene.last_relevant[image_of(scene.windows, slot)]
        kept = scene.roles[slot] != ABSENT
        if not kept and through != THROUGH_EXACT:
            continue
        up = _gap_for(scene, slot, scene.windows.scores[slot] + radius)
        down = _gap_for(scene, slot, scene.windows.scores[slot] - radius)
        if not kept:  # lowered it stays suppressed; raised it enters if it passes its suppressor
            above = scene.windows.kept.suppressor[slot]
            if up <= min(scene.windows.position[above], limit):
                on_top(slot, scene.cascade, scene.windows, limit)
                raised[slot] = _sum_at(scene, slot, up, hi)
            continue
        only_lift_out(slot, scene.cascade, scene.windows.rows)
        if up <= limit:
            raised[slot] = _sum_at(scene, slot, up, hi)
        # Lowered below the best window that it alone suppresses, it makes room for that one, and may itself be suppressed.
        theta = highest_freed(slot, scene.windows) if through == THROUGH_EXACT else NONE
        if theta == NONE or down <= theta:
            lowered[slot] = _sum_at(scene, slot, down, hi)
        elif scene.windows.position[slot] <= limit or theta <= limit:
            without(slot, scene.cascade, scene.windows, limit)
            list_rivals(scene, slot)
            edit_for_place(scene, slot, NONE)
            lowered[slot], _ = edited_sum(scene.ranked, scene.lift, scene.edits)
    return raised, lowered, hi


@kernel
def radius_of_class(
    view: ClassView, rule: Rule, radius: float, through: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """`sums_at_radius` of one class at one threshold."""
    owned = build_scene(view, rule)
    sums = sums_at_radius(by_reference(owned), radius, through)
    keep_alive(owned)
    return sums
