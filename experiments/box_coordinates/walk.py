"""The class's AP as a function of each coordinate of each box of an image: its nearest steps, and its values a radius away."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from experiments.box_coordinates.places import add_crossings, add_equalities, line_of, meeting, merge_places
from experiments.box_coordinates.scene import Image, Rest, Rules, judge, list_sum, overlap_of, reaches, roles_now
from stepgrad.engine.exact_sum import differ
from stepgrad.engine.jit import kernel
from stepgrad.engine.matching import ABSENT

_ONE_PLACE = 1e-9  # places closer than this share of the box's side are one: far above rounding, far below a pixel


class Found(NamedTuple):
    """Nearest steps by window and coordinate, (n, 4): +-inf and the present sum where there is none."""

    up_at: NDArray[np.float64]
    up_sum: NDArray[np.float64]
    down_at: NDArray[np.float64]
    down_sum: NDArray[np.float64]


class Mover(NamedTuple):
    """The window on the move. Windows above it do not feel it, so what they keep, suppress and take is given once."""

    window: int
    above: NDArray[np.int64]  # the kept windows above it
    taken: NDArray[np.bool_]  # (g,) the objects they take
    tail: NDArray[np.int64]  # the window itself, and those below it that they leave and that may matter
    members: NDArray[np.int64]  # above and tail
    roles: NDArray[np.int8]  # (n,) as things stand
    present: tuple[float, float]
    gone: tuple[float, float]  # the sum if the window is suppressed


class Room(NamedTuple):
    """Scratch arrays."""

    roles: NDArray[np.int8]
    dead: NDArray[np.bool_]
    taken: NDArray[np.bool_]
    places: NDArray[np.float64]


@kernel
def _sum_of(image: Image, rest: Rest, rules: Rules, mover: Mover, suppressed: bool, room: Room) -> tuple[float, float]:
    """The sum with the moved window, whose overlaps stand in the image."""
    dead = room.dead[: len(mover.tail)]
    dead[:] = False
    dead[0] = suppressed
    room.taken[:] = mover.taken
    judge(image, mover.tail, dead, len(mover.above), room.taken, rules, room.roles)
    for window in mover.tail:
        if room.roles[window] != mover.roles[window]:
            for kept in mover.above:
                room.roles[kept] = mover.roles[kept]
            return list_sum(image, mover.members, room.roles, rest, rules.cumulative)
    return mover.present


@kernel
def _sum_at(
    image: Image, rest: Rest, rules: Rules, mover: Mover, box: NDArray[np.float64], room: Room
) -> tuple[float, float]:
    """The sum with the window's box replaced; leaves the image's overlaps changed."""
    b = mover.window
    for other in mover.above:
        if overlap_of(box, image.boxes[other], False, 0.0) > rules.nms_threshold:
            return mover.gone
    for other in mover.tail[1:]:
        image.near[b, other] = overlap_of(box, image.boxes[other], False, 0.0) > rules.nms_threshold
    for o in range(len(image.objects)):
        image.overlap[b, o] = overlap_of(box, image.objects[o], image.crowd[o], rules.offset)
    return _sum_of(image, rest, rules, mover, False, room)


@kernel
def _object_places(
    image: Image, rules: Rules, window: int, coordinate: int, slack: float, places: NDArray[np.float64]
) -> int:
    """Where the window's match may change as the coordinate moves, in the turned coordinates of the line; unsorted."""
    n, line = 0, line_of(image.boxes[window], coordinate, rules.offset)
    for o in range(len(image.objects)):
        met = meeting(line, image.objects[o], image.crowd[o])
        n = add_crossings(line, met, rules.match.threshold, slack, places, n)
        for other in range(o):
            rival = meeting(line, image.objects[other], image.crowd[other])
            n = add_equalities(line, met, rival, slack, places, n)
    return n


@kernel
def _window_places(
    image: Image, rules: Rules, mover: Mover, coordinate: int, slack: float, places: NDArray[np.float64], n: int
) -> int:
    """Append where it may begin or cease to be suppressed, or to suppress."""
    if rules.nms_threshold > 1.0:
        return n
    line = line_of(image.boxes[mover.window], coordinate, 0.0)
    for others in (mover.above, mover.tail[1:]):
        for other in others:
            met = meeting(line, image.boxes[other], False)
            n = add_crossings(line, met, rules.nms_threshold, slack, places, n)
    return n


@kernel
def _walk(
    image: Image,
    rest: Rest,
    rules: Rules,
    mover: Mover,
    coordinate: int,
    places: NDArray[np.float64],
    end: float,
    room: Room,
) -> tuple[float, float]:
    """The first place, in the order given, beyond which the sum differs, and that sum; `end` is where the walk ends."""
    box = image.boxes[mover.window].copy()
    fixed = line_of(box, coordinate, 0.0).fixed
    for i in range(len(places)):
        further = places[i + 1] if i + 1 < len(places) else end
        beyond = 0.5 * places[i] + 0.5 * further if np.isfinite(further) else 2.0 * places[i] - fixed
        box[coordinate] = beyond if coordinate >= 2 else -beyond
        hi, lo = _sum_at(image, rest, rules, mover, box, room)
        if differ(hi, lo, mover.present[0], mover.present[1]):
            return places[i], hi
    return np.inf, mover.present[0]


