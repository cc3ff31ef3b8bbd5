"""Files on disk are whole or absent."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from stepgrad.errors import DataError

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class WriteError(DataError):
    """A file could not be written; whatever was there before is untouched."""


def write_whole(path: Path, data: bytes) -> None:
    """Write beside `path`, flush to the disk, then put it in place: a reader sees the old file or the whole new one."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(beside, "wb") as handle:
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(beside, path)
    except OSError as error:
        raise WriteError(_explain(path, error)) from error
    finally:
        _remove(beside)


def _remove(path: Path) -> None:
    with suppress(OSError):  # already in place, or never made
        path.unlink()


def _explain(path: Path, error: OSError) -> str:
    reason = error.strerror or type(error).__name__
    if error.errno in _NO_ROOM:
        return f"{path}: the disk is full ({reason}); nothing was overwritten; make room and run it again"
    return f"{path}: cannot be written ({reason}); nothing was overwritten; choose a folder you can write to"
