"""Real commands killed by SIGKILL at any moment: nothing is lost, and the end is that of a command left alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.kills.campaign import SHARES, run

pytest.importorskip("cv2", reason="windows are searched for by opencv-contrib-python-headless")
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked children; this system has no fork")


@pytest.mark.parametrize("kills", [4, pytest.param(500, marks=pytest.mark.nightly)])
def test_commands_killed_again_and_again_lose_nothing_and_end_as_unbroken_ones(tmp_path: Path, kills: int) -> None:
    count = run(kills, tmp_path)
    print(count)
    assert count.all_kills >= kills
    assert all(count.ends[command] for command in SHARES)
    assert count.is_clean, count
