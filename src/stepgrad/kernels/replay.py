"""A replayed scene: which roles depend on the moved window's place, and what the list is worth with it there.

The replay itself (kernels/cascade.py) says which windows leave and enter the kept set. *Rivals* are the windows of the image
whose role may change as the moved window passes them: those that reach an object, and, where only so many detections count,
those near that limit.
"""

from __future__ import annotations

import numpy as np

from stepgrad.kernels.cascade import ADDED, REMOVED
from stepgrad.kernels.class_view import image_of
from stepgrad.kernels.edited_ap import edited_sum, put_edit, take_edit
from stepgrad.kernels.jit import kernel
from stepgrad.kernels.matching import ABSENT, BEST_FREE, FALSE_POSITIVE, IGNORED, TRUE_POSITIVE, role_of
from stepgrad.kernels.scene import COUNT, LAST_PLACE, LIMITED, Scene


@kernel
def unrivalled(scene: Scene, slot: int) -> bool:
    """Whether no other kept window can take this one's object, its place among those that count, or be displaced by it."""
    image = image_of(scene.windows, slot)
    best = scene.candidates.best[slot]
    if scene.over_limit[image]:  # wherever it moves, some window starts or stops to count
        return False
    if best < 0:  # it claims no object, so nobody's claim depends on it
        return True
    # Whoever finds its object taken turns to the next best one, and takes that from another.
    if scene.rule.rule == BEST_FREE and scene.candidates.several[image]:
        return False
    return scene.windows.objects.ignored[best] or scene.claims[best] == 1


@kernel
def replay_touches_objects(scene: Scene, slot: int) -> bool:
    """Whether the replayed windows, or the moved one, reach any object."""
    if scene.candidates.best[slot] >= 0:
        return True
    cascade = scene.cascade
    for i in range(cascade.counts[REMOVED]):
        if scene.candidates.best[cascade.removed[i]] >= 0:
            return True
    for i in range(cascade.counts[ADDED]):
        if scene.candidates.best[cascade.added[i]] >= 0:
            return True
    return False


@kernel
def replay_shifts_a_true_positive(scene: Scene) -> bool:
    """Whether detections lost and gained in the replay, all false positives, fail to cancel above some true positive."""
    # A true positive's rank changes by what was gained minus what was lost above it. As ranks only matter at true
    # positives, it is enough to count per gap between two of them; a gap of its own that cancels shifts nobody.
    cascade = scene.cascade
    tp_above = scene.ranked.tp_above
    shift = scene.shift
    for i in range(cascade.counts[REMOVED]):
        shift[tp_above[scene.windows.position[cascade.removed[i]]]] -= 1
    for i in range(cascade.counts[ADDED]):
        shift[tp_above[scene.windows.position[cascade.added[i]]]] += 1
    shifted = False
    # Read and clear in one go: the room is ready for the next replay. (Losses and gains that cancel across two gaps still
    # shift the true positive between them.)
    for i in range(cascade.counts[REMOVED]):
        gap = tp_above[scene.windows.position[cascade.removed[i]]]
        shifted |= shift[gap] != 0 and gap < scene.ranked.T
        shift[gap] = 0
    for i in range(cascade.counts[ADDED]):
        gap = tp_above[scene.windows.position[cascade.added[i]]]
        shifted |= shift[gap] != 0 and gap < scene.ranked.T
        shift[gap] = 0
    return shifted


@kernel
def _is_gone(scene: Scene, slot: int) -> bool:
    return bool(scene.cascade.gone[slot >> 6] & (np.uint64(1) << np.uint64(slot & 63)))


@kernel
def list_rivals(scene: Scene, slot: int) -> None:
    """Find the windows of the replayed image whose role may depend on where the moved window stands."""
    image = image_of(scene.windows, slot)
    cascade, state = scene.cascade, scene.rivals.state
    state[COUNT] = 0
    state[LIMITED] = 0
    state[LAST_PLACE] = len(scene.windows.order) + 1  # every place counts
    kept = scene.listed.ptr[image + 1] - scene.listed.ptr[image]
    binds = kept - cascade.counts[REMOVED] + cascade.counts[ADDED] >= scene.windows.max_detections
    if len(scene.listed.slots) > 0 and (binds or scene.over_limit[image]):
        _list_rivals_for_places(scene, image)
    elif replay_touches_objects(scene, slot):
        _list_rivals_for_objects(scene, image)


@kernel
def _list_rivals_for_objects(scene: Scene, image: int) -> None:
    """Kept windows of the replayed scene that reach an object, by decreasing score."""
    count = 0
    for i in range(scene.contenders.ptr[image], scene.contenders.ptr[image + 1]):
        if not _is_gone(scene, scene.contenders.slots[i]):
            scene.rivals.slots[count] = scene.contenders.slots[i]
            count += 1
    for i in range(scene.cascade.counts[ADDED]):
        other = scene.cascade.added[i]
        if scene.candidates.best[other] >= 0:
            at = count  # few windows are added, so each is put in its place among the rivals by hand
            while at > 0 and scene.windows.position[scene.rivals.slots[at - 1]] > scene.windows.position[other]:
                scene.rivals.slots[at] = scene.rivals.slots[at - 1]
                at -= 1
            scene.rivals.slots[at] = other
            count += 1
    scene.rivals.state[COUNT] = count


