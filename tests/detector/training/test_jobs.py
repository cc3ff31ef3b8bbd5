"""`stepgrad train` in processes of its own: two train as one, one of two is killed, two want one folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
import torch

from stepgrad.detector.training.checkpoint import checkpoint_step, list_checkpoints
from stepgrad.detector.training.run_folder import open_run
from stepgrad.detector.training.run_log import read_log
from tests import double_precision
from tests.detector.training.small_runs import log_of, start, wait_for, write_config
from tests.patience import PATIENCE
from tests.torchrun import ended_well

STEPS = 100_000  # nobody comes to the end of it
Job = subprocess.Popen[str]


def test_two_processes_with_uneven_shards_train_as_one(tmp_path: Path) -> None:
    config = write_config(
        tmp_path,
        model={"dropout": 0.0, "box_regression": True},
        nll={"images": 3},
        map={"images": 3, "steps": 2, "chunk_images": 1, "lr": 0.001},
        run={"eval_every": 20, "timeout": PATIENCE},
    )
    program = (double_precision.MODULE, "stepgrad.cli")
    for job in [start(["--config", config, "--out", f"runs{n}"], n, tmp_path, program) for n in (1, 2)]:
        out, _ = job.communicate(timeout=PATIENCE)
        assert ended_well(job.returncode, out), out
    logs = [[line for line in log_of(tmp_path / f"runs{n}") if line["kind"] == "train"] for n in (1, 2)]
    for name in ("nll", "map", "box"):
        one, two = ([line["losses"].get(name) for line in log] for log in logs)
        assert two == pytest.approx(one, abs=1e-9)
    with double_precision.double_precision():
        weights = [open_run(tmp_path / f"runs{n}", "last").model.state_dict() for n in (1, 2)]
    for name, expected in weights[0].items():
        torch.testing.assert_close(weights[1][name], expected, rtol=0, atol=1e-9)
    evaluations = [json.loads((tmp_path / f"runs{n}/evaluation.json").read_text()) for n in (1, 2)]
    assert evaluations[1]["images"] == evaluations[0]["images"] == 4  # each process judged half of them


def test_a_killed_process_ends_the_job_long_before_the_others_would_give_up_and_the_run_goes_on(
    tmp_path: Path,
) -> None:
    often = {"eval_every": STEPS, "save_every": 2, "timeout": 100 * PATIENCE}
    config = write_config(tmp_path, nll={"steps": STEPS}, map={"steps": 0}, run=often)
    job = start(["--config", config, "--out", "run"], 2, tmp_path)
    wait_for(lambda: len(list_checkpoints(tmp_path / "run/checkpoints")) >= 3, job)
    victim = max(child.pid for child in psutil.Process(job.pid).children())
    os.kill(victim, signal.SIGKILL)
    out, _ = job.communicate(timeout=PATIENCE)
    assert job.returncode != 0
    assert "Signal 9" in out
    before = newest(tmp_path)
    again = start(["--resume", "run"], 1, tmp_path)
    wait_for(lambda: newest(tmp_path) > before, again)
    assert "which is saved; continue with" in " ".join(stopped(again).split())
    steps = [line["step"] for line in read_log(tmp_path / "run/log.jsonl") if line["kind"] == "train"]
    assert steps == list(range(1, len(steps) + 1))


def newest(folder: Path) -> int:
    return checkpoint_step(list_checkpoints(folder / "run/checkpoints")[-1])


def stopped(job: Job) -> str:
    """What a job says after Ctrl-C."""
    job.send_signal(signal.SIGINT)
    out, _ = job.communicate(timeout=PATIENCE)
    assert job.returncode == 130, out
    return out


def first_to_end(*jobs: Job) -> Job:
    """The one that is left, after the other was refused."""
    wait_for(lambda: any(job.poll() is not None for job in jobs))
    loser = next(job for job in jobs if job.poll() is not None)
    winner = next(job for job in jobs if job is not loser)
    out = " ".join(loser.communicate()[0].split())
    assert loser.returncode == 2, out
    assert f"run: is in use by process {winner.pid} on " in out
    assert "Traceback" not in out
    return winner


def wait_for_step(step: int, folder: Path, job: Job) -> None:
    wait_for(lambda: any(line["step"] >= step for line in read_log(folder / "log.jsonl")), job)


def test_of_two_in_one_folder_one_wins_and_a_killed_one_makes_room(tmp_path: Path) -> None:
    run = {"eval_every": STEPS, "save_every": 2, "keep": 2}
    config = write_config(tmp_path, loss="nll", nll={"steps": STEPS}, run=run)
    folder = tmp_path / "run"
    alone = start(["--config", config, "--out", "alone"], 1, tmp_path)

    winner = first_to_end(*(start(["--config", config, "--out", "run"], 1, tmp_path) for _ in range(2)))
    wait_for_step(4, folder, winner)
    open_run(folder, "last")  # who only reads is not kept from it
    winner.kill()
    winner.communicate()

    winner = first_to_end(*(start(["--resume", "run"], 1, tmp_path) for _ in range(2)))
    reached = max(line["step"] for line in read_log(folder / "log.jsonl")) + 2
    wait_for_step(reached, folder, winner)
    stopped(winner)

    wait_for_step(reached, tmp_path / "alone", alone)
    stopped(alone)
    logs = [log_of(path)[: reached + 1] for path in (folder, tmp_path / "alone")]
    assert logs[0] == logs[1]
    assert [line["step"] for line in logs[0]] == list(range(reached + 1))
    assert not list(folder.glob(".*"))
