"""A replayed scene in which objects may change hands: whose role depends on the moved window's place, and what the lists are
worth with it there.

The replay itself (kernels/cascade.py) says which windows leave and enter the kept set. *Rivals* are the windows of the image
whose role may change as the moved window passes them: those that reach an object, and, where only so many detections count,
those near that limit. They are the same at every match threshold; only their roles differ. Replays that touch no object are
judged more quickly (kernels/shifts.py).
"""

from __future__ import annotations

import numpy as np

from stepgrad.kernels.cascade import ADDED, REMOVED
from stepgrad.kernels.class_view import image_of
from stepgrad.kernels.edited_ap import edited_sum
from stepgrad.kernels.jit import kernel
from stepgrad.kernels.matching import ABSENT, BEST_FREE, FALSE_POSITIVE, IGNORED, TRUE_POSITIVE, role_of
from stepgrad.kernels.ranked_list import put_edit, take_edit
from stepgrad.kernels.scene import COUNT, LAST_PLACE, LIMITED, Scene, best_of, is_bystander, is_reacher, role_at


@kernel
def unrivalled(scene: Scene, t: int, slot: int) -> bool:
    """Whether no other kept window can take this one's object, its place among those that count, or be displaced by it."""
    image = image_of(scene.windows, slot)
    best = best_of(scene, t, slot)
    if scene.judged.over_limit[image]:  # wherever it moves, some window starts or stops to count
        return False
    if best < 0:  # it claims no object, so nobody's claim depends on it
        return True
    # Whoever finds its object taken turns to the next best one, and takes that from another.
    if scene.rules.rule == BEST_FREE and scene.judged.reach.several[t, image]:
        return False
    objects = scene.windows.objects
    return (objects.ignored[best] and not objects.once[best]) or scene.claims[t, best] == 1


@kernel
def replay_touches_objects(scene: Scene, slot: int) -> bool:
    """Whether the replayed windows, or the moved one, reach any object."""
    if is_reacher(scene, slot):
        return True
    cascade = scene.cascade
    for i in range(cascade.counts[REMOVED]):
        if is_reacher(scene, cascade.removed[i]):
            return True
    for i in range(cascade.counts[ADDED]):
        if is_reacher(scene, cascade.added[i]):
            return True
    return False


@kernel
def is_gone(scene: Scene, slot: int) -> bool:
    """Whether the last replay removed this window."""
    return bool(scene.cascade.gone[slot >> 6] & (np.uint64(1) << np.uint64(slot & 63)))


@kernel
def list_no_rivals(scene: Scene) -> None:
    """For a window whose place is nobody else's business."""
    state = scene.rivals.state
    state[COUNT] = 0
    state[LIMITED] = 0
    state[LAST_PLACE] = len(scene.windows.order) + 1  # every place counts


@kernel
def list_rivals(scene: Scene, slot: int) -> None:
    """Find the windows of the replayed image whose role may depend on where the moved window stands."""
    image = image_of(scene.windows, slot)
    cascade, listed = scene.cascade, scene.judged.listed
    list_no_rivals(scene)
    kept = listed.ptr[image + 1] - listed.ptr[image]
    binds = kept - cascade.counts[REMOVED] + cascade.counts[ADDED] >= scene.windows.max_detections
    if len(listed.slots) > 0 and (binds or scene.judged.over_limit[image]):
        _list_rivals_for_places(scene, image)
    elif replay_touches_objects(scene, slot):
        _list_rivals_for_objects(scene, image)


@kernel
def _list_rivals_for_objects(scene: Scene, image: int) -> None:
    """Kept windows of the replayed scene that reach an object, by decreasing score."""
    count = 0
    for i in range(scene.contenders.ptr[image], scene.contenders.ptr[image + 1]):
        if not is_gone(scene, scene.contenders.slots[i]):
            scene.rivals.slots[count] = scene.contenders.slots[i]
            count += 1
    for i in range(scene.cascade.counts[ADDED]):
        other = scene.cascade.added[i]
        if is_reacher(scene, other):
            at = count  # few windows are added, so each is put in its place among the rivals by hand
            while at > 0 and scene.windows.position[scene.rivals.slots[at - 1]] > scene.windows.position[other]:
                scene.rivals.slots[at] = scene.rivals.slots[at - 1]
                at -= 1
            scene.rivals.slots[at] = other
            count += 1
    scene.rivals.state[COUNT] = count


@kernel
def _rank_after_replay(scene: Scene, image: int, position: int) -> int:
    """How many windows of the replayed image rank above a position."""
    place, listed = scene.windows.position, scene.judged.listed
    low, high = listed.ptr[image], listed.ptr[image + 1]
    while low < high:
        middle = (low + high) // 2
        if place[listed.slots[middle]] < position:
            low = middle + 1
        else:
            high = middle
    rank = low - listed.ptr[image]
    for i in range(scene.cascade.counts[REMOVED]):
        rank -= place[scene.cascade.removed[i]] < position
    for i in range(scene.cascade.counts[ADDED]):
        rank += place[scene.cascade.added[i]] < position
    return rank


