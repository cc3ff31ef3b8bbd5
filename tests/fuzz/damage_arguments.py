"""Damage to the arguments of a call: tensors of wrong types, shapes, values and places, and things that are no tensors."""

from __future__ import annotations

import copy
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.fuzz.damage_tree import places_in

_TYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.complex64),
    *(torch.int64, torch.int32, torch.uint8, torch.int8, torch.bool, torch.uint16, torch.uint64),
)
_PLAIN = (
    torch.float64,
    torch.float32,
    torch.int64,
    torch.int32,
    torch.bool,
)  # that torch can calculate with everywhere
_VALUES = (float("nan"), float("inf"), -float("inf"), 1e308, -1e38, 1e-45, -1.0, 0.0, 2.0, 7.0, 2.0**63)
_THINGS: tuple[Any, ...] = (
    *(
        None,
        "x",
        "",
        1,
        -1,
        0,
        True,
        1.5,
        float("nan"),
        10**400,
        [],
        {},
        (),
        [1],
        [[0, 0, 1, 1]],
        {"boxes": None},
        object(),
        2**70,
    ),
    *(
        np.zeros(3),
        np.zeros((2, 4)),
        np.array(["a"]),
        [None],
        [float("nan")] * 4,
        b"x",
        range(3),
        {"labels": "x"},
        [[1], [1, 2]],
    ),
)


def damage_arguments(arguments: dict[str, Any], random: Random) -> dict[str, Any]:
    """The same with one or two defects."""
    for _ in range(random.choice((1, 1, 2))):
        places = list(places_in(arguments))
        container, key = random.choice(places)
        container[key] = _damaged(container, key, random)
        if container[key] is _GONE:
            del container[key]
    return arguments


_GONE = object()


def _damaged(container: Any, key: Any, random: Random) -> Any:
    value = container[key]
    if isinstance(value, Tensor) and value.layout == torch.strided and random.random() < 0.75:
        return _damaged_tensor(value, random)
    if isinstance(value, list) and random.random() < 0.5:
        return random.choice([value[:-1], [*value, *value], [], tuple(value), torch.zeros(3, 4), iter(value)])
    if isinstance(value, float) and random.random() < 0.5:
        return random.choice([*_VALUES, torch.tensor(value), np.float32(value), str(value), [value]])
    if random.random() < 0.15 and not (isinstance(container, dict) and "image_id" not in container):
        return _GONE
    return copy.deepcopy(random.choice(_THINGS))


def _damaged_tensor(tensor: Tensor, random: Random) -> Tensor:
    kind = random.randrange(9)
    plain = tensor.detach().clone()
    if plain.is_complex() or plain.is_meta or plain.dtype not in _PLAIN:
        return plain
    if plain.ndim == 0:
        return plain[None]
    if kind == 0:
        return plain.to(random.choice(_TYPES))
    if kind == 1:
        flat = plain.double().reshape(-1)
        if len(flat):
            flat[random.randrange(len(flat))] = random.choice(_VALUES)
        return flat.reshape(plain.shape).to(plain.dtype).requires_grad_(tensor.requires_grad)
    if kind == 2:
        choices = [
            plain.reshape(-1),
            plain[None],
            plain[..., None],
            plain[:0],
            plain.mT if plain.ndim > 1 else plain,
            plain.sum(),
            plain[:-1],
            plain.new_zeros(0),
        ]
        return random.choice([*choices, plain.new_zeros(0, 4), plain.new_zeros(3, 0), plain.new_zeros(2, 2, 2, 2)])
    if kind == 3:
        return plain.to("meta")
    if kind == 4:
        return plain.repeat_interleave(2, dim=-1)[..., ::2].requires_grad_(tensor.requires_grad)  # not contiguous
    if kind == 5:
        return plain.to_sparse()
    if kind == 6:
        return plain.to(torch.float32).expand(plain.shape).flip(0).requires_grad_()
    if kind == 7:
        return plain.new_full((), 3).expand(plain.shape)
    return torch.nn.Parameter(plain.to(torch.float32))
