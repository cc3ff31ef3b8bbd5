"""The demo, small: three trainings per seed, a table, a report, and the same again after a stop."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stepgrad.cli import main
from stepgrad.models.demo import trial

ARGUMENTS = ["--steps", "4", "--map_steps", "2", "--images", "8", "--test_images", "6", "--seeds", "2"]


def test_the_demo_compares_four_trainings_and_ends_with_the_reports_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "demo"
    assert main(["demo", "--out", str(out), *ARGUMENTS]) == 0
    shown = capsys.readouterr().out
    assert str(out / "report.html") in shown.replace("\n", "")
    report = json.loads((out / "report.json").read_text())
    assert [row["name"] for row in report["arms"]] == [trial.START, trial.MORE, trial.ALIGNED, trial.MAP]
    assert all(len(row["runs"]) == 2 for row in report["arms"])
    assert report["sentence"] in shown.replace("\n", " ").replace("  ", " ")
    assert report["next_steps"]
    assert all(step in shown for step in report["next_steps"])
    heads = {file: file.stat().st_mtime_ns for file in (out / "heads").iterdir()}
    assert len(heads) == 8
    assert main(["demo", "--out", str(out), *ARGUMENTS]) == 0  # nothing is trained again
    assert {file: file.stat().st_mtime_ns for file in (out / "heads").iterdir()} == heads
    assert json.loads((out / "report.json").read_text())["arms"] == report["arms"]
    capsys.readouterr()
    assert main(["demo", "--out", str(out), *ARGUMENTS[:-1], "3"]) == 2
    assert "other input" in capsys.readouterr().err.replace("\n", " ")


def test_every_kernel_of_the_demo_is_compiled_at_its_beginning(tmp_path: Path) -> None:
    """In a process of its own, which has called no other kernels."""
    code = f"""if True:
        from stepgrad.cli import main
        from stepgrad.engine.jit import Kernel
        import gc
        import stepgrad.losses.warmup as warmup

        def called():
            kernels = [thing for thing in gc.get_objects() if isinstance(thing, Kernel)]
            return {{(kernel.__name__, types) for kernel in kernels for types in kernel.overloads}}

        compile_ahead = warmup.warm_up
        ahead = set()
        warmup.warm_up = lambda *given: (compile_ahead(*given), ahead.update(called()))
        assert main(["demo", "--out", "demo", *{ARGUMENTS}]) == 0
        assert ahead and called() == ahead, called() - ahead
    """
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_both_second_halves_see_as_many_images() -> None:
    plans = trial.Settings(map_steps=30).plans
    control, ours = plans[trial.MORE], plans[trial.MAP]
    assert control.steps * control.images == ours.steps * ours.images
    assert (control.loss, ours.loss) == ("stock", "map")


def test_ctrl_c_keeps_what_is_trained_and_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(trial, "with_test", interrupt)
    assert main(["demo", "--out", str(tmp_path / "a"), *ARGUMENTS]) == 130
    assert "run the same command again" in capsys.readouterr().out
    assert len(list((tmp_path / "a/heads").iterdir())) == 8


@pytest.mark.parametrize("name", ["steps", "map_steps", "images", "test_images", "seeds"])
def test_numbers_below_one_are_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", f"--{name}", "0"]) == 2
    assert f"Expected --{name} to be at least 1" in capsys.readouterr().err
