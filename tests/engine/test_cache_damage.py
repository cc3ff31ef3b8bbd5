"""A kernel cache that is damaged or cannot be written to costs time, never the right number."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.engine.fresh_kernel import FreshKernel, cache_in, forget
from tests.small_disk import largest_file, small_disk


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[Path]:
    caplog.set_level(logging.WARNING, "stepgrad")
    cache_in(monkeypatch, tmp_path / "cache", tmp_path / "nowhere")
    yield tmp_path / "cache"
    forget(monkeypatch)


def hole(content: bytes) -> bytes:
    """Blocks of zeros where the disk did not get to, as after a power cut; the pickle is still whole."""
    at = content.index(b"\x7fELF") if b"\x7fELF" in content else len(content) // 2
    return content[:at] + bytes(len(content) - at - 300) + content[-300:]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "a byte": lambda content: content[:1],
    "half": lambda content: content[: len(content) // 2],
    "all but a byte": lambda content: content[:-1],
    "zeros": lambda content: bytes(len(content)),
    "hole": hole,
    "text": lambda content: b"not a pickle\n",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_files_are_told_once_and_replaced(place: Path, caplog: pytest.LogCaptureFixture, damage: str) -> None:
    first = FreshKernel()
    assert (first(21), first(2.5)) == (42, 5.0)
    for file in place.rglob("*.nbc"):
        file.write_bytes(DAMAGE[damage](file.read_bytes()))
    second = FreshKernel()
    assert (second(21), second(2.5)) == (42, 5.0)
    assert [f"{second.folder} are damaged and are compiled again" in record.message for record in caplog.records] == [
        True
    ]
    caplog.clear()
    third = FreshKernel()
    assert (third(21), third(2.5), third.loaded) == (42, 5.0, 2)
    assert caplog.records == []


def test_code_of_another_signature_under_a_kernels_name_is_not_used(place: Path) -> None:
    first = FreshKernel()
    assert (first(21), first(2.5)) == (42, 5.0)
    one, two = place.rglob("*.nbc")
    code = one.read_bytes()
    one.write_bytes(two.read_bytes())  # as nobody should leave them
    two.write_bytes(code)
    second = FreshKernel()
    assert (second(21), second(2.5), second.loaded) == (42, 5.0, 0)
    third = FreshKernel()
    assert (third(21), third(2.5), third.loaded) == (42, 5.0, 2)


def assert_told_in_memory(caplog: pytest.LogCaptureFixture, why: str) -> None:
    (record,) = caplog.records
    assert "in memory" in record.message
    assert why in record.message
    assert "Set NUMBA_CACHE_DIR" in record.message
    caplog.clear()


@pytest.mark.skipif(sys.platform == "win32", reason="no limits on file sizes")
@pytest.mark.parametrize("size", [0, 100, 5000])  # nothing, or part of the code
def test_where_files_cannot_grow_kernels_are_compiled_in_memory(
    place: Path, caplog: pytest.LogCaptureFixture, size: int
) -> None:
    with largest_file(size):
        kernel = FreshKernel()
        assert (kernel(21), kernel(2.5)) == (42, 5.0)
    assert_told_in_memory(caplog, "File too large")
    assert FreshKernel()(21) == 42  # what was left behind does no harm
    assert (again := FreshKernel())(21) == 42
    assert again.loaded == 1


def test_on_a_full_disk_kernels_are_compiled_in_memory(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    place.mkdir(mode=0o700)
    with small_disk(place, 1 << 16):
        place.chmod(0o700)
        (place / "full").write_bytes(bytes(40000))
        kernel = FreshKernel()
        assert [kernel(x) for x in (21, 2.5, 1j, True)] == [42, 5.0, 2j, 2]
        assert_told_in_memory(caplog, "No space left")
        (place / "full").unlink()
        for _ in range(2):
            kernel = FreshKernel()
            assert [kernel(x) for x in (21, 2.5)] == [42, 5.0]
        assert kernel.loaded == 2


@pytest.mark.skipif(sys.platform == "win32" or os.getuid() == 0, reason="needs a user whom the system can refuse")
def test_where_the_folder_was_closed_meanwhile_kernels_are_compiled_in_memory(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kernel = FreshKernel()
    assert kernel.folder
    kernel.folder.chmod(0o500)
    assert kernel(21) == 42
    assert_told_in_memory(caplog, "Permission denied")
