"""Files on disk are whole or absent."""

from __future__ import annotations

import errno
import glob
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from stepgrad.beside import file_beside
from stepgrad.errors import DataError

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class WriteError(DataError):
    """A file could not be written; whatever was there before is untouched."""


def write_whole(path: Path, data: bytes) -> None:
    """Write beside `path`, flush to the disk, then put it in place: a reader sees the old file or the whole new one."""
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


def remove_leftovers(folder: Path, pattern: str = "*") -> None:
    """Remove what writers killed halfway left beside files whose names match `pattern`.

    Only for files with a single writer: another one's half-written file would go too.
    """
    for leftover in folder.glob(f".{pattern}.*.tmp"):
        _remove(leftover)


def literal(name: str) -> str:
    """A pattern that matches exactly this name.

    >>> literal("run[1].json")
    'run[[]1].json'
    """
    return glob.escape(name)


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
    """Why a path could not be written to, and the way out."""
    reason = error.strerror or type(error).__name__
    if error.errno in _NO_ROOM:
        return f"{path}: the disk is full ({reason}); nothing was overwritten; make room and run it again"
    return f"{path}: cannot be written ({reason}); nothing was overwritten; choose a folder you can write to"
