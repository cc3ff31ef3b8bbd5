"""`stepgrad calibrate` as a user sees it: the maps, other files with calibrated scores, and their AP, which stays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepgrad.cli import main
from tests.cli.test_tasks import files_of

pytestmark = pytest.mark.filterwarnings("ignore::stepgrad.errors.LikelyMistakeWarning")


def calibrate(folder: Path, *words: str) -> int:
    found, truth = files_of("masks", folder)
    return main(["calibrate", "--detections", found, "--data", truth, "--task", "masks", "--resamples", "5", *words])


def map_of(found: Path, folder: Path) -> float:
    words = ["--detections", str(found), "--data", str(folder / "truth.json"), "--task", "masks", "--resamples", "0"]
    assert main(["evaluate", *words, "--report", str(folder / "numbers.json")]) == 0
    return float(json.loads((folder / "numbers.json").read_text())["map"])


def test_calibrated_files_have_the_same_ap_now_and_later(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    maps, before = tmp_path / "c.json", tmp_path / "found0.json"
    assert calibrate(tmp_path, "--out", str(maps), "--apply", str(before), "--plot", str(tmp_path / "c.png")) == 0
    assert "calibration error (ECE)" in capsys.readouterr().out
    after, later = tmp_path / "found0.calibrated.json", tmp_path / "later.json"
    assert (tmp_path / "c.png").stat().st_size > 0
    assert map_of(after, tmp_path) == map_of(before, tmp_path)
    words = ["--calibration", str(maps), "--apply", str(before), "--save_detections", str(later)]
    assert main(["calibrate", *words]) == 0
    assert later.read_bytes() == after.read_bytes() != before.read_bytes()
    assert set(json.loads(maps.read_text())["provenance"]["files"]) == {"detections", "data"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--out", "c.txt"], "c.txt: expected a file name that ends in .json or .onnx"),
        (["--save_detections", "x.json"], "needs --apply"),
        (["--calibration", "c.json", "--apply", "x.json"], "is for --apply alone"),
        (["--apply", "none.json"], "none.json: cannot be read"),
    ],
)
def test_mistakes_are_named(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert calibrate(tmp_path, *words) == 2
    assert said in capsys.readouterr().err


def test_files_of_other_forms_are_not_calibrated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.json"
    for content, said in (
        ('[{"score": 1}]', "category_id and score"),
        ("3", "expected a list"),
        ("{", "is not JSON"),
    ):
        other.write_text(content)
        assert calibrate(tmp_path, "--apply", str(other)) == 2
        assert said in capsys.readouterr().err
    rows = json.loads((tmp_path / "found0.json").read_text())
    other.write_text(json.dumps([{**rows[0], "category_id": 99}]))
    assert calibrate(tmp_path, "--apply", str(other)) == 2
    assert "but got 99" in capsys.readouterr().err
