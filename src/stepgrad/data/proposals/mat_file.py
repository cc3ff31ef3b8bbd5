"""Cells, numbers and text of a MATLAB 5 file (`.mat`, as saved by -v6 and -v7), read with NumPy and zlib.

Nothing here trusts a size or type that the file claims: compiled readers have been seen to crash on a damaged file.

A file is a header of 128 bytes and then elements: type, size, content. A variable is an element of type MATRIX, whose
content is again a row of elements (flags, dimensions, name, values); a cell has one MATRIX for each of its entries.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

HEADER = 128
HDF = 0x0200
"""Version of a file of MATLAB 7.3, which is HDF5 behind the header."""
MATRIX, COMPRESSED = 14, 15
STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
"""NumPy's name of each type of numbers in an element."""
CELL, CHAR, NUMBERS = 1, 4, range(6, 16)
"""Classes of variables."""
ENCODINGS = {1: "utf-8", 2: "utf-8", 4: "utf-16", 16: "utf-8", 17: "utf-16", 18: "utf-32"}
"""Of the text in an element of each type."""
LARGEST = 1 << 31
"""Bytes of one variable, unpacked."""

MatValue = NDArray[np.generic] | str | list["MatValue"] | None
"""Numbers, text, a cell in the order of its columns, or None for what is not read."""


class _Matrix(NamedTuple):
    name: str
    kind: int
    dimensions: tuple[int, ...]
    parts: Iterator[tuple[int, memoryview]]
    """The elements of its values."""


def read_mat(data: bytes) -> dict[str, MatValue]:
    """The variables of a file by name. ValueError if it is damaged, NotImplementedError if it is of MATLAB 7.3."""
    marks = {b"IM": "<", b"MI": ">"}
    if len(data) < HEADER or data[126:128] not in marks:
        raise ValueError("it has no header of MATLAB 5")
    order = marks[data[126:128]]
    if struct.unpack_from(f"{order}H", data, 124)[0] == HDF:
        raise NotImplementedError
    found: dict[str, MatValue] = {}
    for kind, content in _elements(memoryview(data)[HEADER:], order):
        if kind == COMPRESSED:
            kind, content = _next(_elements(_unpacked(content), order))
        if kind == MATRIX and len(content):
            matrix = _matrix(content, order)
            found[matrix.name] = _value(matrix, order)
    return found


def _unpacked(content: memoryview) -> memoryview:
    try:
        unpacked = zlib.decompressobj().decompress(content, LARGEST)
    except zlib.error as error:
        raise ValueError(f"a variable cannot be unpacked: {error}") from None
    return memoryview(unpacked)


def _elements(data: memoryview, order: str) -> Iterator[tuple[int, memoryview]]:
    """Type and content of each element in a row."""
    at = 0
    while at < len(data):
        if len(data) - at < 8:
            raise ValueError("it ends in the middle of an element")
        kind, size = struct.unpack_from(f"{order}II", data, at)
        start = at + 8
        if kind >> 16:  # up to four bytes are kept where the size stands otherwise
            kind, size, start = kind & 0xFFFF, kind >> 16, at + 4
        end = start + size
        if end > len(data) or (start == at + 4 and size > 4):
            raise ValueError("an element is longer than what holds it")
        yield kind, data[start:end]
        at = end if kind == COMPRESSED else at + 8 * -(-(end - at) // 8)  # padded to eight bytes


def _next(elements: Iterator[tuple[int, memoryview]]) -> tuple[int, memoryview]:
    element = next(elements, None)
    if element is None:
        raise ValueError("a variable lacks an element")
    return element


def _matrix(content: memoryview, order: str) -> _Matrix:
    parts = _elements(content, order)
    flags = _numbers(*_next(parts), order)
    dimensions = tuple(_numbers(*_next(parts), order).astype(np.int64).tolist())
    _, name = _next(parts)
    if len(flags) != 2 or any(side < 0 for side in dimensions):
        raise ValueError("a variable has a damaged description")
    return _Matrix(bytes(name).decode("utf-8", "replace"), int(flags[0]) & 0xFF, dimensions, parts)


def _value(matrix: _Matrix, order: str, inside: bool = False) -> MatValue:
    """What a variable holds. Cells within cells, structures and the like are not read."""
    if matrix.kind == CELL and not inside:
        entries = [
            _value(_matrix(content, order), order, True) if len(content) else None for _, content in matrix.parts
        ]
        if len(entries) != math.prod(matrix.dimensions):
            raise ValueError("a cell has another number of entries than it says")
        return entries
    if matrix.kind == CHAR:
        kind, content = next(matrix.parts, (2, memoryview(b"")))  # empty text may have no element
        encoding = ENCODINGS.get(kind, "utf-8")
        ending = {"<": "-le", ">": "-be"}[order] if encoding != "utf-8" else ""
        return bytes(content).decode(encoding + ending, "replace")
    if matrix.kind in NUMBERS:
        values = _numbers(*_next(matrix.parts), order)
        if len(values) != math.prod(matrix.dimensions):
            raise ValueError("an array has another number of values than it says")
        return values.reshape(matrix.dimensions, order="F")
    return None


def _numbers(kind: int, content: memoryview, order: str) -> NDArray[np.generic]:
    if kind not in STORED:
        raise ValueError(f"numbers have the unknown type {kind}")
    return np.frombuffer(content, np.dtype(STORED[kind]).newbyteorder("<" if order == "<" else ">"))
