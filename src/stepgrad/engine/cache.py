"""Compiled kernels kept on disk: only where nobody else can write, and never a reason for a call to fail.

numba's cache holds pickles and machine code, so whoever can write to it runs code as us. A folder is used only if
- it is a folder, not a symbolic link, owned by us, and neither group nor others may write to it; likewise all it holds;
- each folder above it belongs to the current user or to root (whoever owns `/`), and others may not write to it either, unless it
  has the sticky bit, as /tmp has: there only its owner can rename or replace what stands in it.
So NUMBA_CACHE_DIR=/shared is used if /shared is 0755 or 1777, not if it is 0777 or 2775: anyone in the group could put a
folder of their own in the place of ours after we looked. Symbolic links on the way to the folder given are followed once,
and the rules hold for where they lead. What we make is 0700, whatever the umask. Windows has no such bits; there the
folders of a user's profile, which are closed to others, are taken as they are.

Where no folder is fit, and where reading or writing one fails, kernels are compiled in memory, and one warning says why.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import os
import pickle
import platform
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import numba
from numba.core import compiler
from numba.core.caching import NullCache
from numba.core.runtime import rtsys
from numba.core.serialize import dumps

from stepgrad.engine.accelerator import Whole, libraries_are, switch

logger = logging.getLogger("stepgrad")
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
_VERSIONS = numba.__version__, llvmlite.__version__, platform.python_version()
_told: set[str] = set()


def _warn_once(kind: str, message: str) -> None:
    if kind not in _told:
        _told.add(kind)
        logger.warning(message)


def _refuse(place: Path | str, why: str) -> None:
    raise PermissionError(f"{place} {why}")


def _check_owned(place: Path | str, status: os.stat_result) -> None:
    if status.st_uid != os.getuid():
        _refuse(place, f"belongs to user {status.st_uid}, not to the current user ({os.getuid()})")


def _check_closed(place: Path | str, status: os.stat_result) -> None:
    if status.st_mode & _OTHERS_MAY_WRITE:
        _refuse(place, f"can be written to by other users (mode {stat.S_IMODE(status.st_mode):o})")


def _check_above(place: Path) -> None:
    status = os.lstat(place)
    trusted = (0, os.getuid(), os.lstat(place.anchor).st_uid)  # in a container, the owner of `/` may be another number
    if not stat.S_ISDIR(status.st_mode) or status.st_uid not in trusted:
        _refuse(place, "is not a folder of ours or of the system's")
    # Where the sticky bit is set, others may add entries but not replace ours.
    if not status.st_mode & stat.S_ISVTX:
        _check_closed(place, status)


def _check_content(folder: Path) -> None:
    """Files of ours, and closed, unless the folder as a whole is (a umask of 002 leaves its files open to the group)."""
    if not os.access(folder, os.W_OK | os.X_OK):
        _refuse(folder, "cannot be written to")
    if not hasattr(os, "getuid"):
        return
    # Nobody can open a file in a folder that he may not enter, whatever the file allows.
    reachable = os.lstat(folder).st_mode & (stat.S_IXGRP | stat.S_IXOTH)
    for above, folders, files in os.walk(folder):
        for place in (os.path.join(above, name) for name in (*folders, *files)):
            with suppress(FileNotFoundError):  # another process of ours renamed it
                status = os.lstat(place)
                _check_owned(place, status)
                if stat.S_ISLNK(status.st_mode):
                    _refuse(place, "is a symbolic link")
                if reachable:
                    _check_closed(place, status)


def make_private(folder: Path) -> None:
    """Make the folder, if missing, readable by us alone; raise OSError if anyone else could change what it holds."""
    for place in reversed([place for place in (folder, *folder.parents) if not os.path.lexists(place)]):
        with suppress(FileExistsError):  # another process was faster; whose it is, is asked below
            os.mkdir(place, 0o700)
    if not hasattr(os, "getuid"):
        return
    # From the root down: a folder that others may write to makes all below it theirs.
    for place in reversed(folder.parents):
        _check_above(place)
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode):
        _refuse(folder, "is a symbolic link or a file, not a folder")
    _check_owned(folder, status)
    _check_closed(folder, status)


def _homes() -> Iterator[tuple[str, str, str]]:
    """(what names it, folder, name of ours in it) of the places to try, best first."""
    if numba.config.CACHE_DIR:
        yield "NUMBA_CACHE_DIR", numba.config.CACHE_DIR, "stepgrad"
    if os.environ.get("XDG_CACHE_HOME"):
        yield "XDG_CACHE_HOME", os.environ["XDG_CACHE_HOME"], "stepgrad"
    with suppress(RuntimeError):  # neither HOME nor an entry in the list of users
        yield "", str(Path.home() / ".cache"), "stepgrad"
    with suppress(OSError):  # no temporary folder that can be written to
        yield "", tempfile.gettempdir(), f"stepgrad-{os.getuid() if hasattr(os, 'getuid') else 'user'}"


@cache
def sources_hash(folder: Path) -> str:
    """Changes with any Python file that stands in the folder."""
    digest = hashlib.sha256()
    # The engine's kernels also hold the codes of metrics, which are numbers in the code of another folder.
    codes = [folder.parent / "metric/list_metric.py"] if folder == Path(__file__).parent else []
    for source in [*sorted(folder.glob("*.py")), *codes]:
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _fit_folder(home: str, ours: str) -> tuple[Path | None, str]:
    """The folder, or None and why not."""
    try:
        # Links are followed here, once; what is checked and what is used are then the same path.
        folder = Path(os.path.realpath(home), ours, f"kernels-{sources_hash(Path(__file__).parent)}")
        make_private(folder)
        _check_content(folder)
    except OSError as error:
        return None, str(error)
    return folder, ""


@cache
def find_folder() -> tuple[Path | None, str]:
    """Where compiled kernels are kept, None if no place is fit; and what is wrong, to be told if a kernel is called.

    There is one folder per version of the engine's sources: a kernel's code depends on all kernels it calls, and a folder named
    after all of them cannot go stale. A kernel outside the engine may also call those beside it: the folder of its package, in
    there, is named after the files beside it. NUMBA_CACHE_DIR, if set, or XDG_CACHE_HOME or ~/.cache holds it all; where none
    is fit, the temporary folder does.
    """
    reasons: list[str] = []
    complaints: list[str] = []
    for named_by, home, ours in _homes():
        folder, why_not = _fit_folder(home, ours)
        if folder is not None:
            return folder, "; ".join(complaints)
        reasons.append(why_not)
        if named_by:
            complaints.append(f"{named_by}={home} is not used for stepgrad's compiled kernels: {why_not}")
    return None, _in_memory("; ".join(reasons) or "no folder was found")


def _in_memory(why: str) -> str:
    return (
        f"stepgrad compiles its kernels in memory, for this process only, as they cannot be kept: {why}. "
        "Set NUMBA_CACHE_DIR to a folder of your own, closed to others and with room, to compile them once."
    )


class _Nowhere(NullCache):
    """Keeps nothing, and says why."""

    def __init__(self, why: str) -> None:
        self.why = why

    def load_overload(self, sig: Any, target_context: Any) -> None:
        _warn_once("folder", self.why)


class KernelCache(NullCache):
    """The compiled code of one kernel on disk: a file for each signature, named after it.

    A file holds a checksum, which tells torn files, and its key, which tells files under a wrong name. Each is written beside
    its place and put there whole, so that processes that compile at once do not hurt each other.
    """

    def __init__(self, folder: Path, function: Callable[..., Any]) -> None:
        self._folder = folder
        self._name = f"{function.__module__}.{function.__qualname__}"

    @property
    def cache_path(self) -> str:
        return str(self._folder)

    def _key(self, sig: Any, target_context: Any) -> tuple[Any, ...]:
        """What the code depends on besides the sources: types, make of CPU, versions, and whether it was accelerated."""
        return self._name, str(sig), target_context.codegen().magic_tuple(), _VERSIONS, switch.is_on

    def _path(self, key: tuple[Any, ...]) -> Path:
        return self._folder / f"{self._name[-80:]}-{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.nbc"

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled kernel; None if it is not there or damaged."""
        if find_folder()[1]:
            _warn_once("folder", find_folder()[1])
        try:
            with suppress(FileNotFoundError):
                return self._load(self._key(sig, target_context), target_context)
        except Exception as error:  # damaged pickles raise anything
            _warn_once(
                "damaged", f"Compiled kernels in {self.cache_path} are damaged and are compiled again: {error!r}"
            )
        return None  # a new one is put in its place

    def _load(self, key: tuple[Any, ...], target_context: Any) -> Any:
        content = self._path(key).read_bytes()
        # A pickle is never read before its checksum is right.
        if hashlib.sha256(content[32:]).digest() != content[:32]:
            raise ValueError("a checksum is wrong")
        # A file under a wrong name is whole, but belongs to another kernel or another machine.
        saved_key, reduced = pickle.loads(content[32:])
        if saved_key != key:
            return None
        rtsys.initialize(target_context)  # the only part of numba that finished code needs
        with libraries_are(Whole, target_context.codegen()) if switch.is_on else nullcontext():
            return compiler.CompileResult._rebuild(target_context, *reduced)

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep a compiled kernel; where that fails, a warning says why."""
        try:
            # The folder may have been removed since it was found, by a clean-up say.
            make_private(self._folder)
            key = self._key(sig, data.target_context)
            pickled = dumps((key, data._reduce()))
            # Written beside its place and then moved there: a reader sees all of it or nothing.
            handle, beside = tempfile.mkstemp(dir=self._folder)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(hashlib.sha256(pickled).digest() + pickled)
                os.replace(beside, self._path(key))
            except BaseException:
                os.unlink(beside)
                raise
        except Exception as error:
            _warn_once("folder", _in_memory(f"{self.cache_path}: {error}"))


def cache_of(function: Callable[..., Any]) -> KernelCache | _Nowhere:
    """The place of a compiled function in the cache, if there is one."""
    folder, complaint = find_folder()
    if folder is None:
        return _Nowhere(complaint)
    # Kernels of losses and steps have files of their own, which may change while the engine's stay.
    beside = Path(inspect.getfile(function)).resolve().parent
    own = folder / f"{beside.name}_{sources_hash(beside)}"
    try:
        make_private(own)
    except OSError as error:
        return _Nowhere(_in_memory(str(error)))
    return KernelCache(own, function)
