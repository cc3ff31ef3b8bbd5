"""Detections as `yolo val` saves them, on a YOLO folder: predictions.json, and a text file for each image."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepgrad.cli import main
from stepgrad.data import load_dataset
from stepgrad.data.judged_files import evidence_from
from stepgrad.data.read_detections import read_detections
from stepgrad.data.read_yolo_detections import COCO_CATEGORIES
from stepgrad.errors import DataError
from stepgrad.evaluation.result import evaluate_under
from stepgrad.metric.protocol import ULTRALYTICS
from tests.data.builders import SIZE, write_coco, write_yolo

WIDTH, HEIGHT = SIZE


def write_results(path: Path, rows: list[tuple[Any, int, list[float], float]]) -> Path:
    keys = ("image_id", "category_id", "bbox", "score")
    path.write_text(json.dumps([{**dict(zip(keys, row, strict=True)), "file_name": "a.jpg"} for row in rows]))
    return path


def read(path: Path, data: Path) -> list[tuple[str, int, float, list[float]]]:
    dataset = load_dataset(data, need_images=False)
    found = evidence_from(dataset, read_detections(path, dataset))
    d = found.detections
    return [
        (str(found.image_ids[i]), int(y), float(s), box.tolist())
        for i, y, s, box in zip(d.images, d.labels, d.scores, d.boxes, strict=True)
    ]


@pytest.mark.parametrize(
    ("categories", "labels"), [((1, 2), [0, 1]), ((0, 1), [0, 1]), ((1, 1), [0, 0]), ((0, 0), [0, 0])]
)
def test_categories_count_from_one_or_where_there_is_a_zero_from_zero(
    tmp_path: Path, categories: tuple[int, int], labels: list[int]
) -> None:
    data = write_yolo(tmp_path)
    rows = [("a", c, [1.0, 2.0, 10.0, 20.0], 0.9) for c in categories]
    found = read(write_results(tmp_path / "predictions.json", rows), data)
    assert [label for _, label, _, _ in found] == labels
    assert found[0][3] == [1.0, 2.0, 11.0, 22.0]


def test_categories_of_coco_are_known_where_there_are_its_80_classes(tmp_path: Path) -> None:
    assert len(COCO_CATEGORIES) == 80
    names = ", ".join(f"c{i}" for i in range(80))
    data = write_yolo(tmp_path, f"path: .\ntrain: images/train\nval: images/val\nnames: [{names}]\n")
    rows = [("a", c, [1.0, 2.0, 10.0, 20.0], 0.9) for c in (1, 13, 90)]
    found = read(write_results(tmp_path / "predictions.json", rows), data)
    assert [label for _, label, _, _ in found] == [0, 11, 79]


def test_a_category_that_fits_no_numbering_is_refused(tmp_path: Path) -> None:
    data = write_yolo(tmp_path)
    path = write_results(tmp_path / "predictions.json", [("a", 3, [1.0, 2.0, 10.0, 20.0], 0.9)])
    with pytest.raises(DataError, match="unknown category_id 3"):
        read(path, data)


def test_images_are_known_by_number_or_by_the_name_of_their_file(tmp_path: Path) -> None:
    labels = {"train/000012": "1 0.5 0.5 0.5 0.25\n", "val/c": "0 .5 .5 1 1"}
    data = write_yolo(tmp_path, labels=labels)
    rows: list[tuple[Any, int, list[float], float]] = [
        (12, 1, [0.0, 0.0, 5.0, 5.0], 0.9),
        ("c", 1, [0.0, 0.0, 5.0, 5.0], 0.8),
    ]
    assert [row[0] for row in read(write_results(tmp_path / "p.json", rows), data)] == ["000012", "c"]


def test_images_of_a_coco_file_are_known_by_the_name_of_their_file_too(tmp_path: Path) -> None:
    data = write_coco(tmp_path)
    content = json.loads(data.read_text())
    image, category = content["images"][0], content["categories"][0]["id"]
    path = write_results(tmp_path / "p.json", [(Path(image["file_name"]).stem, category, [0.0, 0.0, 5.0, 5.0], 0.9)])
    assert [row[0] for row in read(path, data)] == [str(image["id"])]


def write_text(folder: Path, **files: str) -> Path:
    (folder / "labels").mkdir(parents=True)
    for name, text in files.items():
        (folder / "labels" / f"{name}.txt").write_text(text)
    return folder


@pytest.mark.parametrize("place", ["val", "val/labels"])
def test_text_files_hold_shares_of_the_image_and_the_score(tmp_path: Path, place: str) -> None:
    data = write_yolo(tmp_path / "data")
    write_text(tmp_path / "val", a="1 0.5 0.5 0.5 0.25 0.9\n\n", c="0 0.5 0.5 1 1 0.25\n")
    found = read(tmp_path / place, data)
    assert found == [
        ("a", 1, 0.9, [WIDTH / 4, HEIGHT * 3 / 8, WIDTH * 3 / 4, HEIGHT * 5 / 8]),
        ("c", 0, 0.25, [0.0, 0.0, float(WIDTH), float(HEIGHT)]),
    ]


def test_text_files_may_be_named_after_the_folders_of_an_image(tmp_path: Path) -> None:
    data = write_yolo(tmp_path / "data")
    write_text(tmp_path / "val", train_a="1 0.5 0.5 0.5 0.25 0.9\n")
    assert [row[0] for row in read(tmp_path / "val", data)] == ["a"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 0.5 0.5 0.5 0.25", "save_conf"),
        ("1 0.5 0.5 0.5", "expected `class cx cy w h conf`"),
        ("dog 0.5 0.5 0.5 0.5 0.9", "expected `class cx cy w h conf`"),
        ("2 0.5 0.5 0.5 0.25 0.9", "expected a class from 0 to 1 but got 2"),
        ("0.5 0.5 0.5 0.5 0.25 0.9", "expected a class from 0 to 1 but got 0.5"),
        ("1 0.5 0.5 nan 0.25 0.9", "expected a finite box"),
        ("1 0.5 0.5 0.5 0.25 inf", "expected a finite score"),
    ],
)
def test_a_line_that_cannot_be_judged_is_named(tmp_path: Path, line: str, message: str) -> None:
    data = write_yolo(tmp_path / "data")
    write_text(tmp_path / "val", a=f"1 0.5 0.5 0.5 0.25 0.9\n{line}\n")
    with pytest.raises(DataError, match=r"a\.txt, line 2.*" + message):
        read(tmp_path / "val", data)


def test_the_labels_themselves_with_scores_are_a_perfect_detector(tmp_path: Path) -> None:
    labels = {"train/a": "1 0.5 0.5 0.5 0.25\n0 0.25 0.5 0.5 1\n", "val/c": "0 .5 .5 1 1\n"}
    data = write_yolo(tmp_path / "data", labels=labels)
    scored = {name.split("/")[1]: text.replace("\n", " 0.9\n") for name, text in labels.items()}
    dataset = load_dataset(data, need_images=False)
    evidence = evidence_from(dataset, read_detections(write_text(tmp_path / "val", **scored), dataset))
    assert evaluate_under(evidence, ULTRALYTICS).map == pytest.approx(0.995, abs=1e-12)


def test_the_command_compares_counts_mistakes_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_yolo(tmp_path / "data")
    folder = write_text(tmp_path / "val", a="1 0.5 0.5 0.5 0.15 0.9\n0 0.25 0.5 0.5 1 0.8\n", c="1 0.5 0.5 1 1 0.7\n")
    arguments = ["evaluate", "--detections", str(folder), "--data", str(data), "--errors", "true"]
    files = {name: tmp_path / f"{name}.png" for name in ("draw", "plot_errors")}
    named = [part for name, path in files.items() for part in (f"--{name}", str(path))]
    compare = ["--compare", "ultralytics", "coco", "torchmetrics", "voc12", "--report", str(tmp_path / "numbers.json")]
    assert main([*arguments, *compare, *named]) == 0
    text = capsys.readouterr().out
    assert "points: " in text
    assert "what fixing each mistake would gain" in text
    content = json.loads((tmp_path / "numbers.json").read_text())
    assert content["errors"]["counts"]["class"] == 1
    assert set(content["pairs"][0]["points"]) >= {"interpolation", "max detections"}
    assert all(path.read_bytes()[:4] == b"\x89PNG" for path in files.values())


def test_a_box_of_negative_height_is_named_with_its_sides_in_pixels(tmp_path: Path) -> None:
    data = write_yolo(tmp_path / "data")
    write_text(tmp_path / "val", a="1 0.5 0.5 0.5 -0.25 0.9\n")
    with pytest.raises(DataError, match=f"{WIDTH // 2} wide and -{HEIGHT // 4} high"):
        read(tmp_path / "val", data)
