"""The nearest steps of a class's metric in every score, exactly through NMS (Henderson & Ferrari 2016, Sec. 4.4; docs/method.md,
Sec. 4 and 5).

As the score of one window moves, the window moves through a fixed list, and NMS changes once, at theta: a kept window falls out
where it meets the best window that it alone stops, a suppressed one enters where it meets its suppressor. Only the ranks of true
positives matter. So all false positives between the same two true positives share their steps, which are found once and looked
up. For the other windows the metric is monotone between two rivals, where no role changes: a bisection finds the step.
Equal scores are passed as a whole.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepgrad.engine.exact_sum import differ
from stepgrad.engine.jit import kernel, lend, take_back
from stepgrad.engine.lists import put_edit, tp_above, value_of
from stepgrad.engine.matching import FALSE_POSITIVE, IGNORED, TRUE_POSITIVE, OneClass
from stepgrad.engine.nms import (
    ADDED,
    NONE,
    REMOVED,
    AfterNMS,
    highest_freed,
    image_of,
    is_kept,
    lift_out,
    on_top,
    without,
)
from stepgrad.engine.what_if import (
    NOWHERE,
    PUSHED_OUT,
    RIVALS,
    Scene,
    changes_reach_objects,
    count_shifts,
    edit_for_place,
    is_bystander,
    is_over_limit,
    list_rivals,
    make_scene,
    place_of,
    reaches_object,
    values_at,
)

THROUGH_NONE, THROUGH_EXACT = 0, 1
"""Whether NMS is held fixed, so that suppressed windows have no steps, or followed."""


class ClassSteps(NamedTuple):
    """Nearest steps by threshold and window: the score at which the step is (+-inf: none) and the value just beyond it."""

    up_at: NDArray[np.float64]  # (t, windows)
    up_value: NDArray[np.float64]
    down_at: NDArray[np.float64]
    down_value: NDArray[np.float64]
    present: NDArray[np.float64]  # (t,) the values as things stand


class Search(NamedTuple):
    """What the search for steps goes by, and its results."""

    tie_start: NDArray[np.int32]  # (N,) the first position of the group of equal scores that a position belongs to ...
    tie_end: NDArray[np.int32]  # (N,) ... and the last
    # (t, T + 1) of a false positive below u true positives: the position it passes at its step, or NONE
    up: NDArray[np.int32]
    up_value: NDArray[np.float64]  # (t, T + 1)
    down: NDArray[np.int32]
    down_value: NDArray[np.float64]
    out: ClassSteps


@kernel
def steps_of_class(one: OneClass, through: int) -> ClassSteps:
    """The nearest steps of one class at every threshold."""
    owned = make_scene(one)
    scene = lend(owned)
    search = new_search(scene)
    find_steps(scene, lend(search), through)
    take_back(owned)
    take_back(search)
    return search.out


@kernel
def new_search(scene: Scene) -> Search:
    """The steps of false positives, and no other step found yet."""
    thresholds, windows, shape = len(scene.high), len(scene.ranking.position), scene.lists.rank.shape
    out = ClassSteps(
        up_at=np.full((thresholds, windows), np.inf),
        up_value=np.empty((thresholds, windows)),
        down_at=np.full((thresholds, windows), -np.inf),
        down_value=np.empty((thresholds, windows)),
        present=scene.high.copy(),
    )
    tie_start, tie_end = _ties(scene.ranking)
    search = Search(
        tie_start=tie_start,
        tie_end=tie_end,
        up=np.full(shape, NONE, dtype=np.int32),
        up_value=np.zeros(shape),
        down=np.full(shape, NONE, dtype=np.int32),
        down_value=np.zeros(shape),
        out=out,
    )
    lent = lend(search)
    for t in range(thresholds):
        for window in range(windows):
            out.up_value[t, window] = scene.high[t]
            out.down_value[t, window] = scene.high[t]
        T = scene.lists.T[t]
        # A false positive is told by the number of true positives above it: T + 1 cases for any number of windows.
        for u in range(T + 1):
            search.up[t, u], search.up_value[t, u] = _first_passed(scene, lent, t, u, u, 1)
            search.down[t, u], search.down_value[t, u] = _first_passed(scene, lent, t, u, u + 1, T)
    take_back(search)
    return search


@kernel
def _ties(ranking: AfterNMS) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """First and last position of every group of equal scores."""
    n = len(ranking.order)
    start = np.empty(n, dtype=np.int32)
    end = np.empty(n, dtype=np.int32)
    for p in range(n):
        tied = p > 0 and ranking.scores[ranking.order[p]] == ranking.scores[ranking.order[p - 1]]
        start[p] = start[p - 1] if tied else p
    for p in range(n - 1, -1, -1):
        tied = p + 1 < n and start[p + 1] == start[p]
        end[p] = end[p + 1] if tied else p
    return start, end


# False positives on no object: their steps by the number of true positives above them


@kernel
def _first_passed(scene: Scene, search: Search, t: int, u: int, first: int, last: int) -> tuple[int, float]:
    """Position of the nearest true positive, from number `first` to `last`, whose passing by a false positive below u true
    positives changes the value; and the value beyond. NONE if there is none.

    The value is monotone along the way. The nearest step is seldom far, so the reach of the search doubles until it is
    passed; then a bisection finds it.
    """
    if first < 1 or first > scene.lists.T[t]:
        return NONE, 0.0
    step = -1 if first <= u else 1
    same = first - step  # passing this one changes nothing
    changed = first
    reach = 1
    value, low = _value_past(scene, search, t, u, changed)
    while value == scene.high[t] and low == scene.low[t]:
        if changed == last:
            return NONE, 0.0
        same = changed
        reach *= 2
        changed = min(first + reach, last) if step > 0 else max(first - reach, last)
        value, low = _value_past(scene, search, t, u, changed)
    while abs(changed - same) > 1:
        middle = (same + changed) // 2
        high, low = _value_past(scene, search, t, u, middle)
        if high == scene.high[t] and low == scene.low[t]:
            same = middle
        else:
            changed, value = middle, high
    return scene.lists.tp_position[t, changed], value


@kernel
def _value_past(scene: Scene, search: Search, t: int, u: int, k: int) -> tuple[float, float]:
    """The value with a false positive below u true positives moved beyond true positive k and its ties."""
    lists = scene.lists
    passed = lists.tp_position[t, k]
    # Equal scores are passed as a whole: upwards beyond the first of them, downwards beyond the last.
    target = search.tie_start[passed] if k <= u else search.tie_end[passed] + 1
    source = lists.tp_position[t, u + 1] if u < lists.T[t] else len(search.tie_start)
    scene.edits.size[0] = 0
    put_edit(scene.edits, 2 * source, 0, -1)
    put_edit(scene.edits, 2 * target, 0, 1)
    return value_of(lists, scene.rules, t, scene.edits)


@kernel
def _plain_steps(
    scene: Scene, search: Search, t: int, window: int, barrier: int
) -> tuple[int, float, int, float, bool]:
    """A kept window's steps if it is a false positive whose role nobody shares; the last is False where ties forbid it.

    Where more windows are kept than count, one that sinks below the first that does not count changes places with it, and
    one that does not count rises as the last that does. If both are false positives, nothing else happens.
    """
    ranking, judged, hi = scene.ranking, scene.judged, scene.high[t]
    at, image = ranking.position[window], image_of(scene.neighbours, window)
    over_limit = is_over_limit(scene, image)
    if over_limit:
        last = judged.last_counted[image]
        next_in = judged.listed[judged.listed_ptr[image] + scene.rules.max_detections]
        last_in = ranking.order[last]
        # If one of the three reaches an object, a role changes as well: no shortcut.
        if judged.number[window] != NONE or judged.number[next_in] != NONE or judged.number[last_in] != NONE:
            return NONE, hi, NONE, hi, False
        # It does not count yet; once it does, it pushes the last counted one out and stands in its place.
        if at > last:
            u = tp_above(scene.lists, t, last)
            clean = tp_above(scene.lists, t, search.tie_start[last]) == u
            return search.up[t, u], search.up_value[t, u], NONE, hi, clean
        barrier = min(barrier, ranking.position[next_in])
    elif is_bystander(scene, window):
        return NONE, hi, NONE, hi, True
    u = tp_above(scene.lists, t, at)
    down = search.down[t, u] if search.down[t, u] < barrier else NONE
    # Equal scores are passed as a whole: with the limit among them more than this true positive may be passed.
    clean = down == NONE or not over_limit or search.tie_end[down] < barrier
    return search.up[t, u], search.up_value[t, u], down, search.down_value[t, u], clean


# All other windows: from rival to rival


@kernel
def _value_with(scene: Scene, t: int, role: int, gap: int) -> tuple[float, float]:
    """The value when the moved window stands in `role` just above position `gap`, on top of the edits made."""
    tp, fp = int(role == TRUE_POSITIVE), int(role == FALSE_POSITIVE)
    put_edit(scene.edits, 2 * gap, tp, fp)
    high, low = value_of(scene.lists, scene.rules, t, scene.edits)
    put_edit(scene.edits, 2 * gap, -tp, -fp)
    return high, low


@kernel
def _first_step(
    scene: Scene, search: Search, t: int, window: int, gap: int, end: int, rising: bool
) -> tuple[int, float]:
    """The gap nearest to `gap`, on the way to `end`, at which the value is not the present one, and the value there; or NONE.

    Gaps are starts of groups of equal scores, or the end of the list. Rivals have been listed.
    """
    position, rivals = scene.ranking.position, scene.rivals
    while True:
        place = place_of(scene, gap)
        role = edit_for_place(scene, t, window, place)
        high, low = _value_with(scene, t, role, gap)
        if differ(high, low, scene.high[t], scene.low[t]):  # passing the last rival, or entering, was the step
            return gap, high
        # Up to the next rival the window keeps its role and all others keep theirs: the value is monotone on that stretch.
        next_rival = place - 1 if rising else place
        there = 0 <= next_rival < scene.state[RIVALS]
        stretch_end = end
        if there and rising:
            stretch_end = max(end, search.tie_end[position[rivals[next_rival]]] + 1)
        elif there:
            stretch_end = min(end, search.tie_start[position[rivals[next_rival]]])
        if role != IGNORED and (stretch_end < gap if rising else stretch_end > gap):
            changed, value = _bisect(scene, search, t, role, gap, stretch_end, high, low)
            if changed != NONE:
                return changed, value
        if not there:
            return NONE, high
        gap = (
            search.tie_start[position[rivals[next_rival]]]
            if rising
            else search.tie_end[position[rivals[next_rival]]] + 1
        )
        if gap < end if rising else gap > end:
            return NONE, high


@kernel
def _bisect(
    scene: Scene, search: Search, t: int, role: int, near: int, far: int, high: float, low: float
) -> tuple[int, float]:
    """The gap nearest to `near` on the way to `far` at which the value is no longer (high, low), and the value there."""
    # The value is monotone on the stretch: if it is the same at its end, it never changes.
    value, far_low = _value_with(scene, t, role, far)
    if value == high and far_low == low:
        return NONE, value
    same = near
    changed = far
    while True:
        upper = min(same, changed)
        lower = max(same, changed)
        middle = int(search.tie_start[(upper + lower) // 2])
        if middle == upper:  # the group of equal scores reaches back to `upper`: try the one behind it
            middle = int(search.tie_end[middle]) + 1
            if middle >= lower:
                return changed, value
        mid_high, mid_low = _value_with(scene, t, role, middle)
        if mid_high == high and mid_low == low:
            same = middle
        else:
            changed = middle
            value = mid_high


@kernel
def find_steps(scene: Scene, search: Search, through: int) -> None:
    """Nearest steps of every window into `search.out`."""
    ranking = scene.ranking
    exact = through == THROUGH_EXACT
    for window in range(len(ranking.position)):  # image after image, so that what is looked up stays near
        if ranking.position[window] != NONE and is_kept(ranking, window):
            # Where it would meet the best window that it alone stops: below that score NMS has its other outcome.
            theta = highest_freed(window, ranking, scene.neighbours) if exact else NONE
            _kept_steps(scene, search, window, theta)
    if exact:
        for window in range(len(ranking.position)):  # a window may share the steps of its suppressor, known by now
            if ranking.suppressor[window] != NONE:
                _suppressed_steps(scene, search, window)


@kernel
def _kept_steps(scene: Scene, search: Search, window: int, theta: int) -> None:
    """Steps of a kept window: those in the present list, and below theta those of the world without it."""
    ranking, out, n = scene.ranking, search.out, len(scene.ranking.order)
    at, image = ranking.position[window], image_of(scene.neighbours, window)
    barrier = search.tie_start[theta] if theta != NONE else n
    fresh, same_as = scene.judged.fresh, scene.lists.same_as
    listed = False
    open_below = False
    for t in range(len(scene.high)):
        if t > 0 and not fresh[t, image] and same_as[t] == same_as[t - 1]:  # all is as at the last threshold
            _copy_steps(out, window, t, window, t - 1)
            continue
        up, up_value, down, down_value, known = NONE, 0.0, NONE, 0.0, False
        # False positives share their steps, by the number of true positives above.
        if not reaches_object(scene, window):
            up, up_value, down, down_value, known = _plain_steps(scene, search, t, window, barrier)
        if not known:
            if not listed:
                lift_out(window, scene.world, scene.neighbours)
                list_rivals(scene, window)
                listed = True
            up, up_value = _first_step(scene, search, t, window, search.tie_start[at], 0, True)
            down = NONE
            if search.tie_end[at] < barrier:
                gap, down_value = _first_step(scene, search, t, window, search.tie_end[at] + 1, barrier, False)
                down = gap - 1 if gap != NONE else NONE  # the window above that gap was passed
        if up != NONE:
            out.up_at[t, window] = ranking.scores[ranking.order[up]]
            out.up_value[t, window] = up_value
        if down != NONE:
            out.down_at[t, window] = ranking.scores[ranking.order[down]]
            out.down_value[t, window] = down_value
        open_below |= down == NONE
    # Below theta another window is kept in its stead. That is the step if none came before; it cannot matter where both
    # stand below everything that could be a true positive.
    limit = scene.last_relevant[image]
    if not open_below or theta == NONE or (theta > limit and at > limit):
        return
    without(window, scene.world, ranking, scene.neighbours, limit)
    if not values_at(scene, window, NOWHERE):
        return
    for t in range(len(scene.high)):
        if out.down_at[t, window] == -np.inf and differ(
            scene.tried_high[t], scene.tried_low[t], scene.high[t], scene.low[t]
        ):
            out.down_at[t, window] = ranking.scores[ranking.order[theta]]
            out.down_value[t, window] = scene.tried_high[t]


@kernel
def _suppressed_steps(scene: Scene, search: Search, window: int) -> None:
    """Steps of a suppressed window: upwards only, from where it enters next to its suppressor.

    A window that changes nothing when it enters rises through the same list as its suppressor, to the same steps.
    """
    out, lists, ranking = search.out, scene.lists, scene.ranking
    above = ranking.suppressor[window]
    at, image = ranking.position[above], image_of(scene.neighbours, window)
    limit = scene.last_relevant[image]
    same_kind = is_bystander(scene, window) == is_bystander(scene, above)
    # Its suppressor stands below everything that matters: entering there changes nothing, from there on the two are alike.
    if at > limit and same_kind:
        for t in range(len(scene.high)):
            _copy_up(out, window, above, t)
        return
    start = search.tie_start[at]  # equal scores are passed as a whole: it enters above the whole group
    on_top(window, scene.world, ranking, scene.neighbours, limit)
    # What becomes of the list, if no object is touched, stands in `edits`; it has to be asked before they are used.
    plain = not changes_reach_objects(scene, window) and count_shifts(scene, window, at) and not scene.state[PUSHED_OUT]
    if plain and scene.edits.size[0] == 0 and same_kind and lists.zone[start] == lists.zone[at]:
        for t in range(len(scene.high)):
            _copy_up(out, window, above, t)
        return
    unseen = is_bystander(scene, window) and at <= scene.judged.last_counted[image]  # ignored wherever it rises to
    unchanged = np.zeros(len(scene.high), dtype=np.bool_)
    for t in range(len(scene.high)):
        unchanged[t] = plain and _leaves_ranks_alone(scene, t)
    listed = False
    for t in range(len(scene.high)):
        if unchanged[t] and unseen:
            continue
        alone = tp_above(lists, t, start) == tp_above(lists, t, at)  # no true positive is tied with its suppressor
        if (unchanged[t] and same_kind and alone) or _replaces(scene, t, window):
            _copy_up(out, window, above, t)
            continue
        if not listed:
            list_rivals(scene, window)
            listed = True
        up, up_value = _first_step(scene, search, t, window, start, 0, True)
        if up != NONE:
            out.up_at[t, window] = ranking.scores[ranking.order[up]]
            out.up_value[t, window] = up_value


@kernel
def _leaves_ranks_alone(scene: Scene, t: int) -> bool:
    """Whether the shifts in `edits` change no rank in list t: between the same two true positives they add up to nothing."""
    edits, lists = scene.edits, scene.lists
    net = 0
    for e in range(edits.size[0]):
        gap = tp_above(lists, t, edits.key[e] >> 1)
        # Below the last true positive no rank counts.
        if gap == lists.T[t]:
            break
        net += edits.fp[e]
        ends = e + 1 == edits.size[0] or tp_above(lists, t, edits.key[e + 1] >> 1) != gap
        if ends and net != 0:
            return False
    return True


@kernel
def _replaces(scene: Scene, t: int, window: int) -> bool:
    """Whether the world only puts this window in its suppressor's place, with the same claim on objects, or excuse."""
    number, best, other = scene.judged.number, scene.judged.best, scene.ranking.suppressor[window]
    if scene.world.counts[REMOVED] != 1 or scene.world.counts[ADDED] != 0:
        return False
    own = best[t, number[window]] if number[window] >= 0 else NONE
    others = best[t, number[other]] if number[other] >= 0 else NONE
    if own != others or is_bystander(scene, window) != is_bystander(scene, other):
        return False
    # Under COCO's rule a window may fall back to its second best object: only where windows reach one object each are two alike.
    several = scene.judged.several[t, image_of(scene.neighbours, window)]
    return not scene.rules.best_free or own == NONE or not several


@kernel
def _copy_up(out: ClassSteps, window: int, other: int, t: int) -> None:
    out.up_at[t, window] = out.up_at[t, other]
    out.up_value[t, window] = out.up_value[t, other]


@kernel
def _copy_steps(out: ClassSteps, window: int, t: int, other: int, s: int) -> None:
    out.up_at[t, window] = out.up_at[s, other]
    out.up_value[t, window] = out.up_value[s, other]
    out.down_at[t, window] = out.down_at[s, other]
    out.down_value[t, window] = out.down_value[s, other]
