"""One writer for a folder: a lock that the system takes back however its holder ends, and that names the holder.

The lock is the system's own on an open file (flock; on Windows, a locked byte), so a killed process holds nothing. Locks
that consist of a file's existence do not have that property, and libraries fall back to them unasked where a file system
has no locks; here that is a warning. Readers take no lock: every file of a locked folder is whole or absent.
"""

from __future__ import annotations

import errno
import json
import os
import shlex
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from stepgrad.errors import DataError
from stepgrad.files import WriteError, explain

LOCK_NAME = ".lock"
_HELD = {errno.EACCES, errno.EAGAIN, errno.EWOULDBLOCK, errno.EDEADLK}
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}
_TRIES = 100  # to open a file that others remove at the same time
_PAUSE = 0.5  # seconds between two looks at a lock that is held

if sys.platform == "win32":
    import msvcrt

    _FAR = 1 << 30  # a locked byte cannot be read, so it lies behind the holder's name

    def _lock(handle: int) -> None:
        os.lseek(handle, _FAR, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        os.lseek(handle, 0, os.SEEK_SET)
else:
    import fcntl

    def _lock(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


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


@dataclass(frozen=True)
class _Lock:
    """A lock that this process holds."""

    path: Path
    handle: int
    made_folder: bool

    def release(self) -> None:
        """Give the lock back and leave no trace, unless the folder holds something by now."""
        if sys.platform == "win32":  # where open files cannot be removed
            os.close(self.handle)
            _remove(self.path)
        else:  # before the lock is free, so that it is not another's file that goes
            if _is_same(self.path, self.handle):
                _remove(self.path)
            os.close(self.handle)
        if self.made_folder:
            with suppress(OSError):  # not empty
                self.path.parent.rmdir()


@contextmanager
def only_writer(folder: Path, way_out: str, wait: Callable[[str], None] | None = None) -> Iterator[None]:
    """Be the only process that writes to a folder; it is made if it is not there.

    Args:
        way_out: what somebody can do who finds the folder taken; the end of the message.
        wait: None: a folder that is taken raises FolderInUse. A function: wait, having told it for whom.
    """
    lock = _acquire(folder, way_out, wait)
    try:
        yield
    finally:
        lock.release()


def _acquire(folder: Path, way_out: str, wait: Callable[[str], None] | None) -> _Lock:
    told = ""
    while True:
        lock = _try(folder)
        if lock is not None:
            return lock
        who = f"{_read_holder(folder / LOCK_NAME, patience=1.0) or 'another process'}"
        if wait is None:
            raise FolderInUse(f"{folder}: is in use by {who}; {way_out}")
        if who != told:
            wait(f"{folder}: waiting for {who}")
            told = who
        time.sleep(_PAUSE)


def _try(folder: Path) -> _Lock | None:
    """The lock of a folder, with this process's name in it; None if another process has it."""
    path = folder / LOCK_NAME
    try:
        made = _make(folder)
        for _ in range(_TRIES):
            try:
                handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            except FileNotFoundError:  # the last holder has just removed the empty folder
                made = _make(folder) or made
                continue
            if not _locked(handle, folder):
                os.close(handle)
                return None
            if _is_same(path, handle):
                _sign(path, handle)
                return _Lock(path, handle, made)
            os.close(handle)  # of a file that its holder removed when it was done
    except OSError as error:
        raise WriteError(explain(folder, error)) from error
    raise WriteError(f"{path}: cannot be created; choose a folder you can write to")


def _make(folder: Path) -> bool:
    """Whether the folder had to be made."""
    if folder.is_dir():
        return False
    folder.mkdir(parents=True, exist_ok=True)
    return True


def _locked(handle: int, folder: Path) -> bool:
    """Whether this process has the lock now, as far as the file system knows about locks."""
    try:
        _lock(handle)
    except OSError as error:
        if error.errno in _HELD:
            return False
        if error.errno not in _NO_LOCKS:
            os.close(handle)
            raise
        warnings.warn(
            f"{folder}: its file system has no locks ({error.strerror}), so nothing keeps a second process from writing "
            "here; start one at a time",
            stacklevel=5,
        )
    return True


def _is_same(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except OSError:
        return False


def _sign(path: Path, handle: int) -> None:
    """Put this process's name into the lock file; a full disk does not make the lock worse."""
    last, own = _read_holder(path), Holder.here()
    if last is not None and last.host != own.host:
        # a holder that ends in order removes the file, so that one was killed, or locks do not reach across machines
        warnings.warn(
            f"{path.parent}: {last} did not end properly; if it is still running, locks do not work between machines in "
            "this network folder: stop one of the two",
            stacklevel=6,
        )
    with suppress(OSError):
        os.ftruncate(handle, 0)
        os.write(handle, json.dumps(asdict(own)).encode())


def _read_holder(path: Path, patience: float = 0.0) -> Holder | None:
    """Whoever signed a lock file; patience is for a process that has the lock and has not signed yet."""
    end = time.monotonic() + patience
    while True:
        try:
            holder = Holder(**json.loads(path.read_bytes()))
        except (OSError, ValueError, TypeError):
            holder = None
        if time.monotonic() >= end or (holder is not None and not _has_ended(holder)):
            return holder
        time.sleep(0.05)


def _has_ended(holder: Holder) -> bool:
    """Whether a process was killed here before it could remove its name; False where that cannot be told."""
    if sys.platform == "win32" or holder.host != socket.gethostname():
        return False
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError, TypeError):  # of another user, or no process number at all
        pass
    return False


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()
