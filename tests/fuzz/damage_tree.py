"""Damage to trees of dicts, lists and plain values: JSON, YAML, tables of words."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from tests.fuzz.nasty import NAMES, VALUES

Place = tuple[Any, Any]
"""A container and the key or index in it."""


def damage_tree(tree: Any, random: Random, values: list[Any] = VALUES) -> Any:
    """A copy with one defect; `values` are those that leaves are replaced by."""
    holder = [copy.deepcopy(tree)]
    places = list(places_in(holder))
    action = random.choice(_ACTIONS)
    action(places, random, values)
    return holder[0] if holder else None


def places_in(container: Any) -> Iterator[Place]:
    """All places of a tree, from the outside in."""
    keys = list(container) if isinstance(container, dict) else range(len(container))
    for key in keys:
        yield container, key
        if isinstance(container[key], (dict, list)):
            yield from places_in(container[key])


def _replace(places: list[Place], random: Random, values: list[Any]) -> None:
    container, key = random.choice(places)
    container[key] = copy.deepcopy(random.choice(values))


def _bend(places: list[Place], random: Random, values: list[Any]) -> None:
    """The value itself, a little wrong."""
    container, key = random.choice(places)
    value = container[key]
    bent: list[Any] = [[value], {"a": value}, str(value), [value, value], [value] * 5]
    if isinstance(value, (int, float)):
        bent += [-value, value + 1, value * 0.5, value * 1e10, value * 1e300, bool(value)]
    if isinstance(value, str):
        bent += [value + random.choice(NAMES), random.choice(NAMES) + value, value.upper(), value[:-1]]
    container[key] = random.choice(bent)


def _delete(places: list[Place], random: Random, values: list[Any]) -> None:
    container, key = random.choice(places)
    del container[key]


def _rename(places: list[Place], random: Random, values: list[Any]) -> None:
    named = [(container, key) for container, key in places if isinstance(container, dict)]
    if named:
        container, key = random.choice(named)
        known = sorted({key for _, key in named if isinstance(key, str)})
        container[random.choice(random.choice([NAMES, known or NAMES]))] = container.pop(key)


def _add(places: list[Place], random: Random, values: list[Any]) -> None:
    named = [(container, key) for container, key in places if isinstance(container, dict)]
    if named:
        container, _ = random.choice(named)
        known = sorted({key for _, key in named if isinstance(key, str)})
        container[random.choice(random.choice([NAMES, known or NAMES]))] = copy.deepcopy(random.choice(values))


def _repeat(places: list[Place], random: Random, values: list[Any]) -> None:
    listed = [(container, key) for container, key in places if isinstance(container, list)]
    container, key = random.choice(listed)
    container.insert(random.randrange(len(container) + 1), copy.deepcopy(container[key]))


def _swap(places: list[Place], random: Random, values: list[Any]) -> None:
    (first, at), (second, to) = random.choice(places), random.choice(places)
    one, other = copy.deepcopy(first[at]), copy.deepcopy(second[to])
    first[at] = other
    if not (isinstance(second, list) and to >= len(second)):
        second[to] = one


_ACTIONS: list[Callable[[list[Place], Random, list[Any]], None]] = [
    *(_replace, _replace, _replace, _bend, _bend),
    *(_delete, _rename, _add, _repeat, _swap),
]
