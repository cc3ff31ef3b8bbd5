"""Damage that knows nothing of the format: to bytes, and to the files of a folder."""

from __future__ import annotations

from random import Random

from tests.fuzz.nasty import NAMES

Files = dict[str, bytes | None]
"""Content by path in the case's folder; None is a folder in the place of a file."""

_INSERTS = (
    *(b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\x80", b"\n", b"\x1b[2J", b"{", b"[", b"<"),
    *(b'"', b"\xed\xa0\x80", b"-", b"9" * 30),
)


def damage_bytes(data: bytes, random: Random) -> bytes:
    """Cut short, flip, insert, repeat, move or take out some bytes."""
    if not data:
        return random.choice(_INSERTS)
    at, to = sorted((random.randrange(len(data) + 1), random.randrange(len(data) + 1)))
    kind = random.randrange(7)
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[at:]
    if kind == 2:
        return _flipped(data, random)
    if kind == 3:
        return data[:at] + random.choice(_INSERTS) + data[at:]
    if kind == 4:
        return data[:to] + data[at:to][:20_000] + data[to:]
    if kind == 5:
        return data[:at] + data[to:]
    return data[:at] + random.randbytes(min(to - at, 16)) + data[at + min(to - at, 16) :]


def _flipped(data: bytes, random: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 8))):
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def damage_folder(files: Files, name: str, random: Random) -> Files:
    """Take a file away, empty it, put a folder or another file in its place, or give it a hostile name."""
    kind = random.randrange(5)
    if kind == 0:
        return {path: data for path, data in files.items() if path != name}
    if kind == 1:
        return {**files, name: b""}
    if kind == 2:
        return {**files, name: None}
    if kind == 3:
        return {**files, name: files[random.choice(sorted(files))]}
    folder, slash, own = name.rpartition("/")
    suffix = own[own.rfind(".") :]
    fits = [
        n
        for n in NAMES
        if n and len(n) < 200 and not set("/\0\\") & set(n) and n not in (".", "..") and n.isprintable()
    ]
    renamed = f"{folder}{slash}{random.choice(fits)}{suffix}"
    return {**{path: data for path, data in files.items() if path != name}, renamed: files[name]}
