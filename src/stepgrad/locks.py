"""One writer for a folder: a lock that the system takes back however its holder ends, and a file that names the holder.

filelock locks the open file `.lock` in the folder, so a killed process holds nothing. Where a file system has no such locks,
filelock would take the file's existence for one, which a killed process leaves behind; here that is a warning instead. The
name of the holder is in a file of its own, since Windows lets nobody read a locked one. Readers take no lock: every file of
a locked folder is whole or absent.
"""

from __future__ import annotations

import errno
import json
import os
import shlex
import socket
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from stepgrad.errors import DataError
from stepgrad.extras import need
from stepgrad.files import WriteError, explain

if TYPE_CHECKING:
    from filelock import BaseFileLock

LOCK_NAME, HOLDER_NAME = ".lock", ".lock.json"
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}
_PATIENCE = 1.0  # seconds; a process that has just taken the lock has put its name beside it by then


class FolderInUse(DataError):
    """Another process writes to the folder; the message says which."""


@dataclass(frozen=True)
class Holder:
    """The process that holds a lock."""

    pid: int
    host: str
    since: str
    command: str

    @classmethod
    def here(cls) -> Holder:
        program, *words = sys.orig_argv or ["python"]
        now = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        return cls(os.getpid(), socket.gethostname(), now, shlex.join([Path(program).name, *words]))

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since} (`{self.command}`)"


@contextmanager
def only_writer(folder: Path, way_out: str, wait: Callable[[str], None] | None = None) -> Iterator[None]:
    """Be the only process that writes to a folder; it is made if it is not there, and removed if it is empty at the end.

    Args:
        way_out: what somebody can do who finds the folder taken; the end of the message.
        wait: None: a folder that is taken raises FolderInUse. A function: wait, having told it for whom.
    """
    need("filelock", purpose="writing to a folder that no other process writes to")
    from filelock import FileLock

    lock = FileLock(folder / LOCK_NAME, poll_interval=0.05, thread_local=False, fallback_to_soft=False)
    is_new = not folder.is_dir()
    told = ""
    while not _take(lock, folder):
        who = str(_read_holder(folder) or "another process")
        if wait is None:
            raise FolderInUse(f"{folder}: is in use by {who}; {way_out}")
        if who != told:
            wait(f"{folder}: waiting for {who}")
            told = who
    try:
        _sign(folder)
        yield
    finally:
        _leave(lock, folder, is_new)


def _take(lock: BaseFileLock, folder: Path, tries: int = 100) -> bool:
    """Whether this process has the lock now, as far as the file system knows about locks."""
    from filelock import Timeout

    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=_PATIENCE)
    except Timeout:
        return False
    except OSError as error:
        if tries and isinstance(error, (FileExistsError, FileNotFoundError)):  # its last holder just removed the folder
            return _take(lock, folder, tries - 1)
        if error.errno not in _NO_LOCKS:
            raise WriteError(explain(folder, error)) from error
        warnings.warn(
            f"{folder}: its file system has no locks ({error.strerror}), so nothing keeps a second process from writing "
            "here; start one at a time",
            stacklevel=4,
        )
    return True


def _sign(folder: Path) -> None:
    """Put this process's name beside the lock; a full disk does not make the lock worse."""
    last, own = _read_holder(folder), Holder.here()
    if last is not None and last.host != own.host:
        # a holder that ends in order removes its name, so that one was killed, or locks do not reach across machines
        warnings.warn(
            f"{folder}: {last} did not end properly; if it is still running, locks do not work between machines in "
            "this network folder: stop one of the two",
            stacklevel=4,
        )
    with suppress(OSError):
        (folder / HOLDER_NAME).write_bytes(json.dumps(asdict(own)).encode())


def _read_holder(folder: Path) -> Holder | None:
    try:
        return Holder(**json.loads((folder / HOLDER_NAME).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def _leave(lock: BaseFileLock, folder: Path, is_new: bool) -> None:
    """Give the lock back and leave no trace, unless a new folder holds something by now."""
    for name in (HOLDER_NAME, LOCK_NAME):  # before the lock is free: afterwards these may be another process's
        with suppress(OSError):  # Windows removes no open files; there filelock does, once the lock is free
            (folder / name).unlink()
    lock.release()
    if is_new:
        with suppress(OSError):  # not empty
            folder.rmdir()
