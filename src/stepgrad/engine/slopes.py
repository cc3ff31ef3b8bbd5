"""From values and steps to slopes: the radius estimator, SDE and MEE, and the paper's approximation of NMS.

For one score x of a piecewise-constant f, with its nearest steps at x+ and x- and the values f+ and f- just beyond them:

    radius   (f(x + r) - f(x - r)) / (2 r)
    SDE      1/2 (f+ - f) / (x+ - x) + 1/2 (f - f-) / (x - x-)          Henderson & Ferrari 2016, Sec. 4.3
    MEE      (f+ - f-) / (2 (x+ - x-)), or SDE where there is a step on one side only
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepgrad.engine.jit import inlined, kernel, lend, take_back
from stepgrad.engine.lists import put_edit, value_of
from stepgrad.engine.matching import FALSE_POSITIVE, TRUE_POSITIVE, OneClass, role_at
from stepgrad.engine.nearest import THROUGH_EXACT, THROUGH_NONE, ClassSteps, find_steps, new_search
from stepgrad.engine.nms import NONE, as_now, highest_freed, image_of, is_kept, lift_out, on_top, without
from stepgrad.engine.what_if import (
    NOWHERE,
    Scene,
    is_bystander,
    is_over_limit,
    make_scene,
    reaches_object,
    values_at,
    values_of_move,
)

_TINY = float(np.finfo(np.float64).tiny)
_HUGE = float(np.finfo(np.float64).max)


@kernel
def radius_of_class(one: OneClass, radius: float, through: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """By window: (value with its score raised by `radius` - value with it lowered) / (2 radius norm), summed over all thresholds;
    and the values as things stand."""
    owned = make_scene(one)
    scene = lend(owned)
    ranking = scene.ranking
    slopes = np.zeros(len(ranking.position))
    up = _gaps_at(scene, radius)
    down = _gaps_at(scene, -radius)
    thresholds = len(owned.high)
    raised = np.empty(thresholds)
    width = 2.0 * (radius * scene.rules.norm)
    for window in range(len(slopes)):  # image after image, so that what is looked up stays near
        p = ranking.position[window]
        if p == NONE or (through != THROUGH_EXACT and not is_kept(ranking, window)):
            continue
        # `tried_high` is overwritten by the next question, so the values of the raised window are copied.
        rose = _raised(scene, window, up[p])
        for t in range(thresholds):
            raised[t] = owned.tried_high[t] if rose else owned.high[t]
        sank = _lowered(scene, window, down[p], through)
        if rose or sank:
            for t in range(thresholds):
                lowered = owned.tried_high[t] if sank else owned.high[t]
                slopes[window] += (raised[t] - lowered) / width
    take_back(owned)
    return slopes, owned.high


@kernel
def _gaps_at(scene: Scene, distance: float) -> NDArray[np.int32]:
    """By position: the gap its window would take with a score `distance` higher, below all higher scores and the equal ones of
    lower index. Scores fall along the order, so one walk finds all."""
    ranking, index_of = scene.ranking, scene.neighbours.index_of
    n = len(ranking.order)
    scores = ranking.scores[ranking.order]
    gaps = np.empty(n, dtype=np.int32)
    gap = 0
    end = 0  # of the group of equal scores that begins at `gap`
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
            index = index_of[ranking.order[p]]
            while low < high:  # equal scores rank by index
                middle = (low + high) // 2
                if index_of[ranking.order[middle]] < index:
                    low = middle + 1
                else:
                    high = middle
        gaps[p] = low
    return gaps


@kernel
def _raised(scene: Scene, window: int, gap: int) -> bool:
    """`tried_high` with the score of a window raised so that it stands at `gap`; False if all is as now."""
    ranking = scene.ranking
    image = image_of(scene.neighbours, window)
    limit = scene.last_relevant[image]
    # It would still stand below everything that could be a true positive.
    if gap > limit:
        return False
    if is_kept(ranking, window):
        return _moved_within_list(scene, window, gap)
    at = ranking.position[ranking.suppressor[window]]
    if gap > at:  # it stays suppressed
        return False
    # Above its suppressor it is kept, and its suppressor and others are not: its other world.
    if at <= limit:
        on_top(window, scene.world, ranking, scene.neighbours, limit)
        return values_at(scene, window, gap)
    # The windows it suppresses are too low to matter: it is one more, and none is less.
    if len(scene.judged.listed) > 0:
        as_now(scene.world, scene.neighbours)
        return values_at(scene, window, gap)
    zone = scene.lists.zone
    return not is_bystander(scene, window) and values_of_move(scene, zone[len(ranking.order)], zone[gap])


@kernel
def _lowered(scene: Scene, window: int, gap: int, through: int) -> bool:
    """`tried_high` with the score of a window lowered. A suppressed window stays so, and nothing changes."""
    ranking = scene.ranking
    limit = scene.last_relevant[image_of(scene.neighbours, window)]
    if ranking.position[window] > limit or not is_kept(ranking, window):
        return False
    # Below the best window that it alone stops, it makes room for that one, and may itself be suppressed.
    theta = highest_freed(window, ranking, scene.neighbours) if through == THROUGH_EXACT else NONE
    if theta == NONE or gap <= theta:
        return _moved_within_list(scene, window, gap)
    without(window, scene.world, ranking, scene.neighbours, limit)
    return values_at(scene, window, NOWHERE)


@kernel
def _moved_within_list(scene: Scene, window: int, gap: int) -> bool:
    """`tried_high` with a kept window at another gap of the same list."""
    if not reaches_object(scene, window) and not is_over_limit(scene, image_of(scene.neighbours, window)):
        zone = scene.lists.zone
        at = scene.ranking.position[window]
        return not is_bystander(scene, window) and values_of_move(scene, zone[at], zone[gap])
    lift_out(window, scene.world, scene.neighbours)
    return values_at(scene, window, gap)


# SDE and MEE: from nearest steps


@inlined
def _slope(rise: float, run: float) -> float:
    """rise / run, never inf or nan; 0 where the run is infinite or zero."""
    if not (0.0 < run < np.inf):
        return 0.0
    return min(max(rise / max(run, _TINY), -_HUGE), _HUGE)


@inlined
def sde_at(x: float, f: float, up_at: float, up_f: float, down_at: float, down_f: float, min_step: float) -> float:
    """The symmetric difference estimator at one point; distances are at least `min_step`."""
    return 0.5 * _slope(up_f - f, max(up_at - x, min_step)) + 0.5 * _slope(f - down_f, max(x - down_at, min_step))


@inlined
def mee_at(x: float, f: float, up_at: float, up_f: float, down_at: float, down_f: float, min_step: float) -> float:
    """The mean envelope estimator at one point."""
    if np.isinf(up_at) or np.isinf(down_at):
        return sde_at(x, f, up_at, up_f, down_at, down_f, min_step)
    width = up_at - down_at  # zero if x is tied on both sides: then only the bound can give it a length
    return 0.5 * _slope(up_f - down_f, width if width > 0.0 else min_step)


@kernel
def each_slope(columns: NDArray[np.float64], min_step: float, symmetric: bool) -> NDArray[np.float64]:
    """SDE, if `symmetric`, or MEE of each column x, f, up_at, up_f, down_at, down_f."""
    out = np.empty(columns.shape[1])
    for i in range(len(out)):
        x, f, up_at, up_f, down_at, down_f = columns[:, i]
        if symmetric:
            out[i] = sde_at(x, f, up_at, up_f, down_at, down_f, min_step)
        else:
            out[i] = mee_at(x, f, up_at, up_f, down_at, down_f, min_step)
    return out


@kernel
def slopes_of_steps(
    steps: ClassSteps, scores: NDArray[np.float64], norm: float, symmetric: bool, min_step: float
) -> NDArray[np.float64]:
    """By window: SDE, if `symmetric`, or MEE, summed over the thresholds."""
    slopes = np.zeros(len(scores))
    for t in range(len(steps.present)):
        value = steps.present[t] / norm
        for w in range(len(slopes)):
            up_at, down_at = steps.up_at[t, w], steps.down_at[t, w]
            if up_at == np.inf and down_at == -np.inf:  # most windows have no steps
                continue
            up, down = steps.up_value[t, w] / norm, steps.down_value[t, w] / norm
            if symmetric:
                slopes[w] += sde_at(scores[w], value, up_at, up, down_at, down, min_step)
            else:
                slopes[w] += mee_at(scores[w], value, up_at, up, down_at, down, min_step)
    return slopes


# The paper's way through NMS


@kernel
def paper_of_class(one: OneClass, min_step: float) -> tuple[ClassSteps, NDArray[np.float64]]:
    """Steps with the paper's two approximations of NMS (Sec. 4.4, "Incorporating NMS"), and pushes (windows,) in units of the
    value, summed over the thresholds.

    (i) A suppressed window is taken to be at one with its suppressor: same steps, reached from its own score. (ii) Where an
    object is missed because windows on it are suppressed, such a window b and its suppressor d are pushed apart: +c for b, -c
    for d, with c = 1/2 (AP' - AP) / max(s_d - s_b, min_step) and AP' the AP with b, now a true positive, in d's place.
    """
    owned = make_scene(one)
    scene = lend(owned)
    search = new_search(scene)
    looked = lend(search)
    find_steps(scene, looked, THROUGH_NONE)
    pushes = np.zeros(len(scene.ranking.position))
    for t in range(len(scene.high)):
        _share_steps(scene, t, looked.out)
        _push_missed_objects(scene, t, min_step, pushes)
    take_back(owned)
    take_back(search)
    return search.out, pushes


@kernel
def _share_steps(scene: Scene, t: int, out: ClassSteps) -> None:
    """Approximation (i)."""
    ranking = scene.ranking
    for window in ranking.order:
        above = ranking.suppressor[window]
        if above == NONE:
            continue
        out.up_at[t, window] = out.up_at[t, above]
        out.up_value[t, window] = out.up_value[t, above]
        # A step that lies above the window itself is not on its way down.
        if ranking.scores[window] > out.down_at[t, above]:
            out.down_at[t, window] = out.down_at[t, above]
            out.down_value[t, window] = out.down_value[t, above]


@kernel
def _push_missed_objects(scene: Scene, t: int, min_step: float, pushes: NDArray[np.float64]) -> None:
    """Approximation (ii)."""
    ranking, judged = scene.ranking, scene.judged
    claimed = np.zeros(len(scene.objects.image), dtype=np.bool_)  # the best object of a contender that counts
    for window in judged.contenders:
        best = judged.best[t, judged.number[window]]
        # An object is missed if no detection that counts has it as its best.
        if best != NONE and ranking.position[window] <= judged.last_counted[image_of(scene.neighbours, window)]:
            claimed[best] = True
    for window in ranking.order:
        above = ranking.suppressor[window]
        target = judged.best[t, judged.number[window]] if judged.number[window] >= 0 else NONE
        if above == NONE or target == NONE or scene.objects.ignored[target] or claimed[target]:
            continue
        if ranking.position[above] > judged.last_counted[image_of(scene.neighbours, above)]:
            continue  # in its place the window would not count either
        distance = max(ranking.scores[above] - ranking.scores[window], min_step)
        if distance <= 0.0:
            continue
        # AP': the suppressor leaves, whatever its role, and a true positive stands in its place.
        role = role_at(judged, ranking, scene.neighbours, t, above)
        scene.edits.size[0] = 0
        tp, fp = 1 - int(role == TRUE_POSITIVE), -int(role == FALSE_POSITIVE)
        put_edit(scene.edits, 2 * ranking.position[above] + 1, tp, fp)
        replaced, _ = value_of(scene.lists, scene.rules, t, scene.edits)
        push = 0.5 * (replaced - scene.high[t]) / distance
        pushes[window] += push
        pushes[above] -= push
