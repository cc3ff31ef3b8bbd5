"""Files on disk are whole or absent: they are written next to their place, flushed, then moved into place.

The place in the making of `x` is `.x.tmp`, held by a lock of the system's own, which ends with its process. So the next
writer of `x` takes over a killed one's half file, while a second writer at the same time, who finds the lock taken, and
systems without such locks use a name that is nobody else's.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from stepgrad.errors import DataError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_NO_LINKS = getattr(os, "O_NOFOLLOW", 0)  # a link that others put there is not followed
_BYTES = getattr(os, "O_BINARY", 0)
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class WriteError(DataError):
    """A file could not be written; whatever was there before is untouched."""


def write_whole(path: Path, data: bytes) -> None:
    """Write next to `path`, flush to the disk, then put it in place: a reader sees the old file or the whole new one."""
    with writing_whole(path) as handle:
        handle.write(data)


@contextmanager
def writing_whole(path: Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """A file to write to piece by piece, put in place when the block ends; `write_whole` for what is too large for that.

    Unless `durable`, nothing waits for the disk: after a power cut the file may be there with wrong bytes in it, so the
    reader must be able to tell.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with file_beside(path) as (handle, beside):
            yield handle
            handle.flush()
            if durable:
                os.fsync(handle.fileno())
            handle.close()  # Windows moves no open files
            os.replace(beside, path)
    except OSError as error:
        raise WriteError(explain(path, error)) from error
    if durable:
        _sync_folder(path.parent)


def read_json(path: Path, missing: str, damaged: str) -> Any:
    """What a json file holds; a DataError says what to do if it cannot be read, or is no JSON."""
    try:
        return json.loads(path.expanduser().read_bytes())
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); {missing}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: is not JSON ({error}); {damaged}") from error


def remove_leftovers(folder: Path, pattern: str = "*") -> None:
    """Remove what writers killed halfway left next to files whose names match `pattern`.

    Only for files with a single writer: another one's half-written file would go too.
    """
    for leftover in folder.glob(f".{pattern}.*.tmp"):
        _remove(leftover)


def _sync_folder(folder: Path) -> None:
    """Make the new name last through a power cut, on systems where folders can be flushed."""
    with suppress(OSError):  # the file is in place; Windows, for one, cannot open folders
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _remove(path: Path) -> None:
    with suppress(OSError):  # already in place, or never made
        path.unlink()


def explain(path: Path, error: OSError) -> str:
    """Why a path could not be written to, and how to fix it."""
    reason = error.strerror or type(error).__name__
    if error.errno in _NO_ROOM:
        return f"{path}: the disk is full ({reason}); nothing was overwritten; free some space and run it again"
    return f"{path}: cannot be written ({reason}); nothing was overwritten; choose a folder you can write to"


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
