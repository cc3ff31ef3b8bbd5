"""`stepgrad thresholds` as a user sees it: the table, the file, and other files cut by it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import stepgrad as sg
from stepgrad.cli import main
from stepgrad.evaluation.export import to_coco
from stepgrad.evaluation.result import evaluate_under
from stepgrad.metric.protocol import COCO
from tests.cli.test_tasks import files_of, without_difficult

pytestmark = pytest.mark.filterwarnings("ignore::stepgrad.errors.LikelyMistakeWarning")


def choose(folder: Path, *words: str, task: str = "masks") -> int:
    found, truth = files_of(task, folder)
    return main(["thresholds", "--detections", found, "--data", truth, "--task", task, *words])


@pytest.mark.parametrize("name", ["t.json", "t.yaml"])
@pytest.mark.parametrize("wish", ["f1", "recall@precision=0.6", "precision@recall=0.3", "cost@false_alarm=1,miss=2"])
def test_the_command_chooses_what_the_function_chooses(
    wish: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / name
    assert choose(tmp_path, "--wish", wish, "--out", str(place)) == 0
    evidence = without_difficult("masks")
    chosen = sg.thresholds(evaluate_under(evidence, evidence.overlap.adapt(COCO)), wish)
    assert str(chosen) in capsys.readouterr().out
    kept = sg.apply_thresholds(to_coco(evidence)[1], place)
    by_hand = [
        row
        for row in to_coco(evidence)[1]
        if (cut := list(chosen.by_class.values())[row["category_id"] - 1]) is not None and row["score"] >= cut
    ]
    assert kept == by_hand


def test_the_file_says_how_it_came(tmp_path: Path) -> None:
    place = tmp_path / "t.json"
    assert choose(tmp_path, "--wish", "precision=0.5", "--out", str(place), "--folds", "4") == 0
    content: dict[str, Any] = json.loads(place.read_text())
    assert content["wish"] == "recall@precision=0.5"
    assert content["cross_validation"] == {"folds": 4, "seed": 0}
    assert set(content["provenance"]["files"]) == {"detections", "data"}
    assert content["provenance"]["options"]["task"] == "masks"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--out", "t.txt"], "t.txt: expected a file name that ends in .json"),
        (["--wish", "f2"], "but got 'f2'"),
        (["--run", "runs/a"], "Expected --detections"),
        (["--folds", "1"], "folds"),
    ],
)
def test_mistakes_are_named_before_anything_is_written(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert choose(tmp_path, *words, task="oriented" if "--run" not in words else "boxes") == 2
    assert said in capsys.readouterr().err
