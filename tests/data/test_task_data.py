"""Masks, poses and oriented boxes on disk: YOLO's and DOTA's files, what the doctor says of them, and what convert keeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepgrad.cli import main
from stepgrad.data import load_dataset
from stepgrad.data.convert import convert
from stepgrad.data.doctor import examine
from stepgrad.data.judged_files import evidence_from
from stepgrad.data.read_detections import read_detections
from stepgrad.errors import DataError
from stepgrad.evaluation.result import evaluate_under
from stepgrad.metric.protocol import get_protocol
from tests.data.builders import SIZE, coco_content, write_coco, write_image, write_yolo

POSE_YAML = "train: images/train\nnames: [cat, dog]\nkpt_shape: [2, 3]\n"
LABELS = {
    "masks": "1 0.1 0.1 0.6 0.1 0.6 0.5 0.1 0.5\n0 0.5 0.5 0.9 0.6 0.7 0.9\n",
    "keypoints": "1 0.5 0.5 0.5 0.5 0.4 0.4 2 0.6 0.6 1\n0 0.3 0.3 0.2 0.2 0.3 0.3 2 0 0 0\n",
    "oriented": "1 0.1 0.1 0.6 0.2 0.5 0.6 0.05 0.5\n0 0.6 0.6 0.9 0.6 0.9 0.9 0.6 0.9\n",
}
TASKS = list(LABELS)


def yolo_data(root: Path, task: str, labels: str | None = None, more: str = "") -> Path:
    return write_yolo(root, POSE_YAML + more, {"train/a": LABELS[task] if labels is None else labels})


def mean_ap(found: Path, data: Path, task: str, protocol: str = "coco") -> float:
    dataset = load_dataset(data, need_images=False, task=task)  # type: ignore[arg-type]
    return evaluate_under(evidence_from(dataset, read_detections(found, dataset)), get_protocol(protocol)).map


def without_poses(data: Path) -> Path:
    """A data.yaml in which lines are no poses."""
    data.write_text(data.read_text().replace("kpt_shape: [2, 3]\n", ""))
    return data


@pytest.mark.parametrize("task", TASKS)
def test_labels_of_yolo_are_found_by_themselves_as_detections(task: str, tmp_path: Path) -> None:
    data = yolo_data(tmp_path, task)
    data = data if task == "keypoints" else without_poses(data)
    (tmp_path / "found").mkdir()
    lines = LABELS[task].splitlines()
    (tmp_path / "found" / "a.txt").write_text("".join(f"{line} 0.{9 - i}\n" for i, line in enumerate(lines)))
    assert mean_ap(tmp_path / "found", data, task) == pytest.approx(1.0, abs=1e-12)
    (tmp_path / "found" / "a.txt").write_text(f"{lines[0]} 0.9\n")
    assert mean_ap(tmp_path / "found", data, task) == pytest.approx(0.5, abs=1e-12)


def test_predictions_json_of_yolo_has_oriented_boxes_without_a_bbox(tmp_path: Path) -> None:
    data = without_poses(yolo_data(tmp_path, "oriented"))
    corners = load_dataset(data, task="oriented").target(0)["oriented"].double().tolist()
    found = [{"image_id": "a", "category_id": c, "score": 0.5, "poly": p} for c, p in zip((2, 1), corners, strict=True)]
    (tmp_path / "found.json").write_text(json.dumps(found))
    assert mean_ap(tmp_path / "found.json", data, "oriented") == pytest.approx(1.0, abs=1e-12)


def dota_folder(root: Path) -> Path:
    (root / "labelTxt").mkdir(parents=True)
    lines = "imagesource:GoogleEarth\ngsd:0.1\n1 1 21 1 21 11 1 11 large-vehicle 0\n30 20 40 20 40 30 30 30 ship 1\n"
    (root / "labelTxt" / "P1.txt").write_text(lines)
    write_image(root / "images" / "P1.png")
    return root


def test_dota_text_is_read_and_judged_by_dotas_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = dota_folder(tmp_path / "data")
    dataset = load_dataset(data, task="oriented")
    assert dataset.class_names == ("large-vehicle", "ship")
    assert dataset.target(0)["difficult"].tolist() == [False, True]
    assert dataset[0][1]["boxes"].tolist() == [[1, 1, 21, 11], [30, 20, 40, 30]]
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "Task1_large-vehicle.txt").write_text("P1 0.9 1 1 20 1 20 11 1 11\n")
    arguments = ["--detections", str(tmp_path / "out"), "--data", str(data), "--task", "oriented"]
    assert main(["evaluate", *arguments]) == 0
    assert "dota, 1 images, 1 detections: mAP 100.0" in capsys.readouterr().out
    assert examine(data).errors == 0


@pytest.mark.parametrize(
    ("task", "labels", "says"),
    [
        ("masks", "1 0.5 0.5 0.2 0.2\n", "line 1: expected a polygon"),
        ("keypoints", "1 0.5 0.5 0.2 0.2\n", "line 1: expected a box and keypoints"),
        ("oriented", LABELS["masks"], "line 2: expected four corners"),
    ],
)
def test_labels_without_the_shape_are_refused_with_a_way_out(task: str, labels: str, says: str, tmp_path: Path) -> None:
    data = yolo_data(tmp_path, task, labels)
    data = data if task == "keypoints" else without_poses(data)
    with pytest.raises(DataError, match=says) as refused:
        load_dataset(data, task=task)  # type: ignore[arg-type]
    assert "--task boxes" in str(refused.value)


def _coco_with(root: Path, **fields: Any) -> Path:
    """A COCO file whose first annotation, with the box 1 2 11 22, has further fields."""
    content = coco_content()
    content["annotations"][0] |= fields
    return write_coco(root, content)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("polygon-outside", {"segmentation": [[1, 2, 70, 2, 11, 22]]}),
        ("polygon-crossing", {"segmentation": [[1, 2, 11, 22, 11, 2, 1, 22]]}),
        ("mask-empty", {"segmentation": {"size": [SIZE[1], SIZE[0]], "counts": [SIZE[0] * SIZE[1]]}}),
        ("mask-box", {"segmentation": [[1, 2, 11, 2, 11, 10, 1, 10]]}),
        ("shape", {"segmentation": {"size": [SIZE[1], SIZE[0]], "counts": [3]}}),
        ("shape", {"segmentation": "a mask"}),
        ("keypoint-outside", {"keypoints": [5, 5, 2, 70, 5, 2]}),
        ("keypoint-box", {"keypoints": [5, 5, 2, 30, 5, 1]}),
    ],
)
def test_doctor_finds_what_is_wrong_with_a_shape(kind: str, fields: dict[str, Any], tmp_path: Path) -> None:
    before = {problem.kind for problem in examine(_coco_with(tmp_path / "good")).problems}
    sound = {"segmentation": [[1, 2, 11, 2, 11, 22, 1, 22]], "keypoints": [5, 5, 2, 99, 99, 0]}
    assert {problem.kind for problem in examine(_coco_with(tmp_path / "sound", **sound)).problems} == before
    diagnosis = examine(_coco_with(tmp_path / "bad", **fields))
    found = {problem.kind for problem in diagnosis.problems} - before
    assert kind in found
    named = next(problem for problem in diagnosis.problems if problem.kind == kind)
    assert "annotation 1" in named.what
    assert named.severity == "warning"


def test_doctor_folds_the_objects_of_an_image_that_have_the_same_defect(tmp_path: Path) -> None:
    outside = "".join(f"1 {x} 0.1 1.009 0.1 0.6 0.5\n" for x in (0.1, 0.2, 0.3))
    data = without_poses(yolo_data(tmp_path, "masks", outside))
    data.write_text(data.read_text())
    write_image(tmp_path / "images" / "train" / "a.jpg", size=(600, 400))  # 0.009 of it are five pixels
    lines = [problem.what for problem in examine(data).problems if problem.kind == "polygon-outside"]
    assert len(lines) == 1
    assert "line 1 (dog)" in lines[0]
    assert "and 2 more objects" in lines[0]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("flip_idx: [0, 1]\nkpt_names: {0: [left_eye, right_eye]}\n", "sends 'left_eye' to 'left_eye'"),
        ("flip_idx: [0, 0]\n", "expected flip_idx to have each of 0 to 1 once"),
        ("kpt_names: {0: [left_eye, right_ear]}\n", "'left_eye' has no 'right_eye'"),
        ("flip_idx: [1, 0]\nkpt_names: {0: [left_eye, right_eye]}\n", None),
    ],
)
def test_doctor_compares_left_and_right_of_keypoints(more: str, says: str | None, tmp_path: Path) -> None:
    lines = [
        p.what for p in examine(yolo_data(tmp_path, "keypoints", more=more)).problems if p.kind == "keypoint-names"
    ]
    assert bool(lines) == (says is not None)
    assert says is None or says in lines[0]


def test_doctor_finds_a_skeleton_that_changes_sides(tmp_path: Path) -> None:
    content = coco_content()
    names = ["left_elbow", "right_elbow", "left_wrist", "right_wrist"]
    content["categories"][0] |= {"keypoints": names, "skeleton": [[1, 4], [2, 3], [1, 2]]}
    problems = [p.what for p in examine(write_coco(tmp_path, content)).problems if p.kind == "keypoint-names"]
    assert problems == [
        "the skeleton joins 'left_elbow' to 'right_wrist'",
        "the skeleton joins 'right_elbow' to 'left_wrist'",
    ]


@pytest.mark.parametrize("task", TASKS)
def test_shapes_come_back_from_coco_and_yolo(task: str, tmp_path: Path) -> None:
    data = yolo_data(tmp_path / "yolo", task)
    data = data if task == "keypoints" else without_poses(data)
    convert(data, tmp_path / "coco", "coco", task=task)  # type: ignore[arg-type]
    convert(tmp_path / "coco", tmp_path / "back", "yolo", task=task)  # type: ignore[arg-type]
    first, *others = [
        load_dataset(place, task=task).objects(0)  # type: ignore[arg-type]
        for place in (data, tmp_path / "coco", tmp_path / "back" / "data.yaml")
    ]
    for other in others:
        assert other.labels.tolist() == first.labels.tolist()
        assert other.area == pytest.approx(first.area, abs=1e-6)
        for mine, theirs in zip(first.shapes, other.shapes, strict=True):
            points = [shape["polygons"][0] if task == "masks" else shape for shape in (mine, theirs)]
            assert np.allclose(points[0], points[1], atol=1e-6)


def test_convert_says_what_it_leaves_out_and_how_to_keep_it(tmp_path: Path) -> None:
    data = _coco_with(tmp_path / "in", segmentation=[[1, 2, 11, 2, 11, 22]], keypoints=[5, 5, 2])
    notes = " ".join(convert(data, tmp_path / "out", "yolo").notes)
    assert "1 mask was left out: `--task masks`" in notes
    assert "1 pose was left out: `--task keypoints`" in notes


def test_masks_of_several_parts_stay_whole_in_yolo_and_run_lengths_are_told_of(tmp_path: Path) -> None:
    content = coco_content()
    parts = [[1, 2, 11, 2, 11, 10, 1, 10], [20, 20, 40, 20, 40, 30, 20, 30]]
    runs = {"size": [SIZE[1], SIZE[0]], "counts": [10, 20, SIZE[0] * SIZE[1] - 30]}
    for annotation, shape in zip(content["annotations"], (parts, parts, runs), strict=True):
        annotation["segmentation"] = shape
    done = convert(write_coco(tmp_path / "in", content), tmp_path / "out", "yolo", task="masks")
    dataset = load_dataset(tmp_path / "out", task="masks")
    areas = np.concatenate([dataset.objects(i).area[~dataset.objects(i).crowd] for i in range(len(dataset))])
    assert areas.tolist() == [10 * 8 + 20 * 10]  # and the crowd, an ignored region
    assert any("1 mask of several parts" in note for note in done.notes)
    assert any("1 mask was left out with their objects" in note for note in done.notes)
