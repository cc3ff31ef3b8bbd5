"""The examples of training for mAP elsewhere run as they stand, with fewer steps, and improve the number they print."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import double_precision
from tests.patience import PATIENCE
from tests.torchrun import ended_well

EXAMPLES = Path(__file__).parents[2] / "examples"


def main_of(name: str) -> Callable[..., Any]:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]


@pytest.mark.parametrize("seed", [0, 1])
def test_a_loop_of_ones_own_learns_to_rank_windows(seed: int) -> None:
    found = main_of("own_training_loop")(steps=15, seed=seed)
    assert found["after"] > found["before"] + 0.2


def test_own_training_loop_runs_from_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(EXAMPLES / "own_training_loop.py")
    monkeypatch.setattr(sys, "argv", [path, "--steps", "2"])
    runpy.run_path(path, run_name="__main__")
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_two_processes_under_torchrun_train_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launch, "-m", double_precision.MODULE, str(EXAMPLES / "two_processes.py")]
    done = subprocess.run(
        command,
        cwd=double_precision.ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert ended_well(done.returncode, done.stderr), done.stderr
    found = re.findall(r"process (\d) of 2: mAP of the joined batch ([\d.]+) to ([\d.]+)", done.stdout)
    assert sorted(rank for rank, _, _ in found) == ["0", "1"]
    for name in ("WORLD_SIZE", "RANK"):
        monkeypatch.delenv(name, raising=False)
    with double_precision.double_precision():
        alone = main_of("two_processes")()
    assert {(first, last) for _, first, last in found} == {(f"{alone[0]:.6f}", f"{alone[-1]:.6f}")}
    assert alone[-1] > alone[0] + 0.1


def test_a_tiny_detr_learns_its_training_images() -> None:
    pytest.importorskip("transformers", reason='needs transformers: pip install ".[transformers]"')
    maps = main_of("finetune_detr")(steps=80, switch_at=60, images=8)
    assert max(maps[:20]) < 0.02
    assert sum(maps[-5:]) / 5 > 0.1


def test_the_trainer_logs_the_map_of_its_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("accelerate", reason='the Trainer needs accelerate: pip install ".[transformers]"')
    monkeypatch.syspath_prepend(str(EXAMPLES))
    log = main_of("hf_trainer")(steps=40, switch_at=20, images=8)
    assert [entry["step"] for entry in log] == [20, 40]
    assert log[1]["batch_map"] > log[0]["batch_map"]
