"""A replayed scene in which no object changes hands: only false positives come and go.

AP depends on the ranks of true positives alone, and those on how many false positives stand above them. So what a replay
does is told by the false positives each *zone* (the stretch between two contenders) gains or loses. Mostly nothing is left
of it, or one false positive has moved from one zone to another, and then the sums are known from the last time.
"""

from __future__ import annotations

import numpy as np

from stepgrad.kernels.cascade import ADDED, REMOVED
from stepgrad.kernels.class_view import image_of
from stepgrad.kernels.edited_ap import edited_sum
from stepgrad.kernels.jit import inlined, kernel
from stepgrad.kernels.rank_steps import NONE
from stepgrad.kernels.ranked_list import put_edit
from stepgrad.kernels.replay import (
    edit_for_place,
    is_gone,
    list_rivals,
    place_of,
    replay_touches_objects,
    sum_with,
)
from stepgrad.kernels.scene import PUSHED_OUT, SIZE, Scene, is_bystander, is_reacher


@inlined
def _gain(scene: Scene, slot: int, position: int, amount: int) -> None:
    """A window more, or less, in the zone of a position; a bystander is no false positive."""
    if is_bystander(scene, slot):
        return
    shifts, zone = scene.shifts, scene.ranked.zone[position]
    if shifts.gained[zone] == 0:
        shifts.zones[shifts.state[SIZE]] = zone
        shifts.state[SIZE] += 1
    shifts.gained[zone] += amount


@kernel
def _last_of_three(scene: Scene, listed: int, added: int, gap: int) -> int:
    """Which stands lowest: 0 a listed window, 1 an added one, 2 the moved one at `gap` (just above that position)."""
    place = scene.windows.position
    lowest, which = 2 * gap - 1 if gap != NONE else -9, 2
    if added >= 0 and 2 * place[scene.cascade.added[added]] > lowest:
        lowest, which = 2 * place[scene.cascade.added[added]], 1
    if listed >= 0 and 2 * place[scene.judged.listed.slots[listed]] > lowest:
        which = 0
    return which


@kernel
def _push_out(scene: Scene, slot: int, gap: int, too_many: int) -> bool:
    """More windows than count stand within the old limit: the lowest stop to count. False if one of them is a contender."""
    listed, cascade, place = scene.judged.listed, scene.cascade, scene.windows.position
    image = image_of(scene.windows, slot)
    bound, first = scene.judged.last_counted[image], listed.ptr[image]
    i = min(listed.ptr[image + 1], first + scene.windows.max_detections) - 1
    j = cascade.counts[ADDED] - 1
    while j >= 0 and place[cascade.added[j]] > bound:
        j -= 1
    here = gap if gap <= bound else NONE
    for _ in range(too_many):
        while i >= first and is_gone(scene, listed.slots[i]):
            i -= 1
        which = _last_of_three(scene, i if i >= first else -1, j, here)
        if which == 2:
            _gain(scene, slot, here, -1)
            here = NONE
            scene.shifts.state[PUSHED_OUT] = 1
        elif which == 1:
            _gain(scene, cascade.added[j], place[cascade.added[j]], -1)
            j -= 1
        else:
            if is_reacher(scene, listed.slots[i]):
                return False
            _gain(scene, listed.slots[i], place[listed.slots[i]], -1)
            i -= 1
    return True


