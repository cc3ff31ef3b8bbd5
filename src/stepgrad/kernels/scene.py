"""One class of a batch, ready for the step search: roles and ranked lists at every match threshold, and room to try edits in."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepgrad.kernels.cascade import Cascade, new_cascade
from stepgrad.kernels.class_view import ClassView, image_of
from stepgrad.kernels.edited_ap import Lift, edited_sum, new_lift
from stepgrad.kernels.jit import by_reference, inlined, kernel
from stepgrad.kernels.matching import ONLY_EXCUSED, Rules
from stepgrad.kernels.rank_steps import Ties
from stepgrad.kernels.ranked_list import Edits, Ranked, new_edits
from stepgrad.kernels.roles import ByImage, RoleTable, judge_class, rank_judged, role_in

COUNT, LIMITED, LAST_PLACE = 0, 1, 2  # what Rivals.state holds
SIZE, PUSHED_OUT = 0, 1  # what Shifts.state holds
_MOST_MOVES = 1024


class Rivals(NamedTuple):
    """Room for the windows whose role may depend on the moved window's place (see replay.py), in decreasing score."""

    slots: NDArray[np.int32]
    rank: NDArray[np.int32]  # how many windows of the replayed image rank above; only if LIMITED
    state: NDArray[
        np.int64
    ]  # (3,) how many rivals; 1 if max_detections may bind; last place at which the window counts


class Shifts(NamedTuple):
    """Room: false positives gained, less those lost, by zone (see shifts.py)."""

    gained: NDArray[np.int32]  # (C + 1,) zero between two uses
    zones: NDArray[np.int32]  # those touched
    state: NDArray[np.int64]  # (2,) how many of them; 1 if the moved window itself stopped to count


class KnownMoves(NamedTuple):
    """Sums already known: a false positive in zone v in the place of one in zone u. A later pair overwrites an earlier one."""

    pair: NDArray[np.int64]  # (M,) u (C + 1) + v, -1 for none
    high: NDArray[np.float64]  # (M, t)
    low: NDArray[np.float64]


class Replayed(NamedTuple):
    """Room: the sums after the last change tried, as exact pairs. Kept here because passing arrays costs more than the work."""

    high: NDArray[np.float64]  # (t,)
    low: NDArray[np.float64]


class Scene(NamedTuple):
    """Everything about one class. Arrays over windows are indexed by slot, t is the number of a match threshold."""

    windows: ClassView  # numba keeps the name `view` to itself
    rules: Rules
    judged: RoleTable
    ranked: Ranked
    high: NDArray[np.float64]  # (t,) the sums as things stand, as exact pairs
    low: NDArray[np.float64]
    ties: Ties
    lift: Lift
    edits: Edits
    cascade: Cascade
    last_relevant: NDArray[np.int32]  # (images,) changes of an image at positions beyond this cannot matter
    contenders: ByImage
    claims: NDArray[np.int32]  # (t, objects) contenders that count and whose best object this is
    rivals: Rivals
    shifts: Shifts
    moves: KnownMoves
    replayed: Replayed
    taken: NDArray[np.int32]  # (objects,) room: the replay in which an object was taken last ...
    stamp: NDArray[np.int32]  # (1,) ... and the number of the present one: nothing has to be cleared between replays


@inlined
def best_of(scene: Scene, t: int, slot: int) -> int:
    """The object a window overlaps most at threshold t, -1 if it reaches none."""
    r = scene.judged.reach.number[slot]
    return scene.judged.reach.best[t, r] if r >= 0 else -1


@inlined
def role_at(scene: Scene, t: int, slot: int) -> int:
    """The role of a window at threshold t."""
    return role_in(scene.judged, scene.windows, t, slot)


@inlined
def is_reacher(scene: Scene, slot: int) -> bool:
    """Whether a window reaches an object at some threshold."""
    return scene.judged.reach.number[slot] >= 0


@inlined
def is_plain(scene: Scene, slot: int) -> bool:
    """Whether a window reaches nothing at any threshold, so that it is a false positive wherever it counts."""
    return scene.judged.reach.number[slot] == -1


