"""Places for files in the making, beside where they are to stand; what a killed process left there is used again.

The place of `x` is `.x.tmp`, held by a lock of the system's own, which ends with its process. So the next writer of `x`
takes over a killed one's half file, while a second writer at the same time, who finds the lock taken, and systems without
such locks use a name that is nobody else's.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_NO_LINKS = getattr(os, "O_NOFOLLOW", 0)  # a link that others put there is not followed
_BYTES = getattr(os, "O_BINARY", 0)


@contextmanager
def file_beside(path: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """An empty file to be moved to `path`, and its name; it is removed if it was not moved."""
    beside = path.with_name(f".{path.name}.tmp")
    lock = _hold(beside, os.O_RDWR | os.O_CREAT | _BYTES | _NO_LINKS)
    if lock is None:
        beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
        handle = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_EXCL | _BYTES, 0o666)
    else:
        handle = os.dup(lock)  # closing it leaves the lock, until the file is in place
    own = _id(handle)
    try:
        with os.fdopen(handle, "wb") as file:
            file.truncate(0)
            yield file, beside
    finally:
        with suppress(OSError):  # moved; another process may have begun a new one
            if _id(beside) == own:
                beside.unlink()
        if lock is not None:
            os.close(lock)


@contextmanager
def folder_beside(folder: Path) -> Iterator[Path]:
    """A folder within `folder` to make files in; it is removed with all that is left in it."""
    folder.mkdir(parents=True, exist_ok=True)
    beside = folder / ".writing"
    with suppress(FileExistsError):
        beside.mkdir()
    lock = _hold(beside, os.O_RDONLY | _NO_LINKS)
    if lock is None:
        beside = folder / f".writing-{secrets.token_hex(8)}"
        beside.mkdir()
    try:
        yield beside
    finally:
        shutil.rmtree(beside, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _hold(path: Path, flags: int) -> int | None:
    """An open and locked file or folder of that name; None if another process has it or there are no locks."""
    if fcntl is None:
        return None
    try:
        handle = os.open(path, flags, 0o666)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _id(path) == _id(handle):  # else its last holder has just moved or removed it
            return handle
    except OSError:
        pass
    os.close(handle)
    return None


def _id(place: Path | int) -> tuple[int, int]:
    status = os.fstat(place) if isinstance(place, int) else os.lstat(place)
    return status.st_dev, status.st_ino
