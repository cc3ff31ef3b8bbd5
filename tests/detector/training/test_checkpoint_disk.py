"""A full disk loses nothing."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest

from stepgrad.detector.training.checkpoint import checkpoint_step, list_checkpoints, load_checkpoint, save_checkpoint
from stepgrad.files import WriteError
from tests.detector.training.killing import BYTES, content, same
from tests.small_disk import largest_file, small_disk


def assert_saved(folder: Path, steps: list[int]) -> None:
    assert [checkpoint_step(path) for path in list_checkpoints(folder)] == steps
    assert all(same(load_checkpoint(path), content(checkpoint_step(path))) for path in list_checkpoints(folder))
    assert len(list(folder.iterdir())) == len(steps)  # nothing left beside them


@pytest.mark.skipif(sys.platform == "win32", reason="no limits on file sizes")
@pytest.mark.parametrize("size", [100, BYTES // 4, BYTES])
def test_write_that_fails_halfway_loses_nothing(tmp_path: Path, size: int) -> None:
    folder = tmp_path / "checkpoints"
    save_checkpoint(folder, content(1), keep=1)
    for step in (1, 2):  # again, or a new one
        with largest_file(size), pytest.raises(WriteError, match="the disk is full") as caught:
            save_checkpoint(folder, content(step), keep=1)
        assert_saved(folder, [1])
    assert f"(step 1 is saved: continue from it with `stepgrad train --resume {tmp_path}`)" in str(caught.value)
    save_checkpoint(folder, content(2), keep=1)
    assert_saved(folder, [2])


def test_full_disk_loses_nothing_and_with_room_again_the_run_goes_on(tmp_path: Path) -> None:
    with small_disk(tmp_path, BYTES * 5 // 2):  # room for two
        for step in (1, 2):
            save_checkpoint(tmp_path, content(step), keep=2)
        with pytest.raises(WriteError, match="the disk is full"):
            save_checkpoint(tmp_path, content(3), keep=2)
        assert_saved(tmp_path, [1, 2])
        list_checkpoints(tmp_path)[0].unlink()
        (tmp_path / ".step-00000003.safetensors.4711.tmp").write_bytes(bytes(BYTES))  # of a killed writer: given back
        save_checkpoint(tmp_path, content(3), keep=2)
        assert_saved(tmp_path, [2, 3])


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_failing_call_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int) -> None:
    save_checkpoint(tmp_path, content(1), keep=1)

    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(WriteError, match="nothing was overwritten"):
            save_checkpoint(tmp_path, content(2), keep=1)
    assert_saved(tmp_path, [1])
