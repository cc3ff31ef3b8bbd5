"""A replayed scene: which roles depend on the moved window's place, and what the list is worth with it there.

The replay itself (kernels/cascade.py) says which windows leave and enter the kept set. *Rivals* are the windows of the image
whose role may change as the moved window passes them: those that reach an object, and, where only so many detections count,
those near that limit.
"""

from __future__ import annotations

import numpy as np

from stepgrad.kernels.edited_ap import edited_sum, put_edit, take_edit
from stepgrad.kernels.jit import kernel
from stepgrad.kernels.matching import ABSENT, BEST_FREE, FALSE_POSITIVE, IGNORED, TRUE_POSITIVE, role_of
from stepgrad.kernels.scene import Scene


@kernel
def unrivalled(scene: Scene, slot: int) -> bool:
    """Whether no other kept window can take this one's object, its place among those that count, or be displaced by it."""
    image = scene.image_of_word[slot >> 6]
    best = scene.found.best[slot]
    if scene.over[image]:
        return False
    if best < 0:
        return True
    if scene.rule.rule == BEST_FREE and scene.found.several[image]:
        return False
    return scene.objects.ignored[best] or scene.claims[best] == 1


@kernel
def replay_touches_objects(scene: Scene, slot: int) -> bool:
    """Whether the replayed windows, or the moved one, reach any object."""
    if scene.found.best[slot] >= 0:
        return True
    cascade = scene.cascade
    for i in range(cascade.counts[0]):
        if scene.found.best[cascade.removed[i]] >= 0:
            return True
    for i in range(cascade.counts[1]):
        if scene.found.best[cascade.added[i]] >= 0:
            return True
    return False


@kernel
def replay_shifts_a_true_positive(scene: Scene) -> bool:
    """Whether detections lost and gained in the replay, all false positives, fail to cancel above some true positive."""
    cascade, tp_above, shift = scene.cascade, scene.ranked.tp_above, scene.shift
    for i in range(cascade.counts[0]):
        shift[tp_above[scene.position[cascade.removed[i]]]] -= 1
    for i in range(cascade.counts[1]):
        shift[tp_above[scene.position[cascade.added[i]]]] += 1
    shifted = False
    for i in range(cascade.counts[0]):
        gap = tp_above[scene.position[cascade.removed[i]]]
        shifted |= shift[gap] != 0 and gap < scene.ranked.T
        shift[gap] = 0
    for i in range(cascade.counts[1]):
        gap = tp_above[scene.position[cascade.added[i]]]
        shifted |= shift[gap] != 0 and gap < scene.ranked.T
        shift[gap] = 0
    return shifted


@kernel
def _is_gone(scene: Scene, slot: int) -> bool:
    return bool(scene.cascade.gone[slot >> 6] & (np.uint64(1) << np.uint64(slot & 63)))


@kernel
def list_rivals(scene: Scene, slot: int) -> None:
    """Find the windows of the replayed image whose role may depend on where the moved window stands."""
    image = scene.image_of_word[slot >> 6]
    cascade, state = scene.cascade, scene.rival_state
    state[0], state[1], state[2] = 0, 0, len(scene.order) + 1
    kept = scene.listed_ptr[image + 1] - scene.listed_ptr[image]
    binds = kept - cascade.counts[0] + cascade.counts[1] >= scene.most
    if len(scene.listed) > 0 and (binds or scene.over[image]):
        _list_rivals_for_places(scene, image)
    elif replay_touches_objects(scene, slot):
        _list_rivals_for_objects(scene, image)


@kernel
def _list_rivals_for_objects(scene: Scene, image: int) -> None:
    """Kept windows of the replayed scene that reach an object, by decreasing score."""
    count = 0
    for i in range(scene.contenders_ptr[image], scene.contenders_ptr[image + 1]):
        if not _is_gone(scene, scene.contenders[i]):
            scene.rivals[count] = scene.contenders[i]
            count += 1
    for i in range(scene.cascade.counts[1]):
        other = scene.cascade.added[i]
        if scene.found.best[other] >= 0:
            at = count
            while at > 0 and scene.position[scene.rivals[at - 1]] > scene.position[other]:
                scene.rivals[at] = scene.rivals[at - 1]
                at -= 1
            scene.rivals[at] = other
            count += 1
    scene.rival_state[0] = count


@kernel
def _list_rivals_for_places(scene: Scene, image: int) -> None:
    """The same where only the best `most` windows count: also all newly kept windows and those around the limit.

    The moved window counts as long as it ranks above the window that is number `most` without it.
    """
    cascade, state, most = scene.cascade, scene.rival_state, scene.most
    i, stop, j = scene.listed_ptr[image], scene.listed_ptr[image + 1], 0
    rank = count = 0
    while i < stop or j < cascade.counts[1]:
        fresh = i >= stop or (
            j < cascade.counts[1] and scene.position[cascade.added[j]] < scene.position[scene.listed[i]]
        )
        other = cascade.added[j] if fresh else scene.listed[i]
        i, j = i + int(not fresh), j + int(fresh)
        if not fresh and _is_gone(scene, other):
            continue
        counted = scene.position[other] <= scene.cap[image]
        if rank > most and not fresh and not counted:
            break
        near_limit = (rank >= most - 1 and counted) or (rank <= most and not counted) or rank == most - 1
        if fresh or near_limit or scene.found.best[other] >= 0:
            if rank == most - 1:
                state[2] = count
            scene.rivals[count], scene.rival_rank[count] = other, rank
            count += 1
        rank += 1
    state[0], state[1] = count, 1


@kernel
def _claim(scene: Scene, slot: int) -> int:
    return role_of(slot, scene.pairs, scene.objects, scene.found, scene.rule, scene.taken, scene.stamp[0])


@kernel
def _put_role(scene: Scene, slot: int, role: int) -> None:
    """Edit the list where window `slot` stands: from its present role to the new one."""
    old = scene.roles[slot]
    put_edit(
        scene.edits,
        2 * scene.position[slot] + 1,
        int(role == TRUE_POSITIVE) - int(old == TRUE_POSITIVE),
        int(role == FALSE_POSITIVE) - int(old == FALSE_POSITIVE),
    )


@kernel
def edit_for_place(scene: Scene, slot: int, place: int) -> int:
    """Edits of the replayed scene when window `slot` ranks after `place` rivals; returns the window's own role.

    place = -1: the window is not there at all (slot is ignored).
    """
    scene.edits.size[0] = 0
    cascade, state = scene.cascade, scene.rival_state
    limited = state[1] == 1
    for i in range(cascade.counts[0]):
        _put_role(scene, cascade.removed[i], ABSENT)
    if not limited:
        for i in range(cascade.counts[1]):
            if scene.found.best[cascade.added[i]] < 0:
                _put_role(scene, cascade.added[i], FALSE_POSITIVE)
    scene.stamp[0] += 1
    own = IGNORED
    for i in range(state[0] + 1):
        if i == place and place <= state[2]:
            own = _claim(scene, slot)
        if i < state[0]:
            counts = not limited or scene.rival_rank[i] + int(0 <= place <= i) < scene.most
            _put_role(scene, scene.rivals[i], _claim(scene, scene.rivals[i]) if counts else IGNORED)
    return own


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
    while place < scene.rival_state[0] and scene.position[scene.rivals[place]] < gap:
        place += 1
    return place