@kernel
def _let_in(scene: Scene, slot: int, gap: int, missing: int) -> bool:
    """Fewer windows than may count stand within the old limit: the next begin to count. False if one is a contender."""
    listed, cascade, place = scene.judged.listed, scene.cascade, scene.windows.position
    image = image_of(scene.windows, slot)
    bound, end = scene.judged.last_counted[image], len(scene.windows.order)
    i, stop = listed.ptr[image] + scene.windows.max_detections, listed.ptr[image + 1]
    j, added = 0, cascade.counts[ADDED]
    while j < added and place[cascade.added[j]] <= bound:
        j += 1
    here = gap if gap != NONE and gap > bound else NONE
    for _ in range(missing):
        while i < stop and is_gone(scene, listed.slots[i]):
            i += 1
        next_listed = place[listed.slots[i]] if i < stop else end
        next_added = place[cascade.added[j]] if j < added else end
        if here != NONE and here <= min(next_listed, next_added):
            _gain(scene, slot, here, 1)
            here = NONE
        elif next_added < next_listed:
            _gain(scene, cascade.added[j], next_added, 1)
            j += 1
        elif i < stop:
            if is_reacher(scene, listed.slots[i]):
                return False
            _gain(scene, listed.slots[i], next_listed, 1)
            i += 1
    return True


@kernel
def _tally(scene: Scene, slot: int, gap: int) -> bool:
    """Count what the replay does to each zone with window `slot` at `gap` (NONE: nowhere); no window of it is a reacher.

    False if the limit of detections per image reaches a contender: then the count means nothing.
    """
    cascade, listed, place = scene.cascade, scene.judged.listed, scene.windows.position
    image = image_of(scene.windows, slot)
    bound, most = scene.judged.last_counted[image], scene.windows.max_detections
    counted = min(most, listed.ptr[image + 1] - listed.ptr[image])
    for i in range(cascade.counts[REMOVED]):
        if place[cascade.removed[i]] <= bound:
            _gain(scene, cascade.removed[i], place[cascade.removed[i]], -1)
            counted -= 1
    for i in range(cascade.counts[ADDED]):
        if place[cascade.added[i]] <= bound:
            _gain(scene, cascade.added[i], place[cascade.added[i]], 1)
            counted += 1
    if gap != NONE and gap <= bound:
        _gain(scene, slot, gap, 1)
        counted += 1
    if len(listed.slots) == 0:  # every detection counts
        return True
    if counted > most:
        return _push_out(scene, slot, gap, counted - most)
    return counted == most or _let_in(scene, slot, gap, most - counted)


@kernel
def forget_shifts(scene: Scene) -> None:
    """Make room for the next replay."""
    for i in range(scene.shifts.state[SIZE]):
        scene.shifts.gained[scene.shifts.zones[i]] = 0
    scene.shifts.state[:] = 0


@kernel
def _keep_changed(scene: Scene) -> int:
    """Keep only zones that gained or lost and have a contender below; returns how many. `forget_shifts` is left to the caller."""
    shifts, count = scene.shifts, 0
    for i in range(shifts.state[SIZE]):
        zone = shifts.zones[i]
        again = False
        for k in range(count):  # a zone may be noted twice if it came back to zero in between
            again |= shifts.zones[k] == zone
        if shifts.gained[zone] != 0 and zone < len(scene.ranked.at) and not again:
            shifts.zones[count] = zone
            count += 1
        elif not again:
            shifts.gained[zone] = 0
    shifts.state[SIZE] = count
    return count


@kernel
def leaves_ranks_alone(scene: Scene, slot: int, gap: int) -> int:
    """1 if a replay with the moved window at `gap` changes no true positive's rank, in any list; 0 if it may; -1 if an object
    or a contender at the limit is touched, or the window itself does not count there.

    After a 0 the changes stand in `scene.shifts`, for `leaves_list_alone`, until `forget_shifts`.
    """
    if replay_touches_objects(scene, slot):
        return -1
    if not _tally(scene, slot, gap) or scene.shifts.state[PUSHED_OUT]:
        forget_shifts(scene)
        return -1
    return 1 if _keep_changed(scene) == 0 else 0


@kernel
def leaves_list_alone(scene: Scene, t: int) -> bool:
    """Whether the changes counted leave the ranks in list t alone: a zone may hold none of its true positives."""
    shifts, before = scene.shifts, scene.ranked.tp_before
    for i in range(shifts.state[SIZE]):
        gap = before[t, shifts.zones[i]]
        if gap == scene.ranked.T[t]:
            continue
        net = 0
        for k in range(shifts.state[SIZE]):
            if before[t, shifts.zones[k]] == gap:
                net += shifts.gained[shifts.zones[k]]
        if net != 0:
            return False
    return True


