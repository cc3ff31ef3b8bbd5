"""Compiled kernels are kept only where nobody else can put theirs."""

from __future__ import annotations

import hashlib
import importlib
import logging
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numba
import pytest

from stepgrad.engine import cache as _cache
from tests.engine.fresh_kernel import FreshKernel, cache_in, forget, forget_what_was_found

pytestmark = pytest.mark.skipif(not hasattr(os, "getuid"), reason="this system has no owners and modes of files")
as_root = pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="needs root, to be another user")


def closed_to_others() -> list[str]:
    """Folders on the way to the packages and the tests that another user may not enter."""
    wanted = [Path(_cache.__file__), Path(numba.__file__), Path(__file__)]
    above = {folder for path in wanted for folder in (path, *path.resolve().parents) if folder.is_dir()}
    return sorted(str(folder) for folder in above if not folder.stat().st_mode & 0o001)


readable = pytest.mark.skipif(bool(closed_to_others()), reason=f"other users may not enter {closed_to_others()}")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[Path]:
    """Named by NUMBA_CACHE_DIR; the temporary folder is beside it."""
    caplog.set_level(logging.WARNING, "stepgrad")
    for name in ("cache", "temporary"):
        (tmp_path / name).mkdir(mode=0o700)
    cache_in(monkeypatch, tmp_path / "cache", tmp_path / "temporary")
    yield tmp_path / "cache"
    forget(monkeypatch)


class Planted:
    """Unpickled, it leaves a trace."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.trace),)


def plant(place: Path, trace: Path) -> None:
    """Fill the cache, then put code of another in the place of each file."""
    assert FreshKernel()(21) == 42
    files = list(place.rglob("*.nbc"))
    assert files
    for file in files:
        planted = pickle.dumps(Planted(trace))
        file.write_bytes(hashlib.sha256(planted).digest() + planted)


def in_use(place: Path) -> bool:
    kernel = FreshKernel()
    assert kernel(21) == 42
    return kernel.folder is not None and place in kernel.folder.parents


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o1777, 0o1775])
def test_a_folder_in_which_only_we_can_replace_ours_is_used(place: Path, mode: int) -> None:
    place.chmod(mode)
    assert in_use(place)


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o2775, 0o757])
def test_a_folder_in_which_others_can_replace_ours_is_refused_with_one_warning(
    place: Path, caplog: pytest.LogCaptureFixture, mode: int
) -> None:
    place.chmod(mode)
    assert not in_use(place)
    (record,) = caplog.records
    assert f"NUMBA_CACHE_DIR={place} is not used" in record.message
    assert f"can be written to by other users (mode {mode:o})" in record.message
    assert in_use(place.parent / "temporary")


@pytest.mark.parametrize("level", [0, 1, 2])  # the folder of the files, of this version, of stepgrad
@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_planted_files_in_a_folder_others_could_write_to_are_never_read(
    place: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, level: int
) -> None:
    plant(place, tmp_path / "trace")
    folder = FreshKernel().folder
    assert folder is not None
    opened = (folder, *folder.parents)[level]
    opened.chmod(mode)
    assert not in_use(place)
    (record,) = caplog.records
    assert f"{opened} can be written to by other users" in record.message
    assert not (tmp_path / "trace").exists()


def test_planted_files_would_be_read_in_a_closed_folder(place: Path, tmp_path: Path) -> None:
    plant(place, tmp_path / "trace")
    assert in_use(place)
    assert (tmp_path / "trace").exists()


def test_files_others_could_write_to_are_refused_where_others_can_reach_them(place: Path, tmp_path: Path) -> None:
    plant(place, tmp_path / "trace")
    for path in place.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o666)
    assert not in_use(place)
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_symbolic_link_in_the_place_of_our_folder_is_refused(place: Path, tmp_path: Path, level: int) -> None:
    plant(place, tmp_path / "trace")
    folder = FreshKernel().folder
    assert folder is not None
    replaced = (folder, *folder.parents)[level]
    replaced.rename(tmp_path / "moved")
    replaced.symlink_to(tmp_path / "moved")
    assert not in_use(place)
    assert not (tmp_path / "trace").exists()


def test_a_home_reached_through_a_symbolic_link_is_used(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = place.parent / "link"
    link.symlink_to(place)
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(link))
    assert in_use(place)


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077])
def test_whatever_the_umask_our_folders_are_closed_and_used_again(place: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        assert in_use(place)
        assert all(path.stat().st_mode & 0o777 == 0o700 for path in place.rglob("*") if path.is_dir())
        kernel = FreshKernel()
        assert (kernel(21), kernel.loaded) == (42, 1)
    finally:
        os.umask(before)


def test_folders_of_another_user_are_refused_and_kernels_compiled_in_memory(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plant(place, tmp_path / "trace")
    us = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: us + 1)
    kernel = FreshKernel()
    assert (kernel(21), kernel(2.5), kernel.folder) == (42, 5.0, None)
    (record,) = caplog.records
    assert "in memory" in record.message
    assert not (tmp_path / "trace").exists()


def test_with_no_place_at_all_kernels_are_compiled_in_memory(
    place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_temporary_folder() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.setattr(_cache.tempfile, "gettempdir", no_temporary_folder)
    kernel = FreshKernel()
    assert caplog.records == []  # nothing was compiled yet
    assert (kernel(21), kernel(2.5), kernel.folder) == (42, 5.0, None)
    (record,) = caplog.records
    assert "no folder was found" in record.message


BESIDE = """
from stepgrad.engine.jit import kernel
@kernel
def amount():
    return {}
