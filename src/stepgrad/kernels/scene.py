"""One class of a batch at one match threshold, ready for the step search: roles, ranked list, and room to try edits in."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepgrad.kernels.cascade import Cascade, new_cascade
from stepgrad.kernels.class_view import ClassView, image_of, match_class
from stepgrad.kernels.edited_ap import Edits, Lift, Ranked, edited_sum, new_edits, new_lift, rank_list
from stepgrad.kernels.jit import kernel
from stepgrad.kernels.matching import ABSENT, Candidates, Pairs, Rule
from stepgrad.kernels.rank_steps import Ties, tie_groups

COUNT, LIMITED, LAST_PLACE = 0, 1, 2  # what Rivals.state holds


class ByImage(NamedTuple):
    """Windows by image, in decreasing score: those of image i are slots[ptr[i]:ptr[i + 1]]."""

    slots: NDArray[np.int32]
    ptr: NDArray[np.int32]  # (images + 1,)


class Rivals(NamedTuple):
    """Room for the windows whose role may depend on the moved window's place (see replay.py), in decreasing score."""

    slots: NDArray[np.int32]
    rank: NDArray[np.int32]  # how many windows of the replayed image rank above; only if LIMITED
    state: NDArray[
        np.int64
    ]  # (3,) how many rivals; 1 if max_detections may bind; last place at which the window counts


class Scene(NamedTuple):
    """Everything about one class at one match threshold. Arrays over windows are indexed by slot."""

    windows: ClassView  # numba keeps the name `view` to itself
    rule: Rule
    candidates: Candidates
    roles: NDArray[np.int8]
    ties: Ties
    ranked: Ranked
    lift: Lift
    edits: Edits
    cascade: Cascade
    last_relevant: NDArray[np.int32]  # (images,) changes of an image at positions beyond this cannot matter
    last_counted: NDArray[np.int32]  # (images,) detections beyond this position exceed max_detections
    over_limit: NDArray[np.bool_]  # (images,) more windows are kept than count
    listed: ByImage  # kept windows; empty if max_detections cannot bind
    contenders: ByImage  # kept windows that reach an object
    claims: NDArray[np.int32]  # (objects,) contenders that count and whose best object this is
    rivals: Rivals
    shift: NDArray[np.int32]  # (T + 1,) room: detections gained between two true positives
    taken: NDArray[np.int32]  # (objects,) room: the replay in which an object was taken last ...
    stamp: NDArray[np.int32]  # (1,) ... and the number of the present one: nothing has to be cleared between replays


@kernel
def _reaching(pairs: Pairs, best: NDArray[np.int32]) -> NDArray[np.int32]:
    """The slots that reach an object (few), in slot order, so image after image."""
    slots = np.empty(len(pairs.slot), dtype=np.int32)
    count = 0
    for slot in pairs.slot:
        if best[slot] >= 0 and (count == 0 or slots[count - 1] != slot):
            slots[count] = slot
            count += 1
    return slots[:count]


@kernel
def _last_relevant(reaching: NDArray[np.int32], view: ClassView, ranked: Ranked) -> NDArray[np.int32]:
    """AP depends on true positives' ranks only: nothing matters below the last one and the last window that could be one."""
    limit = np.full(view.images, ranked.tp_position[ranked.T], dtype=np.int32)
    for slot in reaching:
        image = image_of(view, slot)
        limit[image] = max(limit[image], view.position[slot])
    return limit


@kernel
def _contenders(reaching: NDArray[np.int32], view: ClassView, roles: NDArray[np.int8]) -> ByImage:
    """The kept ones of the few slots that reach an object: sorting them is quicker than walking the whole order."""
    kept = reaching[roles[reaching] != ABSENT]
    ptr = np.zeros(view.images + 1, dtype=np.int32)
    keys = np.empty(len(kept), dtype=np.int64)
    for i in range(len(kept)):
        image = image_of(view, kept[i])
        ptr[image + 1] += 1
        keys[i] = image * np.int64(len(view.position) + 1) + view.position[kept[i]]  # by image, then by position
    for image in range(view.images):
        ptr[image + 1] += ptr[image]
    return ByImage(kept[np.argsort(keys)], ptr)


