"""`stepgrad doctor DATA --detections`: wrong labels, their page, and a new file with what was accepted."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from stepgrad.cli import main
from stepgrad.data import load_dataset
from tests.data.builders import DOG, write_voc
from tests.data.wrong_labels import BOX, listed, review_of, write_wrong_labels


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_wrong_labels(tmp_path)


def test_each_wrong_label_is_printed_and_where_detections_must_come_from(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert listed(data) == 0
    output = capsys.readouterr().out
    for kind in ("add", "swap", "redraw", "remove"):
        assert len(re.findall(rf"\b{kind}\b", output)) == 1
    assert "4 labels whose change would gain mAP" in output
    assert "did not train on these labels" in output
    assert listed(data, "--kinds", "swap", "remove", "--order", "gain", "--limit", "1") == 0
    output = capsys.readouterr().out
    assert len(re.findall(r"\b(swap|remove)\b", output)) == 1
    assert "2 labels" in output


def test_accepted_changes_go_to_a_new_file_and_nothing_else_changes(data: Path, tmp_path: Path) -> None:
    page, before = tmp_path / "review.html", data.read_bytes()
    assert listed(data, "--out", str(page)) == 0
    (tmp_path / "review.json").write_text(json.dumps(review_of(page, "add", "swap", "redraw", "remove")))
    new = tmp_path / "new.json"
    assert main(["doctor", str(data), "--apply", str(tmp_path / "review.json"), "--out", str(new)]) == 0
    assert data.read_bytes() == before
    content, old = json.loads(new.read_text()), json.loads(before)
    assert {key: content[key] for key in ("info", "images", "categories")} == {
        key: old[key] for key in ("info", "images", "categories")
    }
    by_id = {entry["id"]: entry for entry in content["annotations"]}
    assert sorted(by_id) == [11, 12, 13, 14, 15, 17]
    assert [by_id[n] for n in (11, 12, 15)] == [old["annotations"][n - 11] for n in (11, 12, 15)]
    assert by_id[13] == {**old["annotations"][2], "category_id": 10}
    assert (by_id[14]["bbox"], by_id[14]["area"], "segmentation" in by_id[14]) == (BOX["dog"], 100.0, False)
    added = {"image_id": 1, "category_id": 3, "bbox": BOX["forgotten"], "area": 100.0, "iscrowd": 0}
    assert by_id[17] == {"id": 17, **added}
    assert len(load_dataset(new, need_images=False)) == 4


def test_what_is_not_accepted_is_not_written(data: Path, tmp_path: Path) -> None:
    page = tmp_path / "review.html"
    listed(data, "--out", str(page))
    review, new = tmp_path / "review.json", tmp_path / "new.json"
    review.write_text(json.dumps(review_of(page)))
    assert main(["doctor", str(data), "--apply", str(review), "--out", str(new)]) == 0
    assert json.loads(new.read_text()) == json.loads(data.read_text())


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda review: {**review, "labels": "other"}, "other labels"),
        (lambda review: review["changes"], "exported"),
        (lambda review: {**review, "changes": [{**review["changes"][0], "box": [0, 0, 0, 5]}]}, "box"),
        (lambda review: {**review, "changes": [{**review["changes"][0], "class": "horse"}]}, "class"),
        (lambda review: {**review, "changes": [{**review["changes"][0], "image": 99}]}, "99"),
        (lambda review: {**review, "changes": [{**review["changes"][0], "kind": "swap", "object": 5}]}, "object 5"),
        (lambda review: {**review, "changes": [{"kind": "add"}]}, "missing"),
        (lambda review: {**review, "changes": [7]}, "got 7"),
    ],
)
def test_a_review_that_does_not_fit_is_refused_and_nothing_is_written(
    data: Path, tmp_path: Path, damage: Any, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    page, review, new = (tmp_path / name for name in ("review.html", "review.json", "new.json"))
    listed(data, "--out", str(page))
    review.write_text(json.dumps(damage(review_of(page, "add"))))
    assert main(["doctor", str(data), "--apply", str(review), "--out", str(new)]) != 0
    assert says in capsys.readouterr().err
    assert not new.exists()


def test_a_review_of_data_that_has_changed_is_refused(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, review, new = (tmp_path / name for name in ("review.html", "review.json", "new.json"))
    listed(data, "--out", str(page))
    review.write_text(json.dumps(review_of(page, "add")))
    words = ["doctor", str(data), "--apply", str(review), "--out"]
    assert main([*words, str(data)]) != 0  # never in place
    assert "exists already" in capsys.readouterr().err
    data.write_text(data.read_text().replace("[2, 2, 10, 10]", "[2, 2, 10, 11]", 1))
    assert main([*words, str(new)]) != 0
    assert "other labels" in capsys.readouterr().err


def test_voc_folders_have_a_page_and_are_converted_before_they_are_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, page = write_voc(tmp_path / "V", {"a": [DOG]}, {"train": "a"}), tmp_path / "review.html"
    found = tmp_path / "found.json"
    found.write_text(json.dumps([{"image_id": "a", "category_id": 12, "bbox": [40, 20, 9, 9], "score": 0.9}]))
    assert main(["doctor", str(folder), "--detections", str(found), "--out", str(page)]) == 0
    assert "stepgrad convert" in capsys.readouterr().out
    review, new = tmp_path / "review.json", tmp_path / "new.json"
    review.write_text(json.dumps(review_of(page)))
    assert main(["doctor", str(folder), "--apply", str(review), "--out", str(new)]) != 0
    assert "stepgrad convert" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--out", "page.html"], "--detections"),
        (["--kinds", "add"], "--detections"),
        (["--apply", "review.json"], "--out"),
        (["--detections", "found.json", "--out", "page.json"], "review.html"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    data: Path, words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", str(data), *words]) != 0
    assert says in capsys.readouterr().err