@kernel
def _list_rivals_for_places(scene: Scene, image: int) -> None:
    """The same where only the best `most` windows count: also all newly kept windows and those around the limit.

    The moved window counts as long as it ranks above the window that is number `most` without it.
    """
    cascade = scene.cascade
    state = scene.rivals.state
    most = scene.windows.max_detections
    i = scene.listed.ptr[image]
    stop = scene.listed.ptr[image + 1]
    j = rank = count = 0
    # Merge the windows kept before with those newly kept, in decreasing score; `rank` counts those above.
    while i < stop or j < cascade.counts[ADDED]:
        fresh = i >= stop or (
            j < cascade.counts[ADDED]
            and scene.windows.position[cascade.added[j]] < scene.windows.position[scene.listed.slots[i]]
        )
        other = cascade.added[j] if fresh else scene.listed.slots[i]
        i, j = i + int(not fresh), j + int(fresh)
        if not fresh and _is_gone(scene, other):
            continue
        counted = scene.windows.position[other] <= scene.last_counted[image]
        if rank > most and not fresh and not counted:
            break  # neither this one nor any below it counted before or counts now
        # The moved window pushes everything below it one place down, so number `most` may drop out or come in; windows
        # that counted before and do not now, or the other way round, change their role whatever the place.
        near_limit = (rank >= most - 1 and counted) or (rank <= most and not counted) or rank == most - 1
        if fresh or near_limit or scene.candidates.best[other] >= 0:
            if rank == most - 1:
                state[LAST_PLACE] = count  # above this rival the moved window still counts
            scene.rivals.slots[count], scene.rivals.rank[count] = other, rank
            count += 1
        rank += 1
    state[COUNT], state[LIMITED] = count, 1


@kernel
def _claim(scene: Scene, slot: int) -> int:
    return role_of(
        slot, scene.windows.pairs, scene.windows.objects, scene.candidates, scene.rule, scene.taken, scene.stamp[0]
    )


@kernel
def _put_role(scene: Scene, slot: int, role: int) -> None:
    """Edit the list where window `slot` stands: from its present role to the new one."""
    old = scene.roles[slot]
    put_edit(
        scene.edits,
        2 * scene.windows.position[slot] + 1,
        int(role == TRUE_POSITIVE) - int(old == TRUE_POSITIVE),
        int(role == FALSE_POSITIVE) - int(old == FALSE_POSITIVE),
    )


@kernel
def edit_for_place(scene: Scene, slot: int, place: int) -> int:
    """Edits of the replayed scene when window `slot` ranks after `place` rivals; returns the window's own role.

    place = -1: the window is not there at all (slot is ignored).
    """
    scene.edits.size[0] = 0
    cascade, state = scene.cascade, scene.rivals.state
    limited = state[LIMITED] == 1
    for i in range(cascade.counts[REMOVED]):
        _put_role(scene, cascade.removed[i], ABSENT)
    if not limited:  # else those newly kept are rivals themselves
        for i in range(cascade.counts[ADDED]):
            if scene.candidates.best[cascade.added[i]] < 0:
                _put_role(scene, cascade.added[i], FALSE_POSITIVE)
    # Rivals claim objects in decreasing score, as in matching, the moved window when its turn comes. All other windows
    # of the image reach no object and stay what they are.
    scene.stamp[0] += 1  # frees every object
    role = IGNORED
    for i in range(state[COUNT] + 1):
        if i == place and place <= state[LAST_PLACE]:
            role = _claim(scene, slot)
        if i < state[COUNT]:
            counts = not limited or scene.rivals.rank[i] + int(0 <= place <= i) < scene.windows.max_detections
            other = scene.rivals.slots[i]
            _put_role(scene, other, _claim(scene, other) if counts else IGNORED)
    return role


@kernel
def sum_with(scene: Scene, role: int, gap: int) -> tuple[float, float]:
    """The sum when the moved window stands in `role` just above position `gap`, on top of the edits made."""
    put_edit(scene.edits, 2 * gap, int(role == TRUE_POSITIVE), int(role == FALSE_POSITIVE))
    hi, lo = edited_sum(scene.ranked, scene.lift, scene.edits)
    take_edit(scene.edits, 2 * gap)
    return hi, lo


@kernel
def place_of(scene: Scene, gap: int) -> int:
    """How many rivals rank above position `gap`."""
    place = 0
    while place < scene.rivals.state[COUNT] and scene.windows.position[scene.rivals.slots[place]] < gap:
        place += 1
    return place
