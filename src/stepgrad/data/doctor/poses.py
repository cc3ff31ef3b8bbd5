"""Checks of the names of keypoints: pairs of left and right, and what belongs to which side."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from stepgrad.data.problems import Problem, brief

_OTHER_SIDE = {"left": "right", "right": "left", "Left": "Right", "Right": "Left", "LEFT": "RIGHT", "RIGHT": "LEFT"}
_SIDES = re.compile("|".join(_OTHER_SIDE))


def mirrored(name: str) -> str:
    """The name of the same keypoint on the other side.

    >>> mirrored("left_eye"), mirrored("nose")
    ('right_eye', 'nose')
    """
    return _SIDES.sub(lambda match: _OTHER_SIDE[match.group()], name)


def keypoint_names(value: Any) -> list[str]:
    """Names from a list, or from the lists of several classes, as a data.yaml has them; none where it has something else."""
    if isinstance(value, dict) and value:
        value = next(iter(value.values()))
    return value if isinstance(value, list) and all(isinstance(name, str) for name in value) else []


def examine_names(where: str, names: Sequence[str], skeleton: Any = None) -> Iterator[Problem]:
    """Names that have no twin on the other side, and bones of a skeleton (pairs counted from 1) that change sides."""
    for name in names:
        if mirrored(name) not in names:
            yield _problem(where, f"keypoint {name!r} has no {mirrored(name)!r}", "check the names of the keypoints")
    bones = _bones(skeleton, names)
    for a, b in bones:
        crossed = mirrored(a) != a and mirrored(b) != b and _side(a) != _side(b) and mirrored(a) != b
        if crossed and not {(a, mirrored(b)), (mirrored(b), a)} & set(bones):
            fix = f"expected {a!r} with {mirrored(b)!r}; are left and right swapped in the names?"
            yield _problem(where, f"the skeleton joins {a!r} to {b!r}", fix)


def examine_flips(where: str, flips: Any, count: int, names: Sequence[str]) -> Iterator[Problem]:
    """A `flip_idx` that is no exchange of pairs, or that sends a keypoint to another than its twin."""
    if not isinstance(flips, list) or sorted(map(str, flips)) != sorted(map(str, range(count))):
        defect = f"expected flip_idx to have each of 0 to {count - 1} once but got {brief(flips)}"
        yield _problem(where, defect, "write for each keypoint the one that it becomes in a mirrored image")
        return
    one_way = next((i for i in range(count) if flips[flips[i]] != i), None)
    if one_way is not None:
        back = flips[flips[one_way]]
        defect = f"flip_idx sends keypoint {one_way} to {flips[one_way]}, but that to {back}"
        yield _problem(where, defect, "write pairs: where left becomes right, right becomes left")
    for i, name in enumerate(names if len(names) == count else ()):
        if mirrored(name) in names and names[flips[i]] != mirrored(name):
            fix = f"expected {mirrored(name)!r}: correct flip_idx, or the names if left and right are swapped"
            yield _problem(where, f"flip_idx sends {name!r} to {names[flips[i]]!r}", fix)


def _bones(skeleton: Any, names: Sequence[str]) -> list[tuple[str, str]]:
    pairs = skeleton if isinstance(skeleton, list) else []
    return [
        (names[pair[0] - 1], names[pair[1] - 1])
        for pair in pairs
        if isinstance(pair, list) and len(pair) == 2 and all(isinstance(i, int) and 1 <= i <= len(names) for i in pair)
    ]


def _side(name: str) -> str:
    found = _SIDES.search(name)
    return found.group().lower() if found else ""


def _problem(where: str, what: str, fix: str) -> Problem:
    return Problem(where, what, fix, "warning", "keypoint-names")
