"""One class of a batch, ready for the step search: its order, NMS, roles and ranked list, and what an edit is worth."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepgrad.gradient.cascade import Cascade, new_cascade
from stepgrad.gradient.rank_steps import Ties, tie_groups
from stepgrad.metric._jit import kernel
from stepgrad.metric.average_precision import (
    Edits,
    Lift,
    Ranked,
    edited_sum,
    new_edits,
    new_lift,
    put_edit,
    rank_list,
    take_edit,
)
from stepgrad.metric.matching import (
    ABSENT,
    BEST_FREE,
    FALSE_POSITIVE,
    IGNORED,
    TRUE_POSITIVE,
    Candidates,
    Objects,
    Pairs,
    Rule,
    candidates_of,
    match_all,
    role_of,
)
from stepgrad.metric.nms import Kept
from stepgrad.metric.overlaps import Rows


class Inputs(NamedTuple):
    """What a scene is made of."""

    scores: NDArray[np.float64]
    order: NDArray[np.int32]
    position: NDArray[np.int32]
    window_of: NDArray[np.int32]
    image_of_word: NDArray[np.int32]
    rows: Rows
    kept: Kept
    pairs: Pairs
    objects: Objects
    rule: Rule
    cumulative: NDArray[np.int64]
    max_detections: int
    images: int


class Scene(NamedTuple):
    """Everything about one class at one match threshold. Arrays over windows are indexed by slot."""

    scores: NDArray[np.float64]
    order: NDArray[np.int32]  # (N,) slots by decreasing score
    position: NDArray[np.int32]  # slot -> place in the order
    window_of: NDArray[np.int32]
    image_of_word: NDArray[np.int32]
    ties: Ties
    rows: Rows
    kept: Kept
    pairs: Pairs
    objects: Objects
    found: Candidates
    rule: Rule
    roles: NDArray[np.int8]
    ranked: Ranked
    lift: Lift
    edits: Edits
    cascade: Cascade
    limit: NDArray[np.int32]  # (images,) changes of an image at positions beyond this cannot matter
    most: int  # max_detections
    cap: NDArray[np.int32]  # (images,) detections beyond this position exceed it
    over: NDArray[np.bool_]  # (images,) more windows are kept than count
    listed: NDArray[
        np.int32
    ]  # kept windows, image after image, by decreasing score (empty: no image is near the limit)
    listed_ptr: NDArray[np.int32]  # (images + 1,)
    contenders: NDArray[np.int32]  # kept windows that reach an object, image after image, by decreasing score
    contenders_ptr: NDArray[np.int32]  # (images + 1,)
    claims: NDArray[np.int32]  # (objects,) kept windows whose best object this is
    rivals: NDArray[
        np.int32
    ]  # scratch: windows of the replayed scene whose role may depend on the moved window's place
    rival_rank: NDArray[np.int32]  # scratch: how many windows of the replayed image rank above, if the limit may bind
    rival_state: NDArray[np.int64]  # (3,) how many rivals; whether the limit may bind; places up to this one count
    shift: NDArray[np.int32]  # (T + 1,) scratch: detections gained between two true positives
    taken: NDArray[np.int32]  # scratch: objects taken, by stamp
    stamp: NDArray[np.int32]  # (1,)


@kernel
def _last_relevant(
    scene_order: NDArray[np.int32], image_of_word: NDArray[np.int32], found: Candidates, ranked: Ranked, images: int
) -> NDArray[np.int32]:
    """AP depends on true positives' ranks only: nothing matters below the last one and the last window that could be one."""
    limit = np.full(images, ranked.tp_position[ranked.T], dtype=np.int32)
    for p in range(len(scene_order)):
        slot = scene_order[p]
        if found.best[slot] >= 0:
            image = image_of_word[slot >> 6]
            limit[image] = max(limit[image], p)
    return limit


@kernel
def _by_image(
    order: NDArray[np.int32], image_of_word: NDArray[np.int32], chosen: NDArray[np.bool_], images: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The chosen slots, image after image, by decreasing score, and where each image's begin."""
    ptr = np.zeros(images + 1, dtype=np.int32)
    for slot in order:
        if chosen[slot]:
            ptr[image_of_word[slot >> 6] + 1] += 1
    for image in range(images):
        ptr[image + 1] += ptr[image]
    listed = np.empty(ptr[images], dtype=np.int32)
    filled = ptr[:images].copy()
    for slot in order:
        if chosen[slot]:
            image = image_of_word[slot >> 6]
            listed[filled[image]] = slot
            filled[image] += 1
    return listed, ptr


@kernel
def _limit_of_detections(
    order: NDArray[np.int32],
    position: NDArray[np.int32],
    image_of_word: NDArray[np.int32],
    roles: NDArray[np.int8],
    images: int,
    most: int,
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], NDArray[np.bool_]]:
    """Kept windows by image, the last position that counts, and which images keep more than count."""
    cap = np.full(images, len(order), dtype=np.int32)
    over = np.zeros(images, dtype=np.bool_)
    if most >= len(order):
        return np.zeros(0, dtype=np.int32), np.zeros(images + 1, dtype=np.int32), cap, over
    listed, ptr = _by_image(order, image_of_word, roles != ABSENT, images)
    for image in range(images):
        if ptr[image + 1] - ptr[image] >= most:
            cap[image] = position[listed[ptr[image] + most - 1]]
            over[image] = ptr[image + 1] - ptr[image] > most
    return listed, ptr, cap, over


@kernel
def build_scene(given: Inputs) -> Scene:
    """Match, rank and index one class."""
    order, image_of_word, images = given.order, given.image_of_word, given.images
    words = len(image_of_word)
    found = candidates_of(given.pairs, given.objects, given.rule, 64 * words, images)
    roles = match_all(
        order, given.kept.kept, image_of_word, given.pairs, given.objects, found, given.rule, given.max_detections
    )
    ranked = rank_list(order, roles, given.cumulative)
    most = given.max_detections
    listed, listed_ptr, cap, over = _limit_of_detections(order, given.position, image_of_word, roles, images, most)
    contenders, contenders_ptr = _by_image(order, image_of_word, (roles != ABSENT) & (found.best >= 0), images)
    claims = np.zeros(len(given.objects.image), dtype=np.int32)
    for slot in contenders:
        claims[found.best[slot]] += given.position[slot] <= cap[image_of_word[slot >> 6]]
    return Scene(
        given.scores,
        order,
        given.position,
        given.window_of,
        image_of_word,
        tie_groups(given.scores, order),
        given.rows,
        given.kept,
        given.pairs,
        given.objects,
        found,
        given.rule,
        roles,
        ranked,
        new_lift(ranked.T),
        new_edits(len(order) + 8),
        new_cascade(words),
        _last_relevant(order, image_of_word, found, ranked, images),
        most,
        cap,
        over,
        listed,
        listed_ptr,
        contenders,
        contenders_ptr,
        claims,
        np.empty(len(order) + 1, dtype=np.int32),
        np.empty(len(order) + 1, dtype=np.int32),
        np.zeros(3, dtype=np.int64),
        np.zeros(ranked.T + 1, dtype=np.int32),
        np.zeros(len(given.objects.image), dtype=np.int32),
        np.zeros(1, dtype=np.int32),
    )


@kernel
def list_sum(scene: Scene) -> tuple[float, float]:
    """The sum of the list as it stands."""
    scene.edits.size[0] = 0
    return edited_sum(scene.ranked, scene.lift, scene.edits)


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