"""
CALLING = """
from beside import amount
from stepgrad.engine.jit import kernel
@kernel
def total(x):
    return x + amount()
"""


def test_a_kernel_outside_the_package_follows_a_change_in_a_file_beside_it(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "calling.py").write_text(CALLING)
    monkeypatch.syspath_prepend(modules)
    outcomes = []
    for amount in ("1", "1", "20"):  # of another length: Python's own cache looks at a file's size and second
        (modules / "beside.py").write_text(BESIDE.format(amount))
        forget_what_was_found()
        for name in ("calling", "beside"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        total = importlib.import_module("calling").total
        outcomes.append((total(100), sum(total.stats.cache_hits.values())))
    assert outcomes == [(101, 0), (101, 1), (120, 0)]
    assert place in Path(total.stats.cache_path).parents


AS_ANOTHER = """
import numba, os, sys
from tests.engine.fresh_kernel import FreshKernel
FreshKernel()(1)                       # what python and numba import on the way, another user may not be able to read
numba.njit(lambda: 1)()                # nor what the compiler does, if that kernel was on the disk
os.setgroups([]); os.setgid(54321); os.setuid(54321)
kernel = FreshKernel()
print(kernel(21), kernel(2.5), kernel.folder)
kernel = FreshKernel()
print(kernel(21), kernel.loaded)
"""


@as_root
@readable
@pytest.mark.parametrize("planted", [False, True])
@pytest.mark.parametrize("setting", [None, "NUMBA_CACHE_DIR"])
def test_a_user_without_home_and_entry_has_right_numbers(setting: str | None, planted: bool) -> None:
    """Kept in the temporary folder, or, where another user made that first, in memory."""
    with tempfile.TemporaryDirectory(dir="/tmp") as temporary:
        os.chmod(temporary, 0o1777)
        if planted:
            Path(temporary, "stepgrad-54321").mkdir(mode=0o777)
        environment = {name: value for name, value in os.environ.items() if name not in ("HOME", "XDG_CACHE_HOME")}
        environment |= {"TMPDIR": temporary, "PYTHONPATH": os.pathsep.join(sys.path)}
        if setting:
            Path(temporary, "closed").mkdir(mode=0o700)
            environment[setting] = f"{temporary}/closed"
        ended = subprocess.run([sys.executable, "-c", AS_ANOTHER], env=environment, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
        folder = f"{temporary}/stepgrad-54321"
        first, second = ended.stdout.splitlines()
        assert first.startswith("42 5.0 None" if planted else f"42 5.0 {folder}")
        assert second == ("42 0" if planted else "42 1")
        assert ("in memory" in ended.stderr) == planted
        assert len(ended.stderr.splitlines()) == 2 * (planted or setting is not None)  # one warning in each "process"