@kernel
def _list_rivals_for_places(scene: Scene, image: int) -> None:
    """The same where only the best `most` windows count: also all newly kept windows and those around the limit.

    The moved window counts as long as it ranks above the window that is number `most` without it. Nobody's rank changes by
    more than the replay added or removed, so only that stretch of the kept windows is looked at.
    """
    cascade, place = scene.cascade, scene.windows.position
    contenders, listed = scene.contenders, scene.judged.listed
    most, end = scene.windows.max_detections, len(scene.windows.order)
    first, stop = listed.ptr[image], listed.ptr[image + 1]
    i, c, j = max(first, first + most - 1 - cascade.counts[ADDED]), contenders.ptr[image], 0
    near_stop = min(stop, first + most + 1 + cascade.counts[REMOVED])
    count = 0
    # Merge three lists of windows in decreasing score: near the limit, reaching an object, newly kept.
    while i < near_stop or c < contenders.ptr[image + 1] or j < cascade.counts[ADDED]:
        near = place[listed.slots[i]] if i < near_stop else end
        claims = place[contenders.slots[c]] if c < contenders.ptr[image + 1] else end
        fresh = place[cascade.added[j]] if j < cascade.counts[ADDED] else end
        position = min(near, claims, fresh)
        i, c, j = i + int(near == position), c + int(claims == position), j + int(fresh == position)
        other = scene.windows.order[position]
        if fresh != position and is_gone(scene, other):
            continue
        rank = _rank_after_replay(scene, image, position)
        if rank == most - 1:
            scene.rivals.state[LAST_PLACE] = count  # above this rival the moved window still counts
        scene.rivals.slots[count], scene.rivals.rank[count] = other, rank
        count += 1
    scene.rivals.state[COUNT], scene.rivals.state[LIMITED] = count, 1


@kernel
def _claim(scene: Scene, t: int, slot: int) -> int:
    r = scene.judged.reach.number[slot]
    if r < 0:
        return IGNORED if is_bystander(scene, slot) else FALSE_POSITIVE
    windows = scene.windows
    return role_of(r, t, windows.pairs, windows.objects, scene.judged.reach, scene.rules, scene.taken, scene.stamp[0])


@kernel
def _put_role(scene: Scene, t: int, slot: int, role: int) -> None:
    """Edit the list where window `slot` stands: from its present role to the new one."""
    old = role_at(scene, t, slot)
    put_edit(
        scene.edits,
        2 * scene.windows.position[slot] + 1,
        int(role == TRUE_POSITIVE) - int(old == TRUE_POSITIVE),
        int(role == FALSE_POSITIVE) - int(old == FALSE_POSITIVE),
    )


@kernel
def edit_for_place(scene: Scene, t: int, slot: int, place: int) -> int:
    """Edits of the replayed list t when window `slot` ranks after `place` rivals; returns the window's own role.

    place = -1: the window is not there at all (slot is ignored).
    """
    scene.edits.size[0] = 0
    cascade, state = scene.cascade, scene.rivals.state
    limited = state[LIMITED] == 1
    for i in range(cascade.counts[REMOVED]):
        _put_role(scene, t, cascade.removed[i], ABSENT)
    if not limited:  # else those newly kept are rivals themselves
        for i in range(cascade.counts[ADDED]):
            if not is_reacher(scene, cascade.added[i]):
                _put_role(scene, t, cascade.added[i], _claim(scene, t, cascade.added[i]))
    # Rivals claim objects in decreasing score, as in matching, the moved window when its turn comes. All other windows
    # of the image reach no object and stay what they are.
    scene.stamp[0] += 1  # frees every object
    role = IGNORED
    for i in range(state[COUNT] + 1):
        if i == place and place <= state[LAST_PLACE]:
            role = _claim(scene, t, slot)
        if i < state[COUNT]:
            counts = not limited or scene.rivals.rank[i] + int(0 <= place <= i) < scene.windows.max_detections
            other = scene.rivals.slots[i]
            _put_role(scene, t, other, _claim(scene, t, other) if counts else IGNORED)
    return role


@kernel
def sum_with(scene: Scene, t: int, role: int, gap: int) -> tuple[float, float]:
    """The sum when the moved window stands in `role` just above position `gap`, on top of the edits made."""
    put_edit(scene.edits, 2 * gap, int(role == TRUE_POSITIVE), int(role == FALSE_POSITIVE))
    hi, lo = edited_sum(scene.ranked, scene.lift, t, scene.edits)
    take_edit(scene.edits, 2 * gap)
    return hi, lo


@kernel
def place_of(scene: Scene, gap: int) -> int:
    """How many rivals rank above position `gap`."""
    place = 0
    while place < scene.rivals.state[COUNT] and scene.windows.position[scene.rivals.slots[place]] < gap:
        place += 1
    return place
