"""Damage to pictures that keeps their checksums right, so that it reaches the decoder."""

from __future__ import annotations

import struct
import zlib
from random import Random

from tests.fuzz.damage_bytes import damage_bytes

_SIDES = (0, 1, 5, 65_535, 100_000, 2**31 - 1, 2**32 - 1)


def damage_png(data: bytes, random: Random) -> bytes:
    """Another size, depth or kind of colour, or damage to one chunk, with the checksum of what is there."""
    chunks = _chunks(data)
    if not chunks or random.random() < 0.2:
        return damage_bytes(data, random)
    at = random.choice([0, 0, random.randrange(len(chunks))])
    kind, content = chunks[at]
    if at == 0 and len(content) == 13:
        header = list(struct.unpack(">IIBBBBB", content))
        header[random.randrange(2)] = random.choice(_SIDES)
        header[random.randrange(2, 7)] = random.choice((0, 1, 2, 3, 4, 6, 8, 16, 255))
        content = struct.pack(">IIBBBBB", *header)
    elif random.random() < 0.3:
        kind = random.choice((b"tEXt", b"iTXt", b"zTXt", b"eXIf", b"acTL", b"fcTL", b"tRNS", b"PLTE", b"iCCP", b"IEND"))
    else:
        content = damage_bytes(content, random)
    chunks[at] = (kind, content)
    return data[:8] + b"".join(_packed(kind, content) for kind, content in chunks)


def _chunks(data: bytes) -> list[tuple[bytes, bytes]]:
    chunks, at = [], 8
    while at + 12 <= len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        chunks.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + length]))
        at += 12 + length
    return chunks


def _packed(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
