"""One class of a batch, ready for the step search: its order, NMS, roles and ranked list, and what an edit is worth."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepgrad.kernels.cascade import Cascade, new_cascade
from stepgrad.kernels.edited_ap import (
    Edits,
    Lift,
    Ranked,
    edited_sum,
    new_edits,
    new_lift,
    rank_list,
)
from stepgrad.kernels.jit import kernel
from stepgrad.kernels.matching import (
    ABSENT,
    Candidates,
    Objects,
    Pairs,
    Rule,
    candidates_of,
    match_all,
)
from stepgrad.kernels.nms import Kept
from stepgrad.kernels.overlaps import Rows
from stepgrad.kernels.rank_steps import Ties, tie_groups


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
def _last_relevant(
    reaching: NDArray[np.int32],
    position: NDArray[np.int32],
    image_of_word: NDArray[np.int32],
    ranked: Ranked,
    images: int,
) -> NDArray[np.int32]:
    """AP depends on true positives' ranks only: nothing matters below the last one and the last window that could be one."""
    limit = np.full(images, ranked.tp_position[ranked.T], dtype=np.int32)
    for slot in reaching:
        image = image_of_word[slot >> 6]
        limit[image] = max(limit[image], position[slot])
    return limit


@kernel
def _contenders(
    reaching: NDArray[np.int32],
    position: NDArray[np.int32],
    image_of_word: NDArray[np.int32],
    roles: NDArray[np.int8],
    images: int,
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The kept ones, image after image, by decreasing score, and where each image's begin."""
    kept = reaching[roles[reaching] != ABSENT]
    ptr = np.zeros(images + 1, dtype=np.int32)
    keys = np.empty(len(kept), dtype=np.int64)
    for i in range(len(kept)):
        image = image_of_word[kept[i] >> 6]
        ptr[image + 1] += 1
        keys[i] = image * np.int64(len(position) + 1) + position[kept[i]]
    for image in range(images):
        ptr[image + 1] += ptr[image]
    return kept[np.argsort(keys)], ptr


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
    reaching = _reaching(given.pairs, found.best)
    contenders, contenders_ptr = _contenders(reaching, given.position, image_of_word, roles, images)
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
        _last_relevant(reaching, given.position, image_of_word, ranked, images),
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
