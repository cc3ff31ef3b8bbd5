"""Masks, poses and oriented boxes through the commands: explained, drawn on pages, and with sigmas that the data says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepgrad.cli import main
from stepgrad.data import load_dataset
from stepgrad.data.shape_fields import COCO_KEYPOINTS
from stepgrad.evaluation.export import to_coco
from stepgrad.evaluation.records import Evidence
from stepgrad.evaluation.result import evaluate_under
from stepgrad.metric.protocol import COCO
from stepgrad.overlaps import COCO_SIGMAS
from tests.cli.test_report import images_of
from tests.report.tasks import task_evaluator

pytestmark = pytest.mark.filterwarnings("ignore::stepgrad.errors.LikelyMistakeWarning")
Json = dict[str, Any]


def without_difficult(task: str, seed: int = 0) -> Evidence:
    """The made-up detections of a task; COCO's json has no mark for difficult objects."""
    evidence = task_evaluator(task, seed=seed)[1].evidence()
    none = np.zeros(len(evidence.objects), dtype=np.bool_)
    return replace(evidence, objects=replace(evidence.objects, difficult=none))


def map_of(task: str) -> float:
    evidence = without_difficult(task)
    return evaluate_under(evidence, evidence.overlap.adapt(COCO)).map


def files_of(task: str, folder: Path, seed: int = 0, **category: Any) -> tuple[str, str]:
    """Annotations and detections of the built-in set as COCO's json."""
    evidence = without_difficult(task, seed)
    truth, found = to_coco(evidence)
    if task == "oriented":
        for entries, side in ((truth["annotations"], evidence.objects), (found, evidence.detections)):
            for entry, corners in zip(entries, side.shapes.corners, strict=True):
                entry["poly"] = corners.reshape(-1).tolist()
    truth["categories"] = [entry | category for entry in truth["categories"]]
    names = folder / f"found{seed}.json", folder / "truth.json"
    for name, content in zip(names, (found, truth), strict=True):
        name.write_text(json.dumps(content))
    return str(names[0]), str(names[1])


SIGMAS = {"masks": {}, "oriented": {}, "keypoints": {"sigmas": [0.1] * 4}}


@pytest.mark.parametrize("task", list(SIGMAS))
def test_explain_and_report_take_the_task_as_evaluate_does(
    task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, truth = files_of(task, tmp_path, **SIGMAS[task])
    other, _ = files_of(task, tmp_path, seed=1, **SIGMAS[task])
    options = ["--data", truth, "--task", task]
    ladder, numbers, page, both = (tmp_path / name for name in ("ladder.json", "numbers.json", "page", "both"))
    assert main(["evaluate", "--detections", found, *options, "--report", str(numbers)]) == 0
    assert main(["explain", "--detections", found, *options, "--report", str(ladder)]) == 0
    value = json.loads(numbers.read_text())["map"]
    assert json.loads(ladder.read_text())["rungs"][0]["map"] == pytest.approx(value, abs=1e-12)
    assert value == pytest.approx(map_of(task), abs=1e-12)
    capsys.readouterr()
    assert main(["report", found, *options, "--out", str(page)]) == 0
    assert json.loads((page / "report.json").read_text())["maps"]["coco"] == pytest.approx(value, abs=1e-12)
    images: list[Any] = images_of(page / "report.html")
    marks = [mark for image in images for mark in image["objects"] + image["found"]]
    assert marks
    assert all(isinstance(mark[-1], list) for mark in marks)
    assert main(["report", found, other, *options, "--out", str(both)]) == 0
    changed = json.loads((both / "report.json").read_text())["changed"]
    boxes = [box for image in changed["better"] + changed["worse"] for box in image["chosen"]["boxes"]]
    assert boxes
    assert all(box["lines"] for box in boxes)


def judged(found: str, truth: str, *options: str) -> float:
    report = Path(found).parent / "n.json"
    assert (
        main(
            [
                "evaluate",
                "--detections",
                found,
                "--data",
                truth,
                "--task",
                "keypoints",
                *options,
                "--report",
                str(report),
            ]
        )
        == 0
    )
    value: float = json.loads(report.read_text())["map"]
    return value


def test_sigmas_come_from_the_category_or_the_option_and_are_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, truth = files_of("keypoints", tmp_path)
    for command in (["evaluate", "--detections", found], ["explain", "--detections", found], ["report", found]):
        assert main([*command, "--data", truth, "--task", "keypoints"]) != 0
        assert "OKS needs a sigma for each of 4 keypoints" in " ".join(capsys.readouterr().err.split())
    by_option = judged(found, truth, "--sigmas", "0.1", "0.1", "0.1", "0.1")
    assert by_option == pytest.approx(map_of("keypoints"), abs=1e-12)
    files_of("keypoints", tmp_path, sigmas=[0.1] * 4)
    assert judged(found, truth) == by_option
    assert judged(found, truth, "--sigmas", *["0.01"] * 4) < by_option
    for wrong, says in (([0.1], "expected 4 sigmas, one per keypoint, but got 1"), ([0.1, 0, 1, 1], "positive number")):
        files_of("keypoints", tmp_path, sigmas=wrong)
        assert main(["evaluate", "--detections", found, "--data", truth, "--task", "keypoints"]) != 0
        assert says in " ".join(capsys.readouterr().err.split())
    assert main(["evaluate", "--detections", found, "--data", truth, "--sigmas", "0.1"]) != 0
    assert "add --task keypoints" in " ".join(capsys.readouterr().err.split())


def seventeen(folder: Path, names: list[str] | None) -> Path:
    points = np.column_stack([np.arange(34).reshape(17, 2), np.full(17, 2)]).reshape(-1).tolist()
    content = {
        "images": [{"id": 1, "width": 50, "height": 50, "file_name": "1.jpg"}],
        "categories": [{"id": 1, "name": "person"} | ({"keypoints": names} if names else {})],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [0, 0, 33, 33], "keypoints": points}],
    }
    (folder / "truth.json").write_text(json.dumps(content))
    return folder / "truth.json"


@pytest.mark.parametrize(
    ("names", "sigmas"),
    [
        (None, COCO_SIGMAS),
        ([name.replace("_", " ").title() for name in COCO_KEYPOINTS], COCO_SIGMAS),
        ([f"paw {i}" for i in range(17)], None),
    ],
)
def test_seventeen_keypoints_are_those_of_persons_unless_their_names_say_otherwise(
    names: list[str] | None, sigmas: Any, tmp_path: Path
) -> None:
    dataset = load_dataset(seventeen(tmp_path, names), task="keypoints", need_images=False)
    assert dataset.sigmas == sigmas
