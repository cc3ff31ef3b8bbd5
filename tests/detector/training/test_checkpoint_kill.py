"""Killed while saving: what was saved stays saved."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import pytest

from stepgrad.detector.training.checkpoint import list_checkpoints, load_checkpoint, save_checkpoint
from tests.detector.training.killing import content, killer, last_promised, same

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked children; this system has no fork")


def seconds_to_save(folder: Path) -> float:
    def save(step: int) -> float:
        start = perf_counter()
        save_checkpoint(folder / "timed", content(step), keep=2)
        return perf_counter() - start

    return median(save(step) for step in range(1, 8))


@pytest.mark.parametrize("kills", [50, pytest.param(500, marks=pytest.mark.nightly)])
def test_after_sigkill_at_any_moment_the_newest_checkpoint_is_whole(tmp_path: Path, kills: int) -> None:
    folder = tmp_path / "checkpoints"
    moments = random.Random(kills)
    longest = 3 * seconds_to_save(tmp_path)
    tries = cut_short = 0
    leftovers: set[Path] = set()
    with killer() as kill:
        # on a busy machine children may be killed before they come to write: on it goes until enough were writing
        while tries < kills or (cut_short <= kills // 10 and tries < 50 * kills):
            tries += 1
            kill.kill_after(moments.uniform(0, longest), folder)
            longest *= 1.0 if last_promised(folder) else 1.5  # a busy machine may take its time
            saved = [load_checkpoint(path) for path in list_checkpoints(folder)]
            assert all(same(checkpoint, content(checkpoint.step)) for checkpoint in saved)
            assert max((checkpoint.step for checkpoint in saved), default=0) >= last_promised(folder)
            cut_short += bool(set(folder.glob(".*.tmp")) - leftovers)
            leftovers = set(folder.glob(".*.tmp"))
    assert last_promised(folder) > 0
    assert cut_short > kills // 10  # or the kills did not fall into the writing


class Stopped(BaseException):
    """As abrupt as code in one process can be."""


def save_until_call(folder: Path, limit: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Save step 3 but stop before call `limit` that changes the disk; whether it got to the end."""
    calls = 0

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def stop_or_go_on(*args: Any, **options: Any) -> Any:
            nonlocal calls
            if calls == limit:
                raise Stopped
            calls += 1
            return real(*args, **options)

        return stop_or_go_on

    with monkeypatch.context() as patch:
        for name in ("fsync", "replace", "unlink", "mkdir"):
            patch.setattr(os, name, counted(getattr(os, name)))
        try:
            save_checkpoint(folder, content(3), keep=2)
        except Stopped:
            return False
    return True


def test_stopped_before_any_call_that_changes_the_disk_two_whole_checkpoints_remain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in range(100):
        folder = tmp_path / str(limit)
        for step in (1, 2):
            save_checkpoint(folder, content(step), keep=2)
        finished = save_until_call(folder, limit, monkeypatch)
        saved = [load_checkpoint(path) for path in list_checkpoints(folder)]
        assert all(same(checkpoint, content(checkpoint.step)) for checkpoint in saved)
        assert len(saved) >= 2
        if finished:
            break
    assert limit >= 5  # folder, file flushed, in place, folder flushed, old one removed
