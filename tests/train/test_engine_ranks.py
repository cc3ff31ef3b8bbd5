"""Runs of two processes under torchrun: the same as one process; and one of them killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml

from stepgrad.train.checkpoint import list_checkpoints
from stepgrad.train.config import to_dict
from stepgrad.train.run_folder import open_run, read_log
from tests.train.test_engine import small_config

LIMIT = 240


def start(words: list[str], processes: int, folder: Path) -> subprocess.Popen[str]:
    """`stepgrad train WORDS`, alone or under torchrun."""
    launcher = (
        [] if processes == 1 else ["torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", "-m"]
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", *launcher, "stepgrad.cli", "train", *words]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, out
    return out


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
        run={"eval_every": 20},
    )
    jobs = [start(["--config", config, "--out", f"runs{n}"], n, tmp_path) for n in (1, 2)]
    for job in jobs:
        finish(job)
    logs = [read_log(tmp_path / f"runs{n}/log.jsonl") for n in (1, 2)]
    losses = [[line["loss"] for line in log if line["kind"] == "train"] for log in logs]
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)
    assert [line["windows"] for line in logs[1] if line["kind"] == "train"]
    weights = [open_run(tmp_path / f"runs{n}", "last").model.state_dict() for n in (1, 2)]
    assert all(torch.allclose(weights[0][name], weights[1][name], atol=1e-4) for name in weights[0])
    evaluations = [json.loads((tmp_path / f"runs{n}/evaluation.json").read_text()) for n in (1, 2)]
    assert evaluations[1]["images"] == evaluations[0]["images"] == 4  # each process judged half of them


def test_a_killed_process_ends_the_job_within_a_minute_and_the_run_goes_on(tmp_path: Path) -> None:
    config = write_config(tmp_path, nll={"steps": 5000}, map={"steps": 0}, run={"eval_every": 5000, "save_every": 2})
    job = start(["--config", config, "--out", "run"], 2, tmp_path)
    checkpoints = tmp_path / "run/checkpoints"
    end = time.monotonic() + LIMIT
    while len(list_checkpoints(checkpoints)) < 3:
        assert time.monotonic() < end
        assert job.poll() is None, job.communicate()[0]
        time.sleep(0.1)
    victim = max(_children(job.pid))
    os.kill(victim, signal.SIGKILL)
    began = time.monotonic()
    out, _ = job.communicate(timeout=LIMIT)
    assert time.monotonic() - began < 60
    assert job.returncode != 0
    assert "Signal 9" in out
    at = len(read_log(tmp_path / "run/log.jsonl"))
    again = start(["--resume", "run"], 1, tmp_path)
    while len(read_log(tmp_path / "run/log.jsonl")) <= at + 2:
        assert time.monotonic() < end + LIMIT
        assert again.poll() is None, again.communicate()[0]
        time.sleep(0.1)
    again.send_signal(signal.SIGINT)
    out, _ = again.communicate(timeout=LIMIT)
    assert "which is saved; go on with" in " ".join(out.split())
    steps = [line["step"] for line in read_log(tmp_path / "run/log.jsonl") if line["kind"] == "train"]
    assert steps == list(range(1, len(steps) + 1))


def _children(pid: int) -> list[int]:
    """The processes a process has started."""
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(word) for word in found.stdout.split()]