@kernel
def _both_ways(
    image: Image, rest: Rest, rules: Rules, mover: Mover, coordinate: int, reach: float, room: Room, found: Found
) -> None:
    """Find the nearest steps of one coordinate."""
    b = mover.window
    x = image.boxes[b, coordinate]
    at, fixed = (x if coordinate >= 2 else -x), line_of(image.boxes[b], coordinate, 0.0).fixed
    side = at - fixed
    low, high, same = max(fixed, at - reach * side), at + reach * side, _ONE_PLACE * side
    n = _object_places(image, rules, b, coordinate, same, room.places)
    n = _window_places(image, rules, mover, coordinate, same, room.places, n)
    n = merge_places(room.places, n, low, high, at, same)
    places = room.places[:n]
    outward = places[np.searchsorted(places, at, side="left") :]
    inward = places[: np.searchsorted(places, at, side="right")][::-1].copy()
    far, far_sum = _walk(image, rest, rules, mover, coordinate, outward, high, room)
    back, back_sum = _walk(image, rest, rules, mover, coordinate, inward, low, room)
    if coordinate >= 2:
        found.up_at[b, coordinate], found.up_sum[b, coordinate] = far, far_sum
        found.down_at[b, coordinate], found.down_sum[b, coordinate] = (back if back < np.inf else -np.inf), back_sum
    else:
        found.up_at[b, coordinate], found.up_sum[b, coordinate] = (-back if back < np.inf else np.inf), back_sum
        found.down_at[b, coordinate], found.down_sum[b, coordinate] = -far, far_sum


@kernel
def _a_radius_away(
    image: Image, rest: Rest, rules: Rules, mover: Mover, coordinate: int, radius: float, room: Room, found: Found
) -> None:
    """The sums with the coordinate moved by a share of the box's side; those places in place of the steps'."""
    b = mover.window
    box = image.boxes[b].copy()
    x, distance = box[coordinate], radius * (box[coordinate % 2 + 2] - box[coordinate % 2])
    box[coordinate] = x + distance
    found.up_at[b, coordinate] = x + distance
    found.up_sum[b, coordinate] = _sum_at(image, rest, rules, mover, box, room)[0]
    box[coordinate] = x - distance
    found.down_at[b, coordinate] = x - distance
    found.down_sum[b, coordinate] = _sum_at(image, rest, rules, mover, box, room)[0]


@kernel
def _relevant(image: Image, rest: Rest, rules: Rules) -> int:
    """Windows from this one on cannot change AP unless they come to reach an object: it depends on true positives' ranks."""
    last = rest.position[-1] if len(rest.position) > 0 else -1
    for window in range(len(image.boxes) - 1, -1, -1):
        if image.position[window] <= last:
            return window + 1
        for o in range(len(image.objects)):
            if reaches(image.overlap[window, o], rules.match):
                return window + 1
    return 0


@kernel
def search_image(image: Image, rest: Rest, rules: Rules, reach: float, radius: float) -> tuple[Found, float]:
    """Nearest steps of every coordinate of an image's boxes (radius 0), or the values that far away; the present sum."""
    n, g = len(image.boxes), len(image.objects)
    roles = roles_now(image, rules)
    present = list_sum(image, np.arange(n), roles, rest, rules.cumulative)
    beyond = np.full((n, 4), present[0])
    found = Found(np.full((n, 4), np.inf), beyond, np.full((n, 4), -np.inf), beyond.copy())
    room = Room(
        np.empty(n, dtype=np.int8),
        np.empty(n, dtype=np.bool_),
        np.empty(g, dtype=np.bool_),
        np.empty(2 * n + 2 * g + 8 * g * g),
    )
    relevant = _relevant(image, rest, rules)
    dead, taken = np.zeros(n, dtype=np.bool_), np.zeros(g, dtype=np.bool_)
    for b in range(n if g > 0 else relevant):
        above = np.flatnonzero(roles[:b] != ABSENT)
        tail = np.append(np.array([b]), b + 1 + np.flatnonzero(~dead[b + 1 : relevant]))
        mover = Mover(b, above, taken, tail, np.append(above, tail), roles, present, present)
        near, overlap = image.near[b].copy(), image.overlap[b].copy()
        kept = roles[b] != ABSENT
        if kept:
            gone = _sum_of(image, rest, rules, mover, True, room)
            mover = Mover(b, above, taken, tail, mover.members, roles, present, gone)
        for coordinate in range(4):
            if radius > 0.0:
                _a_radius_away(image, rest, rules, mover, coordinate, radius, room, found)
            else:
                _both_ways(image, rest, rules, mover, coordinate, reach, room, found)
        image.near[b] = near
        image.overlap[b] = overlap
        if kept:
            dead |= near
            judge(image, tail[:1], np.zeros(1, dtype=np.bool_), len(above), taken, rules, room.roles)
    return found, present[0]
