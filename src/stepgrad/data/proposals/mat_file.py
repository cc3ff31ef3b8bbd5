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
ENCODINGS = {4: "utf-16", 17: "utf-16", 18: "utf-32"}
"""Of the text in an element of each type; of all others UTF-8."""
LARGEST = 1 << 31
"""Bytes of one variable, unpacked."""

MatValue = NDArray[np.generic] | str | list["MatValue"] | None
"""Numbers, text, a cell in the order of its columns, or None for what is not read."""
Elements = Iterator[tuple[int, memoryview]]
"""Type and content of each element in a row."""


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
            name, value = _variable(content, order)
            found[name] = value
    return found


def _unpacked(content: memoryview) -> memoryview:
    try:
        unpacked = zlib.decompressobj().decompress(content, LARGEST)
    except zlib.error as error:
        raise ValueError(f"a variable cannot be unpacked: {error}") from None
    return memoryview(unpacked)


def _elements(data: memoryview, order: str) -> Elements:
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


def _next(elements: Elements) -> tuple[int, memoryview]:
    element = next(elements, None)
    if element is None:
        raise ValueError("a variable lacks an element")
    return element


def _variable(content: memoryview, order: str, inside: bool = False) -> tuple[str, MatValue]:
    """Name and value of a variable. Cells inside of cells, structures and the like are not read."""
    parts = _elements(content, order)
    flags = _numbers(*_next(parts), order)
    shape = tuple(_numbers(*_next(parts), order).astype(np.int64).tolist())
    name = bytes(_next(parts)[1]).decode("utf-8", "replace")
    if len(flags) != 2 or any(side < 0 for side in shape):
        raise ValueError("a variable has a damaged description")
    kind = int(flags[0]) & 0xFF
    if kind == CELL and not inside:
        entries = [_variable(entry, order, True)[1] if len(entry) else None for _, entry in parts]
        if len(entries) != math.prod(shape):
            raise ValueError("a cell has another number of entries than it says")
        return name, entries
    if kind == CHAR:
        return name, _text(*next(parts, (2, memoryview(b""))), order)  # empty text may have no element
    if kind in NUMBERS:
        values = _numbers(*_next(parts), order)
        if len(values) != math.prod(shape):
            raise ValueError("an array has another number of values than it says")
        return name, values.reshape(shape, order="F")
    return name, None


def _text(kind: int, content: memoryview, order: str) -> str:
    encoding = ENCODINGS.get(kind)
    ending = "-le" if order == "<" else "-be"
    return bytes(content).decode(f"{encoding}{ending}" if encoding else "utf-8", "replace")


def _numbers(kind: int, content: memoryview, order: str) -> NDArray[np.generic]:
    if kind not in STORED:
        raise ValueError(f"numbers have the unknown type {kind}")
    return np.frombuffer(content, np.dtype(STORED[kind]).newbyteorder("<" if order == "<" else ">"))
