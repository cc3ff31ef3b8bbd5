"""Runs of two processes under torchrun: the same as one process; and one of them killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch
import yaml

from stepgrad.detector.training.checkpoint import list_checkpoints
from stepgrad.detector.training.config import to_dict
from stepgrad.detector.training.run_folder import open_run, read_log
from tests import double_precision
from tests.detector.training.test_engine import small_config
from tests.patience import PATIENCE
from tests.torchrun import ended_well


def start(
    words: list[str], processes: int, folder: Path, program: tuple[str, ...] = ("stepgrad.cli",)
) -> subprocess.Popen[str]:
    """`stepgrad train WORDS`, alone or under torchrun."""
    launcher = (
        [] if processes == 1 else ["torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", "-m"]
    )
    paths = [str(double_precision.ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-m", *launcher, *program, "train", *words]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate(timeout=PATIENCE)
    assert ended_well(process.returncode, out), out
    return out


def wait_for(happened: Callable[[], bool], job: subprocess.Popen[str]) -> None:
    """Until something has happened while the job runs."""
    end = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < end
        assert job.poll() is None, job.communicate()[0]
        time.sleep(0.1)


def write_config(folder: Path, **changes: object) -> str:
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(to_dict(small_config(**changes))))
    return str(path)


def test_two_processes_with_uneven_shards_train_as_one(tmp_path: Path) -> None:
    config = write_config(
        tmp_path,
        model={"dropout": 0.0},
        nll={"images": 3},
        map={"images": 3, "steps": 2, "chunk_images": 1, "lr": 0.001},
        run={"eval_every": 20, "timeout": PATIENCE},
    )
    program = (double_precision.MODULE, "stepgrad.cli")
    jobs = [start(["--config", config, "--out", f"runs{n}"], n, tmp_path, program) for n in (1, 2)]
    for job in jobs:
        finish(job)
    logs = [read_log(tmp_path / f"runs{n}/log.jsonl") for n in (1, 2)]
    losses = [[line["loss"] for line in log if line["kind"] == "train"] for log in logs]
    assert losses[1] == pytest.approx(losses[0], abs=1e-9)
    assert [line["windows"] for line in logs[1] if line["kind"] == "train"]
    with double_precision.double_precision():
        weights = [open_run(tmp_path / f"runs{n}", "last").model.state_dict() for n in (1, 2)]
    for name, expected in weights[0].items():
        torch.testing.assert_close(weights[1][name], expected, rtol=0, atol=1e-9)
    evaluations = [json.loads((tmp_path / f"runs{n}/evaluation.json").read_text()) for n in (1, 2)]
    assert evaluations[1]["images"] == evaluations[0]["images"] == 4  # each process judged half of them


def test_a_killed_process_ends_the_job_long_before_the_others_would_give_up_and_the_run_goes_on(
    tmp_path: Path,
) -> None:
    often = {"eval_every": 100_000, "save_every": 2, "timeout": 100 * PATIENCE}
    config = write_config(tmp_path, nll={"steps": 100_000}, map={"steps": 0}, run=often)
    job = start(["--config", config, "--out", "run"], 2, tmp_path)
    wait_for(lambda: len(list_checkpoints(tmp_path / "run/checkpoints")) >= 3, job)
    victim = max(_children(job.pid))
    os.kill(victim, signal.SIGKILL)
    out, _ = job.communicate(timeout=PATIENCE)
    assert job.returncode != 0
    assert "Signal 9" in out
    log = tmp_path / "run/log.jsonl"
    before = len(read_log(log))
    again = start(["--resume", "run"], 1, tmp_path)
    wait_for(lambda: len(read_log(log)) > before + 2, again)
    again.send_signal(signal.SIGINT)
    out, _ = again.communicate(timeout=PATIENCE)
    assert "which is saved; continue with" in " ".join(out.split())
    steps = [line["step"] for line in read_log(log) if line["kind"] == "train"]
    assert steps == list(range(1, len(steps) + 1))


def _children(pid: int) -> list[int]:
    """The processes a process has started."""
    return [child.pid for child in psutil.Process(pid).children()]