@kernel
def _by_image(view: ClassView, chosen: NDArray[np.bool_]) -> ByImage:
    """The chosen slots by image: the order is walked twice, to count and to fill."""
    ptr = np.zeros(view.images + 1, dtype=np.int32)
    for slot in view.order:
        if chosen[slot]:
            ptr[image_of(view, slot) + 1] += 1
    for image in range(view.images):
        ptr[image + 1] += ptr[image]
    listed = np.empty(ptr[view.images], dtype=np.int32)
    filled = ptr[: view.images].copy()
    for slot in view.order:
        if chosen[slot]:
            image = image_of(view, slot)
            listed[filled[image]] = slot
            filled[image] += 1
    return ByImage(listed, ptr)


@kernel
def _limit_of_detections(
    view: ClassView, roles: NDArray[np.int8]
) -> tuple[ByImage, NDArray[np.int32], NDArray[np.bool_]]:
    """Kept windows by image, the last position that counts, and which images keep more than count."""
    most = view.max_detections
    last_counted = np.full(view.images, len(view.order), dtype=np.int32)
    over = np.zeros(view.images, dtype=np.bool_)
    if most >= len(view.order):  # cannot bind, whatever NMS keeps
        nobody = ByImage(np.zeros(0, dtype=np.int32), np.zeros(view.images + 1, dtype=np.int32))
        return nobody, last_counted, over
    listed = _by_image(view, roles != ABSENT)
    for image in range(view.images):
        first, stop = listed.ptr[image], listed.ptr[image + 1]
        if stop - first >= most:
            last_counted[image] = view.position[listed.slots[first + most - 1]]
            over[image] = stop - first > most
    return listed, last_counted, over


@kernel
def _count_claims(
    view: ClassView, best: NDArray[np.int32], contenders: ByImage, last_counted: NDArray[np.int32]
) -> NDArray[np.int32]:
    claims = np.zeros(len(view.objects.image), dtype=np.int32)
    for slot in contenders.slots:
        claims[best[slot]] += view.position[slot] <= last_counted[image_of(view, slot)]
    return claims


@kernel
def build_scene(view: ClassView, rule: Rule) -> Scene:
    """Match, rank and index one class at the rule's threshold."""
    candidates, roles = match_class(view, rule)
    ranked = rank_list(view.order, roles, view.cumulative)
    reaching = _reaching(view.pairs, candidates.best)
    listed, last_counted, over_limit = _limit_of_detections(view, roles)
    contenders = _contenders(reaching, view, roles)
    room = len(view.order) + 1
    return Scene(
        windows=view,
        rule=rule,
        candidates=candidates,
        roles=roles,
        ties=tie_groups(view.scores, view.order),
        ranked=ranked,
        lift=new_lift(ranked.T),
        edits=new_edits(len(view.order) + 8),  # a replay edits each window at most once, and the moved one twice
        cascade=new_cascade(len(view.slots.image_of_word)),
        last_relevant=_last_relevant(reaching, view, ranked),
        last_counted=last_counted,
        over_limit=over_limit,
        listed=listed,
        contenders=contenders,
        claims=_count_claims(view, candidates.best, contenders, last_counted),
        rivals=Rivals(np.empty(room, dtype=np.int32), np.empty(room, dtype=np.int32), np.zeros(3, dtype=np.int64)),
        shift=np.zeros(ranked.T + 1, dtype=np.int32),
        taken=np.zeros(len(view.objects.image), dtype=np.int32),
        stamp=np.zeros(1, dtype=np.int32),
    )


@kernel
def list_sum(scene: Scene) -> tuple[float, float]:
    """The sum of the list as it stands."""
    scene.edits.size[0] = 0
    return edited_sum(scene.ranked, scene.lift, scene.edits)
