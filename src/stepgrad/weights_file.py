"""Tensors on disk as safetensors, with a digest of every byte: a file is whole and undamaged, or it is refused.

The digest is the sha256 of the whole file, taken with zeros in the place of the digest itself; it is the first of the
metadata and therefore always at the same place. Any safetensors reader can read the file, and the library's reads it here.
Writing is ours: the library copies all tensors first, twice over, and puts metadata in random order.
"""

from __future__ import annotations

import glob
import hashlib
import json
import mmap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stepgrad.errors import DataError, InputError
from stepgrad.files import remove_leftovers, writing_whole

_OPENING = b'{"__metadata__":{"digest":"'
_NO_DIGEST = b"0" * 64
_DIGEST = slice(8 + len(_OPENING), 8 + len(_OPENING) + len(_NO_DIGEST))
_ALIGNMENT = 64  # tensors start where torch would put them itself
_LONGEST_HEADER = 100_000_000  # that the library reads


def save_weights(path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors and texts to a safetensors file, whole or not at all; a WriteError leaves what was there before."""
    remove_leftovers(Path(path).parent, glob.escape(Path(path).name))
    write_tensors(Path(path), tensors, metadata or {})


def load_weights(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and texts of a file of `save_weights`, or a DataError that says what is wrong with it."""
    try:
        return read_tensors(Path(path))
    except DataError as error:
        raise DataError(f"{error}; restore it from a copy, or make it again") from error


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """As `load_weights`, for callers that know better what to do."""
    from safetensors.torch import load  # of an extra; bytes of tensors are needed without it, too

    with _reading(path):
        content = path.read_bytes()
        metadata = _checked_metadata(path, content)
        return load(content), metadata


def map_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """As `read_tensors`, for files that may be larger than memory: the tensors are pages of the file, to be read only."""
    from safetensors.torch import load_file

    with _reading(path):
        if path.stat().st_size == 0:  # such a file has no pages
            raise DataError(f"{path}: is empty")
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            metadata = _checked_metadata(path, content)
        return load_file(path), metadata


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Whatever goes wrong is a DataError that names the file."""
    try:
        yield
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or type(error).__name__})") from error
    except Exception as error:  # the digest is right, so somebody wrote it so; what is wrong may be anything
        raise DataError(f"{path}: was not written by stepgrad: its header makes no sense ({error!r})") from error


def _checked_metadata(path: Path, content: bytes | mmap.mmap) -> dict[str, str]:
    """The texts of a file whose digest is right."""
    if len(content) >= _DIGEST.stop and content[8 : _DIGEST.start] != _OPENING:
        raise DataError(f"{path}: is not a file of stepgrad, or its beginning is damaged")
    if content[_DIGEST] != _digest_of(content):
        raise DataError(f"{path}: is cut short or damaged: its {len(content)} bytes do not match their digest")
    metadata: dict[str, str] = _header_of(content)["__metadata__"]
    del metadata["digest"]
    return metadata


def _digest_of(content: bytes | mmap.mmap) -> bytes:
    with memoryview(content) as view:
        digest = hashlib.sha256(view[: _DIGEST.start])
        digest.update(_NO_DIGEST)
        digest.update(view[_DIGEST.stop :])
    return digest.hexdigest().encode()


def _header_of(content: bytes | mmap.mmap) -> dict[str, Any]:
    header: dict[str, Any] = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return header


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], durable: bool = True) -> None:
    """Write in one pass: the digest, known only at the end, is put in before the file gets its name."""
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))  # keeps every tensor aligned
    header = _header(names, tensors, metadata)
    digest = hashlib.sha256(header)
    with writing_whole(path, durable=durable) as handle:
        handle.write(header)
        for name in names:
            data = bytes_of(tensors[name])
            digest.update(data)
            handle.write(data)
        handle.seek(_DIGEST.start)
        handle.write(digest.hexdigest().encode())


def _header(names: list[str], tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    if "digest" in metadata or "__metadata__" in tensors:
        raise InputError("Expected metadata without `digest` and tensors without `__metadata__`: the file has its own.")
    for key, text in metadata.items():
        if not isinstance(text, str):
            raise InputError(f"Expected metadata[{key!r}] to be a string but got {type(text).__name__}.")
    content: dict[str, Any] = {"__metadata__": {"digest": _NO_DIGEST.decode(), **metadata}}
    content.update(_places(names, tensors))
    header = json.dumps(content, separators=(",", ":")).encode()
    header += b" " * (-(len(header) + 8) % _ALIGNMENT)
    if len(header) > _LONGEST_HEADER:
        raise InputError(f"Expected names and metadata of at most {_LONGEST_HEADER} bytes but got {len(header)}.")
    return len(header).to_bytes(8, "little") + header


def _places(names: list[str], tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, dict[str, Any]]]:
    end = 0
    for name in names:
        tensor = tensors[name]
        try:
            code = _code_of(tensor.dtype)
        except KeyError:
            raise InputError(f"Expected {name} to be of a type that safetensors has but got {tensor.dtype}.") from None
        start, end = end, end + tensor.numel() * tensor.element_size()
        yield name, {"dtype": code, "shape": list(tensor.shape), "data_offsets": [start, end]}


@cache
def _code_of(dtype: torch.dtype) -> str:
    """What the format calls a type, from the library; KeyError for one it has not.

    >>> _code_of(torch.float32)
    'F32'
    """
    from safetensors.torch import save

    code: str = _header_of(save({"tensor": torch.empty(0, dtype=dtype)}))["tensor"]["dtype"]
    return code


def bytes_of(tensor: Tensor) -> memoryview:
    """The bytes of a tensor, row by row."""
    whole = tensor.detach().cpu().contiguous()
    # a single number out of a column keeps the column's stride, and torch calls it contiguous
    return whole.as_strided((whole.numel(),), (1,)).view(torch.uint8).numpy().data
