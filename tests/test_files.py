"""Files are whole or absent."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from stepgrad.files import WriteError, write_whole


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize(("code", "message"), [(errno.ENOSPC, "the disk is full"), (errno.EROFS, "cannot be written")])
def test_failed_write_changes_nothing_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, code: int, message: str
) -> None:
    path = tmp_path / "file"
    write_whole(path, b"old")

    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(WriteError, match=f"file: {message}.*nothing was overwritten"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]  # nothing left beside it


def test_interrupted_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_whole(path, b"old")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_missing_folders_are_made(tmp_path: Path) -> None:
    write_whole(tmp_path / "a/b/file", b"new")
    assert (tmp_path / "a/b/file").read_bytes() == b"new"


def test_folder_in_the_place_of_a_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    with pytest.raises(WriteError, match="cannot be written"):
        write_whole(tmp_path / "file", b"new")
