"""Runs killed by SIGKILL, whatever they were doing, and resumed: the end is that of a run left alone."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from stepgrad.train.run_folder import read_log
from tests.train.killed_runs import trainer
from tests.train.test_engine import last, without_times

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked children; this system has no fork")


@pytest.mark.parametrize("kills", [6, pytest.param(50, marks=pytest.mark.nightly)])
def test_a_run_killed_again_and_again_ends_with_the_weights_of_the_unbroken_one(tmp_path: Path, kills: int) -> None:
    moments = random.Random(kills)
    with trainer() as children:
        began = time.monotonic()
        assert children.run(tmp_path / "unbroken", None, 0)
        whole = time.monotonic() - began
        done = 0
        for round_ in range(kills):  # a run that comes to its end between two kills is followed by another
            folder = tmp_path / f"run{done}"
            if children.run(folder, moments, 0.6 * whole if round_ % 3 else whole):
                done += 1
        folder = tmp_path / f"run{done}"
        assert children.run(folder, None, 0)
    for number in range(done + 1):
        assert last(tmp_path / f"run{number}") == last(tmp_path / "unbroken")
    lines = [without_times(read_log(path / "log.jsonl")) for path in (folder, tmp_path / "unbroken")]
    assert lines[0] == lines[1]