@kernel
def _sums_of_edits(scene: Scene) -> None:
    """The sums after the edits made, once per list."""
    high, low = scene.replayed.high, scene.replayed.low
    for t in range(len(high)):
        same = scene.ranked.same_as[t]
        if same < t:
            high[t], low[t] = high[same], low[same]
        else:
            high[t], low[t] = edited_sum(scene.ranked, scene.lift, t, scene.edits)


@kernel
def sums_of_move(scene: Scene, u: int, v: int) -> bool:
    """`scene.replayed` with a false positive in zone v that was in zone u (the last zone: nowhere). False if it cannot differ."""
    if u == v:
        return False
    pair = u * np.int64(len(scene.ranked.at) + 1) + v
    moves = scene.moves
    # Multiplying by an odd number spreads neighbouring pairs over the room; a pair that was overwritten is summed again.
    place = (pair * 40503) & (len(moves.pair) - 1) if len(moves.pair) < (len(scene.ranked.at) + 1) ** 2 else pair
    if moves.pair[place] != pair:
        moves.pair[place] = pair
        scene.edits.size[0] = 0
        if u < len(scene.ranked.at):
            put_edit(scene.edits, 2 * scene.ranked.at[u], 0, -1)
        if v < len(scene.ranked.at):
            put_edit(scene.edits, 2 * scene.ranked.at[v], 0, 1)
        _sums_of_edits(scene)
        for t in range(len(scene.high)):
            moves.high[place, t], moves.low[place, t] = scene.replayed.high[t], scene.replayed.low[t]
        return True
    for t in range(len(scene.high)):
        scene.replayed.high[t], scene.replayed.low[t] = moves.high[place, t], moves.low[place, t]
    return True


@kernel
def _sums_of_shifts(scene: Scene) -> bool:
    """`scene.replayed` after the changes counted; False if it cannot differ."""
    shifts = scene.shifts
    count = _keep_changed(scene)
    u = v = len(scene.ranked.at)
    simple = count <= 2
    for i in range(count):
        amount = shifts.gained[shifts.zones[i]]
        if amount == -1 and u == len(scene.ranked.at):
            u = shifts.zones[i]
        elif amount == 1 and v == len(scene.ranked.at):
            v = shifts.zones[i]
        else:
            simple = False
    changed = count > 0
    if simple and changed:
        sums_of_move(scene, u, v)
    elif changed:
        scene.edits.size[0] = 0
        for i in range(count):
            put_edit(scene.edits, 2 * scene.ranked.at[shifts.zones[i]], 0, shifts.gained[shifts.zones[i]])
        _sums_of_edits(scene)
    forget_shifts(scene)
    return changed


@kernel
def sums_after_replay(scene: Scene, slot: int, gap: int) -> bool:
    """`scene.replayed` with the window at `gap` of the replayed scene (NONE: not there); False if it cannot differ."""
    image = image_of(scene.windows, slot)
    if not replay_touches_objects(scene, slot):
        if _tally(scene, slot, gap):
            return _sums_of_shifts(scene)
        forget_shifts(scene)
    list_rivals(scene, slot)
    place = place_of(scene, gap) if gap != NONE else NONE
    same_as, fresh = scene.ranked.same_as, scene.judged.reach.fresh
    high, low = scene.replayed.high, scene.replayed.low
    for t in range(len(high)):
        # Where no window of the image reaches another object than at the last threshold, and the list is the same, all is.
        if t > 0 and not fresh[t, image] and same_as[t] == same_as[t - 1]:
            high[t], low[t] = high[t - 1], low[t - 1]
            continue
        role = edit_for_place(scene, t, slot, place)
        if gap == NONE:
            high[t], low[t] = edited_sum(scene.ranked, scene.lift, t, scene.edits)
        else:
            high[t], low[t] = sum_with(scene, t, role, gap)
    return True