@inlined
def is_bystander(scene: Scene, slot: int) -> bool:
    """Whether a window is ignored wherever it stands: of another size, and on no object. It counts for the limit only."""
    return scene.judged.reach.number[slot] == ONLY_EXCUSED


@kernel
def _last_relevant(judged: RoleTable, view: ClassView, ranked: Ranked) -> NDArray[np.int32]:
    """AP depends on true positives' ranks only: nothing matters below the last one and the last window that could be one."""
    last = np.int32(-1)
    for t in range(len(ranked.T)):
        last = max(last, ranked.tp_position[t, ranked.T[t]])
    limit = np.full(view.images, last, dtype=np.int32)
    for slot in judged.reach.slots:
        image = image_of(view, slot)
        limit[image] = max(limit[image], view.position[slot])
    return limit


@kernel
def _by_image(view: ClassView, contenders: NDArray[np.int32]) -> ByImage:
    """The contenders image after image; within an image they stay in decreasing score."""
    ptr = np.zeros(view.images + 1, dtype=np.int32)
    for slot in contenders:
        ptr[image_of(view, slot) + 1] += 1
    for image in range(view.images):
        ptr[image + 1] += ptr[image]
    slots = np.empty(len(contenders), dtype=np.int32)
    filled = ptr[: view.images].copy()
    for slot in contenders:
        image = image_of(view, slot)
        slots[filled[image]] = slot
        filled[image] += 1
    return ByImage(slots, ptr)


@kernel
def _count_claims(view: ClassView, judged: RoleTable) -> NDArray[np.int32]:
    best = judged.reach.best
    claims = np.zeros((len(best), len(view.objects.image)), dtype=np.int32)
    for slot in judged.contenders:
        counts = view.position[slot] <= judged.last_counted[image_of(view, slot)]
        for t in range(len(best)):
            target = best[t, judged.reach.number[slot]]
            if target >= 0:
                claims[t, target] += counts
    return claims


@kernel
def _new_moves(contenders: int, thresholds: int) -> KnownMoves:
    """Room for all pairs of zones, or for some of very many; a power of two."""
    room = 1
    while room < min((contenders + 1) ** 2, _MOST_MOVES):
        room *= 2
    return KnownMoves(np.full(room, -1, dtype=np.int64), np.empty((room, thresholds)), np.empty((room, thresholds)))


@kernel
def build_scene(view: ClassView, rules: Rules, ties: Ties) -> Scene:
    """Match, rank and index one class at every threshold; `ties` are its groups of equal scores, if they are needed."""
    # Everything is passed by address, as in the search: by value it would be other code, compiled once more.
    windows, given = by_reference(view), by_reference(rules)
    judged = judge_class(windows, given)
    known = by_reference(judged)
    ranked = rank_judged(known, windows)
    lists = by_reference(ranked)
    lift = new_lift(lists)
    edits = new_edits(len(view.order) + 8)  # a replay edits each window at most once, and the moved one twice
    high, low = np.empty(len(ranked.T)), np.empty(len(ranked.T))
    for t in range(len(ranked.T)):
        high[t], low[t] = edited_sum(lists, by_reference(lift), t, by_reference(edits))
    room = len(view.order) + 1
    zones = len(judged.contenders) + 1
    return Scene(
        windows=view,
        rules=rules,
        judged=judged,
        ranked=ranked,
        high=high,
        low=low,
        ties=ties,
        lift=lift,
        edits=edits,
        cascade=new_cascade(len(view.slots.image_of_word)),
        last_relevant=_last_relevant(known, windows, lists),
        contenders=_by_image(windows, judged.contenders),
        claims=_count_claims(windows, known),
        rivals=Rivals(np.empty(room, dtype=np.int32), np.empty(room, dtype=np.int32), np.zeros(3, dtype=np.int64)),
        shifts=Shifts(
            np.zeros(zones, dtype=np.int32), np.empty(3 * room + 8, dtype=np.int32), np.zeros(2, dtype=np.int64)
        ),
        moves=_new_moves(len(judged.contenders), len(ranked.T)),
        replayed=Replayed(high.copy(), low.copy()),
        taken=np.zeros(len(view.objects.image), dtype=np.int32),
        stamp=np.zeros(1, dtype=np.int32),
    )
