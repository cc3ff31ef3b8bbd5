"""Trainings of YOLO with MAPTrainer killed by SIGKILL at any moment: checkpoints are whole, and runs continue for mAP."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.models.yolo.small import needs_ultralytics

pytestmark = [
    *needs_ultralytics,
    pytest.mark.nightly,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked children; this system has no fork"),
]


def test_trainings_killed_again_and_again_keep_whole_checkpoints_and_continue_for_mAP(tmp_path: Path) -> None:
    from tests.kills.yolo import kill

    count = kill(100, tmp_path)
    print(count)
    assert count.all_kills >= 100
    assert count.ends["yolo"]
    assert count.is_clean, count
