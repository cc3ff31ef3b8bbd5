"""Ways in which a file with weights may be damaged or replaced."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load, save

from stepgrad.weights_file import read_tensors, write_tensors


def flip_a_bit(file: Path, place: int = -1) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def other_shape(file: Path) -> None:
    """Whole, with a right digest, and its tensors are none that belong here."""
    _, facts = read_tensors(file)
    write_tensors(file, {"weight": torch.zeros(3, 2)}, facts)


def another_owner(file: Path) -> None:
    tensors, facts = read_tensors(file)
    write_tensors(file, tensors, {name: "other" if name in ("settings", "owner") else t for name, t in facts.items()})


DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda file: file.write_bytes(b""),
    "cut": cut,
    "junk": lambda file: file.write_bytes(b"junk" * 1000),
    "a flipped bit": flip_a_bit,
    "without metadata": lambda file: file.write_bytes(save(load(file.read_bytes()))),
    "another shape": other_shape,
    "of another call": another_owner,
    "a folder": folder,
}
