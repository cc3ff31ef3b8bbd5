"""The script that runs the suite as other machines would counts what happened, and leaves nothing running."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.any_machine import ROOT, SETTINGS, busy_machine, read_outcome
from tests.patience import PATIENCE

SUITE = """
import os, pytest
def test_setting(): assert os.environ["ATEN_CPU_CAPABILITY"] == "avx2"
def test_that_fails(): assert os.environ["ATEN_CPU_CAPABILITY"] == "none"
@pytest.mark.skip
def test_that_is_skipped(): pass
"""


def test_a_line_tells_the_counts_and_the_failures_are_named(tmp_path: Path) -> None:
    suite = tmp_path / "test_made.py"
    suite.write_text(SUITE)
    command = [sys.executable, "-m", "tests.any_machine", "--setting", "aten-avx2", "--workers", "0"]
    done = subprocess.run(
        [*command, "--logs", str(tmp_path), str(suite)], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE
    )
    first, second = done.stdout.splitlines()
    assert first.startswith("aten-avx2       1 passed, 1 failed, 1 skipped, ")
    assert "test_that_fails" in second
    assert done.returncode == 1


def test_a_run_without_a_report_has_failed(tmp_path: Path) -> None:
    outcome = read_outcome(tmp_path / "none.xml", -9)
    assert not outcome.fine
    assert str(outcome) == "0 passed, 1 failed, 0 skipped"
    assert outcome.failed == ["pytest itself, which ended with status -9"]


def test_the_machine_is_busy_for_as_long_as_the_block_lasts() -> None:
    started = []

    def interrupted() -> None:
        with busy_machine() as burners:
            assert all(burner.is_alive() for burner in burners)
            started.extend(burners)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert started
    for burner in started:
        with pytest.raises(ProcessLookupError):
            os.kill(burner.pid or 0, 0)


def test_no_setting_repeats_another() -> None:
    differing = [tuple(sorted(s.items())) for name, s in SETTINGS.items() if name != "busy"]
    assert len(set(differing)) == len(differing)
