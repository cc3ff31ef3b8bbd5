"""One question: what is the class worth if one window stands elsewhere?

`values_at(scene, window, gap)` answers it at every match threshold, with the window just above position `gap` of a world that
nms.py has found (the present one, with the window lifted out, or its other one), or nowhere. The estimators ask it for every
window (slopes.py), the search for nearest steps between places where a role may change (nearest.py).

Mostly no window that changes reaches an object. Then only false positives come and go, and all that matters is how many each
zone gains or loses; often one moves from one zone to another, and the answer is known from the last time. Otherwise the *rivals*
are matched again: the windows of the image whose role may depend on the moved window's place.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepgrad.engine.jit import inlined, kernel, lend, take_back
from stepgrad.engine.lists import Edits, RankedLists, make_lists, new_edits, put_edit, value_of
from stepgrad.engine.matching import (
    ABSENT,
    BYSTANDER,
    FALSE_POSITIVE,
    IGNORED,
    TRUE_POSITIVE,
    Judged,
    OneClass,
    Rules,
    claim,
    judge,
    role_at,
)
from stepgrad.engine.neighbours import Neighbours
from stepgrad.engine.nms import ADDED, NONE, REMOVED, AfterNMS, World, bit_of, image_of, new_world
from stepgrad.engine.overlaps import Objects

NOWHERE = -1
RIVALS, LIMITED, LAST_PLACE, PUSHED_OUT, STAMP = 0, 1, 2, 3, 4  # what Scene.state holds
_MOST_MOVES = 1024


class Scene(NamedTuple):
    """One class of a batch, judged and listed, and room in which one change after the other is tried."""

    ranking: AfterNMS
    neighbours: Neighbours
    objects: Objects
    rules: Rules
    judged: Judged
    lists: RankedLists
    high: NDArray[np.float64]  # (t,) the values as things stand, as exact pairs
    low: NDArray[np.float64]
    last_relevant: NDArray[np.int32]  # (images,) changes of an image at positions beyond this cannot matter
    world: World
    edits: Edits
    tried_high: NDArray[np.float64]  # (t,) the values after the last change that was tried
    tried_low: NDArray[np.float64]
    rivals: NDArray[np.int32]  # by decreasing score
    rival_rank: NDArray[np.int32]  # how many windows of the image rank above each in this world; only where LIMITED
    state: NDArray[np.int64]  # (5,) how many rivals; 1 if max_detections may bind; and see where they are used
    # (G,) the last STAMP with which an object was taken: nothing has to be cleared between trials
    taken: NDArray[np.int32]
    move: NDArray[np.int64]  # (M,) known moves of a false positive from one zone to another, NONE for none ...
    move_high: NDArray[np.float64]  # (M, t) ... and the values after them
    move_low: NDArray[np.float64]


@inlined
def reaches_object(scene: Scene, window: int) -> bool:
    """Whether a window reaches an object at some threshold."""
    return scene.judged.number[window] >= 0


@inlined
def is_bystander(scene: Scene, window: int) -> bool:
    """Whether a window is ignored wherever it stands."""
    return scene.judged.number[window] == BYSTANDER


@inlined
def is_over_limit(scene: Scene, image: int) -> bool:
    """Whether more windows of an image are kept than count."""
    ptr = scene.judged.listed_ptr
    return ptr[image + 1] - ptr[image] > scene.rules.max_detections


@inlined
def is_gone(scene: Scene, window: int) -> bool:
    """Whether the world that is tried has removed a kept window."""
    return scene.world.gone[window >> 6] & bit_of(window) != 0


@kernel
def make_scene(owned: OneClass) -> Scene:
    """Match and list one class."""
    one = lend(owned)
    judged = judge(one.ranking, one.neighbours, one.objects, one.rules)
    known = lend(judged)
    lists = make_lists(known, one.ranking, one.neighbours, one.rules)
    listed = lend(lists)
    windows, thresholds, C = len(one.ranking.order), len(one.rules.thresholds), len(judged.contenders)
    edits = new_edits(windows + 8)  # a world changes each window at most once, and the moved one twice
    none = lend(edits)
    high, low = np.empty(thresholds), np.empty(thresholds)
    for t in range(thresholds):
        high[t], low[t] = value_of(listed, one.rules, t, none)
    room = 1  # for all pairs of zones, or for some of very many; a power of two
    while room < min((C + 1) ** 2, _MOST_MOVES):
        room *= 2
    scene = Scene(
        ranking=owned.ranking,
        neighbours=owned.neighbours,
        objects=owned.objects,
        rules=owned.rules,
        judged=judged,
        lists=lists,
        high=high,
        low=low,
        last_relevant=_last_relevant(known, listed),
        world=new_world(len(one.neighbours.image_of_word)),
        edits=edits,
        tried_high=high.copy(),
        tried_low=low.copy(),
        rivals=np.empty(windows + 1, dtype=np.int32),
        rival_rank=np.empty(windows + 1, dtype=np.int32),
        state=np.zeros(5, dtype=np.int64),
        taken=np.zeros(len(one.objects.image), dtype=np.int32),
        move=np.full(room, NONE, dtype=np.int64),
        move_high=np.empty((room, thresholds)),
        move_low=np.empty((room, thresholds)),
    )
    take_back(owned)
    take_back(judged)
    take_back(lists)
    take_back(edits)
    return scene


@kernel
def _last_relevant(judged: Judged, lists: RankedLists) -> NDArray[np.int32]:
    """Only ranks of true positives matter: nothing does below the last one and the last window of an image that may be one."""
    last = judged.lowest.copy()
    for image in range(len(last)):
        for t in range(len(lists.T)):
            last[image] = max(last[image], lists.tp_position[t, lists.T[t]])
    return last


@kernel
def values_at(scene: Scene, window: int, gap: int) -> bool:
    """`tried_high` and `tried_low` with the window at `gap` of the world (NOWHERE: not there); False if nothing can differ."""
    # The easy case, and by far the commonest: no object changes hands.
    if not changes_reach_objects(scene, window) and count_shifts(scene, window, gap):
        return _values_of_shifts(scene)
    list_rivals(scene, window)
    image, same_as, fresh = image_of(scene.neighbours, window), scene.lists.same_as, scene.judged.fresh
    place = place_of(scene, gap) if gap != NOWHERE else NOWHERE
    for t in range(len(scene.high)):
        # Where no window of the image reaches another object than at the last threshold, and the list is the same, all is.
        if t > 0 and not fresh[t, image] and same_as[t] == same_as[t - 1]:
            scene.tried_high[t] = scene.tried_high[t - 1]
            scene.tried_low[t] = scene.tried_low[t - 1]
            continue
        role = edit_for_place(scene, t, window, place)
        if gap != NOWHERE:
            # The moved window comes last, just above `gap`, in the role that its turn gave it.
            put_edit(scene.edits, 2 * gap, int(role == TRUE_POSITIVE), int(role == FALSE_POSITIVE))
        scene.tried_high[t], scene.tried_low[t] = value_of(scene.lists, scene.rules, t, scene.edits)
    return True


@kernel
def changes_reach_objects(scene: Scene, window: int) -> bool:
    """Whether the moved window, or one that the world removes or adds, reaches an object."""
    if reaches_object(scene, window):
        return True
    world = scene.world
    for i in range(world.counts[REMOVED]):
        if reaches_object(scene, world.removed[i]):
            return True
    for i in range(world.counts[ADDED]):
        if reaches_object(scene, world.added[i]):
            return True
    return False


# No object changes hands: only false positives come and go


@inlined
def _shift(scene: Scene, window: int, position: int, amount: int) -> None:
    """A window more, or less, at a position. Below the last contender it changes no rank; a bystander is no false positive."""
    zone = scene.lists.zone[position]
    if zone < len(scene.lists.at) and not is_bystander(scene, window):
        put_edit(scene.edits, 2 * scene.lists.at[zone], 0, amount)


@kernel
def count_shifts(scene: Scene, window: int, gap: int) -> bool:
    """`edits` of what the world does to each zone with the window at `gap`, where no change reaches an object.

    False if the limit of detections per image moves over a contender: then false positives are not all that changes.
    """
    world, judged, position = scene.world, scene.judged, scene.ranking.position
    image = image_of(scene.neighbours, window)
    bound = judged.last_counted[image]
    scene.edits.size[0] = 0
    scene.state[PUSHED_OUT] = 0
    # Only windows within the limit of their image count; `more` is by how many the limit has to move.
    more = 0  # windows within the bound
    for i in range(world.counts[REMOVED]):
        if position[world.removed[i]] <= bound:
            _shift(scene, world.removed[i], position[world.removed[i]], -1)
            more -= 1
    for i in range(world.counts[ADDED]):
        if position[world.added[i]] <= bound:
            _shift(scene, world.added[i], position[world.added[i]], 1)
            more += 1
    if gap != NOWHERE and gap <= bound:
        _shift(scene, window, gap, 1)
        more += 1
    # `listed` is empty where the limit cannot bind, whatever NMS keeps.
    if len(judged.listed) == 0:  # every detection counts
        return True
    most = scene.rules.max_detections
    counted = min(most, judged.listed_ptr[image + 1] - judged.listed_ptr[image])
    return counted + more == most or _move_limit(scene, window, gap, image, counted + more - most)


@kernel
def _move_limit(scene: Scene, window: int, gap: int, image: int, excess: int) -> bool:
    """The lowest `excess` windows within the old limit stop to count; if it is negative, the next ones begin to count.

    Three lists are walked from the limit away, up or down: kept windows that are not gone, added ones, and the moved window.
    False if a window that reaches an object is among them.
    """
    world, judged, position = scene.world, scene.judged, scene.ranking.position
    bound = judged.last_counted[image]
    step = -1 if excess > 0 else 1
    first, stop = judged.listed_ptr[image], judged.listed_ptr[image + 1]
    i = min(stop, first + scene.rules.max_detections)  # the first kept window beyond the limit
    j = 0  # the first added one
    while j < world.counts[ADDED] and position[world.added[j]] <= bound:
        j += 1
    if step < 0:
        i -= 1
        j -= 1
    here = gap != NOWHERE and (gap <= bound) == (step < 0)
    for _ in range(abs(excess)):
        while first <= i < stop and is_gone(scene, judged.listed[i]):
            i += step
        # Places as numbers: position p is 2 p, the gap above it 2 p - 1. Of those on this side, the one nearest to the limit.
        nearest = np.int64(1) << 40
        which = NONE
        if first <= i < stop:
            nearest = step * 2 * position[judged.listed[i]]
            which = 0
        if 0 <= j < world.counts[ADDED] and step * 2 * position[world.added[j]] < nearest:
            nearest = step * 2 * position[world.added[j]]
            which = 1
        if here and step * (2 * gap - 1) < nearest:
            which = 2
        if which == NONE:  # fewer windows than may count
            return True
        if which == 2:
            _shift(scene, window, gap, step)
            here = False
            scene.state[PUSHED_OUT] = step < 0
        elif which == 1:
            _shift(scene, world.added[j], position[world.added[j]], step)
            j += step
        else:
            if reaches_object(scene, judged.listed[i]):
                return False
            _shift(scene, judged.listed[i], position[judged.listed[i]], step)
            i += step
    return True


@kernel
def values_of_move(scene: Scene, source: int, target: int) -> bool:
    """`tried_high` and `tried_low` with a false positive in zone `target` that was in zone `source` (the last zone: nowhere).

    False if nothing can differ. Most trials end here, so the answers are kept.
    """
    if source == target:
        return False
    zones = np.int64(len(scene.lists.at) + 1)
    pair = source * zones + target
    # Where there is no room for all pairs, multiplying by an odd number spreads neighbouring ones; a later pair overwrites an
    # earlier one.
    place = pair if len(scene.move) >= zones * zones else (pair * 40503) & (len(scene.move) - 1)
    if scene.move[place] != pair:
        scene.move[place] = pair
        scene.edits.size[0] = 0
        # The last zone lies below every contender: a false positive there changes no rank.
        if source < zones - 1:
            put_edit(scene.edits, 2 * scene.lists.at[source], 0, -1)
        if target < zones - 1:
            put_edit(scene.edits, 2 * scene.lists.at[target], 0, 1)
        _values_of_edits(scene)
        for t in range(len(scene.high)):
            scene.move_high[place, t] = scene.tried_high[t]
            scene.move_low[place, t] = scene.tried_low[t]
        return True
    for t in range(len(scene.high)):
        scene.tried_high[t] = scene.move_high[place, t]
        scene.tried_low[t] = scene.move_low[place, t]
    return True


@kernel
def _values_of_shifts(scene: Scene) -> bool:
    """`tried_high` and `tried_low` after the shifts counted in `edits`; False if there are none."""
    edits = scene.edits
    size = edits.size[0]
    if size == 0:
        return False
    source = target = len(scene.lists.at)
    # One false positive that leaves a zone and one that enters another: an answer that is likely known.
    simple = size <= 2
    for e in range(size):
        zone = scene.lists.zone[edits.key[e] >> 1]
        if edits.fp[e] == -1 and source == len(scene.lists.at):
            source = zone
        elif edits.fp[e] == 1 and target == len(scene.lists.at):
            target = zone
        else:
            simple = False
    if simple:
        return values_of_move(scene, source, target)
    _values_of_edits(scene)
    return True


@kernel
def _values_of_edits(scene: Scene) -> None:
    """The values after the edits made, once per list."""
    for t in range(len(scene.high)):
        same = scene.lists.same_as[t]
        # Equal lists have equal values: COCO's ten thresholds share many.
        if same < t:
            scene.tried_high[t] = scene.tried_high[same]
            scene.tried_low[t] = scene.tried_low[same]
        else:
            scene.tried_high[t], scene.tried_low[t] = value_of(scene.lists, scene.rules, t, scene.edits)


# Objects may change hands: rivals are matched again


@kernel
def list_rivals(scene: Scene, window: int) -> None:
    """Find the windows of the image whose role may depend on where the moved window stands; the same at every threshold.

    Those are the kept windows of this world that reach an object and, where only so many detections count, also those that begin
    or stop to count.
    """
    judged, world, position = scene.judged, scene.world, scene.ranking.position
    image, most = image_of(scene.neighbours, window), scene.rules.max_detections
    kept = judged.listed_ptr[image + 1] - judged.listed_ptr[image]
    kept_here = kept - world.counts[REMOVED] + world.counts[ADDED]
    # Does the limit bind in the present world or in this one, the moved window included?
    limited = len(judged.listed) > 0 and max(kept, kept_here + 1) > most
    windows = judged.listed if limited else judged.contenders_of
    ptr = judged.listed_ptr if limited else judged.contender_ptr
    scene.state[LIMITED] = limited
    scene.state[LAST_PLACE] = len(scene.ranking.order) + 1  # every place counts
    count = 0
    rank = 0
    i, j = ptr[image], 0
    while i < ptr[image + 1] or j < world.counts[ADDED]:
        # The next of two lists by decreasing score: windows kept now, and those that this world adds.
        if j == world.counts[ADDED] or (i < ptr[image + 1] and position[windows[i]] < position[world.added[j]]):
            other = windows[i]
            i += 1
            if is_gone(scene, other):
                continue
            # The moved window, if it stands above, pushes number `most` out; others count as before or change by themselves.
            changes = limited and (rank == most - 1 or (rank < most) != (position[other] <= judged.last_counted[image]))
        else:
            other = world.added[j]
            j += 1
            changes = limited
        # Everyone else keeps its role wherever the moved window stands.
        if changes or reaches_object(scene, other):
            if rank == most - 1 and limited:
                scene.state[LAST_PLACE] = count  # above this rival the moved window still counts
            scene.rivals[count] = other
            scene.rival_rank[count] = rank
            count += 1
        rank += 1
    scene.state[RIVALS] = count


@kernel
def place_of(scene: Scene, gap: int) -> int:
    """How many rivals rank above position `gap`."""
    place = 0
    while place < scene.state[RIVALS] and scene.ranking.position[scene.rivals[place]] < gap:
        place += 1
    return place


@kernel
def edit_for_place(scene: Scene, t: int, window: int, place: int) -> int:
    """`edits` of list t in this world when the window ranks after `place` rivals (NOWHERE: it is not there); returns its role.

    The window itself is not among the edits.
    """
    world, state = scene.world, scene.state
    limited = state[LIMITED] == 1
    scene.edits.size[0] = 0
    for i in range(world.counts[REMOVED]):
        # Removed windows leave their places in the list.
        _put_role(scene, t, world.removed[i], ABSENT)
    if not limited:  # otherwise all added windows are rivals
        for i in range(world.counts[ADDED]):
            if not reaches_object(scene, world.added[i]):
                _put_role(scene, t, world.added[i], IGNORED if is_bystander(scene, world.added[i]) else FALSE_POSITIVE)
    # Rivals claim objects in decreasing score, as in matching, the moved window when its turn comes. All other windows of
    # the image reach no object and stay what they are.
    state[STAMP] += 1  # frees every object
    role = IGNORED
    for i in range(state[RIVALS] + 1):
        if i == place and place <= state[LAST_PLACE]:
            role = _claim(scene, t, window)
        if i < state[RIVALS]:
            # The moved window pushes those behind it one place down, and perhaps the last over the limit.
            counts = not limited or scene.rival_rank[i] + int(0 <= place <= i) < scene.rules.max_detections
            _put_role(scene, t, scene.rivals[i], _claim(scene, t, scene.rivals[i]) if counts else IGNORED)
    return role


@kernel
def _claim(scene: Scene, t: int, window: int) -> int:
    """The role of a window as the next detection of its image."""
    r = scene.judged.number[window]
    if r < 0:
        return IGNORED if is_bystander(scene, window) else FALSE_POSITIVE
    role, _ = claim(r, t, scene.objects, scene.judged, scene.rules, scene.taken, scene.state[STAMP])
    return role


@kernel
def _put_role(scene: Scene, t: int, window: int, role: int) -> None:
    """Edit the list where a window stands: from its present role to the new one."""
    old = role_at(scene.judged, scene.ranking, scene.neighbours, t, window)
    put_edit(
        scene.edits,
        2 * scene.ranking.position[window] + 1,
        int(role == TRUE_POSITIVE) - int(old == TRUE_POSITIVE),
        int(role == FALSE_POSITIVE) - int(old == FALSE_POSITIVE),
    )
