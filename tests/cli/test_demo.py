"""The demo, small: three runs, a table, a report, and the same again after a stop."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import stepgrad.cli.demo as demo_module
from stepgrad.cli import main

ARGUMENTS = ["--steps", "4", "--map_steps", "2", "--images", "8"]


@pytest.fixture(autouse=True)
def few_test_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_module, "TEST_IMAGES", 6)


def test_the_demo_compares_three_runs_and_ends_with_the_reports_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "demo"
    assert main(["demo", "--out", str(out), *ARGUMENTS]) == 0
    shown = capsys.readouterr().out
    assert str(out / "report.html") in shown.replace("\n", "")
    rows = json.loads((out / "report.json").read_text())["comparison"]
    assert [row["name"] for row in rows] == ["nll", "nll-more", "nll-then-map"]
    configs = demo_module.demo_configs(out, 4, 2, 8, 0)
    assert [row["steps"] for row in rows] == [configs[row["name"]].total_steps for row in rows]
    assert all(0 <= row["maps"]["voc12"] <= 1 for row in rows)
    assert "nll-then-map" in (out / "report.html").read_text()
    before = (out / "nll/log.jsonl").read_bytes()
    assert main(["demo", "--out", str(out), *ARGUMENTS]) == 0  # nothing is trained again
    assert (out / "nll/log.jsonl").read_bytes() == before
    assert json.loads((out / "report.json").read_text())["comparison"] == rows
    capsys.readouterr()
    assert main(["demo", "--out", str(out), *ARGUMENTS[:-1], "9"]) == 2
    assert "holds a demo with other settings" in capsys.readouterr().err.replace("\n", " ")


def test_both_second_halves_see_as_many_images_and_start_from_the_same_weights(tmp_path: Path) -> None:
    configs = demo_module.demo_configs(tmp_path, steps=100, map_steps=30, images=50, seed=0)
    control, ours = configs["nll-more"], configs["nll-then-map"]
    assert control.nll.steps * control.nll.images == ours.map.steps * ours.map.images
    assert control.model == ours.model
    assert ours.loss == "map"
    assert control.data == ours.data


@pytest.mark.parametrize("name", ["steps", "map_steps", "images"])
def test_numbers_below_one_are_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", f"--{name}", "0"]) == 2
    assert f"Expected --{name} to be at least 1" in capsys.readouterr().err
