"""Damage to files of weights. Those of stepgrad get the digest of what is in them, so that damage gets past it."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from random import Random
from typing import Any

import torch

from tests.fuzz.damage_arrays import pickled
from tests.fuzz.damage_bytes import damage_bytes
from tests.fuzz.damage_tree import damage_tree
from tests.fuzz.nasty import VALUES

_OPENING = b'{"__metadata__":{"digest":"'
_DIGEST = slice(8 + len(_OPENING), 8 + len(_OPENING) + 64)
_WITHIN = ("state", "stepgrad", "scale")  # texts of the metadata that are JSON themselves


def damage_safetensors(data: bytes, random: Random) -> bytes:
    """One defect in the header or the texts in it, or in some bytes."""
    length = int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8 : 8 + length])
    except (ValueError, RecursionError):
        return damage_bytes(data, random)
    if not isinstance(header, dict) or random.random() < 0.1:
        return with_digest(damage_bytes(data, random))
    metadata = header.get("__metadata__")
    if isinstance(metadata, dict) and set(_WITHIN) & set(metadata) and random.random() < 0.6:
        key = random.choice(sorted(set(_WITHIN) & set(metadata)))
        metadata[key] = _damaged_text(str(metadata[key]), random)
    else:
        header = damage_tree(header, random)
    text = json.dumps(header, separators=(",", ":")).encode()
    return with_digest(len(text).to_bytes(8, "little") + text + data[8 + length :])


def _damaged_text(text: str, random: Random) -> Any:
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if random.random() < 0.1:
        return random.choice(["", "{", "[" * 100_000, "null", "[]", "1", "nan", None, 1])
    return json.dumps(damage_tree(tree, random, [value for value in VALUES if not str(value).startswith("<<")]))


def with_digest(data: bytes) -> bytes:
    """The same bytes with their right digest, if there is a place for one."""
    if data[8 : _DIGEST.start] != _OPENING or len(data) < _DIGEST.stop:
        return data
    digest = hashlib.sha256(data[: _DIGEST.start] + b"0" * 64 + data[_DIGEST.stop :])
    return data[: _DIGEST.start] + digest.hexdigest().encode() + data[_DIGEST.stop :]


def damage_pt(data: bytes, random: Random) -> bytes:
    """Other contents in torch's own format, or a pickle that would run code."""
    kind = random.randrange(4)
    if kind == 0:
        return pickled()
    if kind == 1:
        return _swapped_pickle(data)
    try:
        state = torch.load(io.BytesIO(data), weights_only=True)
    except Exception:  # damaged already
        return data
    if not isinstance(state, dict) or not state:
        return damage_bytes(data, random)
    name = random.choice(sorted(state, key=str))
    if kind == 2:
        state[name] = random.choice(
            [None, 1, "x", [1], {"a": torch.zeros(2)}, state[name], {name: state[name]}, *_tensors()]
        )
    else:
        new = random.choice(["", "trunk.0.weight", "state_dict", "model", 7, ("a", 1), None])
        state[new] = state.pop(name)
    packed = io.BytesIO()
    torch.save(state, packed)
    return packed.getvalue()


def _tensors() -> list[torch.Tensor]:
    return [
        *(torch.zeros(()), torch.zeros(0), torch.zeros(2, 3), torch.zeros(2, dtype=torch.complex64)),
        *(
            torch.zeros(32, 3, 3, 3, device="meta"),
            torch.zeros(32, 3, 3, 3).to_sparse(),
            torch.zeros(32, 3, 3, 3).int(),
        ),
        *(torch.full((32, 3, 3, 3), float("nan")), torch.zeros(32, 3, 3, 3, dtype=torch.complex64)),
        torch.zeros(1).expand(32, 3, 3, 3),
    ]


def _swapped_pickle(data: bytes) -> bytes:
    packed = io.BytesIO()
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(packed, "w") as new:
            for name in old.namelist():
                new.writestr(name, pickled() if name.endswith("data.pkl") else old.read(name))
    except zipfile.BadZipFile:
        return data
    return packed.getvalue()
