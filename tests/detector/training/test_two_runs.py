"""Two `stepgrad train` in one folder: one wins and is not disturbed, the other says who is there."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from stepgrad.detector.training.run_folder import open_run, read_log
from tests.detector.training.test_engine import without_times
from tests.detector.training.test_engine_ranks import start, write_config
from tests.patience import PATIENCE

STEPS = 100_000  # nobody comes to the end of it


@pytest.fixture
def config(tmp_path: Path) -> str:
    changes = {"loss": "nll", "nll": {"steps": STEPS}, "run": {"eval_every": STEPS, "save_every": 2, "keep": 2}}
    return write_config(tmp_path, **changes)


def first_to_end(jobs: list[subprocess.Popen[str]]) -> tuple[subprocess.Popen[str], subprocess.Popen[str]]:
    """The one that ended, and the other."""
    end = time.monotonic() + PATIENCE
    while all(job.poll() is None for job in jobs):
        assert time.monotonic() < end
        time.sleep(0.05)
    loser = next(job for job in jobs if job.poll() is not None)
    return loser, next(job for job in jobs if job is not loser)


def wait_for_step(step: int, folder: Path, job: subprocess.Popen[str]) -> None:
    end = time.monotonic() + PATIENCE
    while not any(line["step"] >= step for line in read_log(folder / "log.jsonl")):
        assert time.monotonic() < end
        assert job.poll() is None, job.communicate()[0]
        time.sleep(0.05)


def stop(job: subprocess.Popen[str]) -> None:
    job.send_signal(signal.SIGINT)
    out, _ = job.communicate(timeout=PATIENCE)
    assert job.returncode == 130, out


def check_refusal(loser: subprocess.Popen[str], winner: subprocess.Popen[str]) -> None:
    out = " ".join(loser.communicate()[0].split())
    assert loser.returncode == 2, out
    assert f"run: is in use by process {winner.pid} on " in out
    assert "Traceback" not in out


def test_of_two_in_one_folder_one_wins_and_a_killed_one_makes_room(tmp_path: Path, config: str) -> None:
    folder = tmp_path / "run"
    alone = start(["--config", config, "--out", "alone"], 1, tmp_path)

    loser, winner = first_to_end([start(["--config", config, "--out", "run"], 1, tmp_path) for _ in range(2)])
    check_refusal(loser, winner)
    wait_for_step(4, folder, winner)
    open_run(folder, "last")  # who only reads is not kept from it
    winner.kill()
    winner.communicate()

    loser, winner = first_to_end([start(["--resume", "run"], 1, tmp_path) for _ in range(2)])
    check_refusal(loser, winner)
    reached = max(line["step"] for line in read_log(folder / "log.jsonl")) + 2
    wait_for_step(reached, folder, winner)
    stop(winner)

    wait_for_step(reached, tmp_path / "alone", alone)
    stop(alone)
    logs = [without_times(read_log(path / "log.jsonl"))[: reached + 1] for path in (folder, tmp_path / "alone")]
    assert logs[0] == logs[1]
    assert [line["step"] for line in logs[0]] == list(range(reached + 1))
    assert not list(folder.glob(".*"))
