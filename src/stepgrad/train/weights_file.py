"""Tensors on disk as safetensors, with a digest of every byte: a file is whole and undamaged, or it is refused.

Layout: the length of the header, the header (JSON: metadata, then dtype, shape and place of each tensor), the bytes of
the tensors. The digest is the sha256 of the whole file, taken with zeros in the place of the digest itself; it is the
first of the metadata and therefore always at the same place. Any safetensors reader can read the file.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stepgrad.errors import DataError, InputError
from stepgrad.files import literal, remove_leftovers, writing_whole

_OPENING = b'{"__metadata__":{"digest":"'
_DIGEST_AT = 8 + len(_OPENING)
_NO_DIGEST = b"0" * 64
_ALIGNMENT = 64  # tensors start where torch would put them itself
_LONGEST_HEADER = 100_000_000  # of the safetensors format
_CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_DTYPES = {code: dtype for dtype, code in _CODES.items()}


def save_weights(path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors and texts to a safetensors file, whole or not at all; a WriteError leaves what was there before."""
    remove_leftovers(Path(path).parent, literal(Path(path).name))
    write_tensors(Path(path), tensors, metadata or {})


def load_weights(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and texts of a file of `save_weights`, or a DataError that says what is wrong with it.

    The tensors are views of one block of memory; clone those that should outlive the others.
    """
    try:
        return read_tensors(Path(path))
    except DataError as error:
        raise DataError(f"{error}; restore it from a copy, or make it again") from error


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """As `load_weights`, for callers that know a better way out."""
    content = _read(path)
    trouble = _trouble(content)
    if trouble:
        raise DataError(f"{path}: {trouble}")
    try:
        return _parse(content)
    except Exception as error:  # the digest is right, so somebody wrote it so; what is wrong may be anything
        raise DataError(f"{path}: was not written by stepgrad: its header makes no sense ({error!r})") from error


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
        handle.seek(_DIGEST_AT)
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
        if tensor.dtype not in _CODES:
            raise InputError(f"Expected {name} to be one of {sorted(_DTYPES)} but got {tensor.dtype}.")
        start, end = end, end + tensor.numel() * tensor.element_size()
        yield name, {"dtype": _CODES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}


def bytes_of(tensor: Tensor) -> memoryview:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _read(path: Path) -> Tensor:
    """The bytes of a file, in memory that torch aligned."""
    try:
        with open(path, "rb") as handle:
            content = torch.empty(os.fstat(handle.fileno()).st_size, dtype=torch.uint8)
            count = handle.readinto(content.numpy().data)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or type(error).__name__})") from error
    return content[:count]


def _trouble(content: Tensor) -> str | None:
    """What is wrong with the bytes of a file, or None."""
    data = content.numpy().data
    end = _DIGEST_AT + len(_NO_DIGEST)
    if len(data) < end:
        return f"is cut short, or not a file of stepgrad: it has {len(data)} bytes"
    if data[8:_DIGEST_AT] != _OPENING:
        return "is not a file of stepgrad, or its beginning is damaged"
    digest = hashlib.sha256(data[:_DIGEST_AT])
    digest.update(_NO_DIGEST)
    digest.update(data[end:])
    if digest.hexdigest().encode() == data[_DIGEST_AT:end]:
        return None
    expected = _expected_size(content)
    if expected is not None and expected > len(data):
        return f"is cut short: {len(data)} bytes of {expected}"
    return "is damaged: its content does not match its digest"


def _expected_size(content: Tensor) -> int | None:
    """How long the header says the file is; None if the header cannot be read."""
    start = _data_start(content)
    if start > len(content):
        return start if start <= 8 + _LONGEST_HEADER else None
    try:
        header = json.loads(content[8:start].numpy().tobytes())
        del header["__metadata__"]
        return max((start + int(place["data_offsets"][1]) for place in header.values()), default=start)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError):
        return None


def _data_start(content: Tensor) -> int:
    return 8 + int.from_bytes(content[:8].numpy().tobytes(), "little")


def _parse(content: Tensor) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of bytes that have been checked."""
    start = _data_start(content)
    header = json.loads(content[8:start].numpy().tobytes())
    metadata = header.pop("__metadata__")
    del metadata["digest"]
    if not all(isinstance(text, str) for text in metadata.values()):
        raise ValueError("metadata other than text")
    data = content[start:]
    return {name: _tensor(data, place) for name, place in header.items()}, metadata


def _tensor(data: Tensor, place: Mapping[str, Any]) -> Tensor:
    start, end = place["data_offsets"]
    return data[start:end].view(_DTYPES[place["dtype"]]).view(place["shape"])
