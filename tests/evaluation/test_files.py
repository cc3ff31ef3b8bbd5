"""Files of detections: what is written is read back, and what is broken is named with its place."""

from __future__ import annotations

import errno
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stepgrad.data import DetectionDataset, load_dataset
from stepgrad.data.judged_files import evidence_from
from stepgrad.data.read_detections import read_detections
from stepgrad.data.write_detections import write_coco_results, write_voc_results
from stepgrad.errors import DataError, InputError
from stepgrad.evaluation import Detections
from stepgrad.files import WriteError
from tests.data.builders import coco_content, write_coco, write_voc
from tests.evaluation.datasets import Entries, boxes_at, pred

GOOD = {"image_id": 4, "category_id": 18, "bbox": [1, 2, 10, 20], "score": 0.5}


@pytest.fixture
def voc(tmp_path: Path) -> DetectionDataset:
    return load_dataset(write_voc(tmp_path / "VOC"), class_names=["cat", "dog"], need_images=False)


@pytest.fixture
def coco(tmp_path: Path) -> DetectionDataset:
    return load_dataset(write_coco(tmp_path / "COCO"), need_images=False)


def random_preds(images: int, exact: bool) -> Entries:
    rng = np.random.default_rng(7)
    preds = []
    for _ in range(images):
        corner, size = rng.uniform(0, 50, (6, 2)), rng.uniform(1, 50, (6, 2))
        boxes = np.concatenate([corner, corner + size], axis=1)
        boxes = np.floor(boxes * 8) / 8 + [0, 0, 1, 1] if exact else boxes
        labels = rng.integers(0, 2, 6).tolist()
        preds.append(pred(torch.tensor(boxes), rng.random(6).tolist(), labels))
    return preds


def same_rows(found: Detections, preds: Entries, atol: float) -> None:
    """Files go class by class, so rows are compared in a common order."""
    there = np.concatenate([
        np.column_stack([np.full(len(p["scores"]), i), p["labels"], p["scores"], p["boxes"]]) for i, p in enumerate(preds)
    ])  # fmt: skip
    mine = np.column_stack([found.images, found.labels, found.scores, found.boxes])
    order = lambda rows: rows[np.lexsort((rows[:, 2], rows[:, 1], rows[:, 0]))]  # noqa: E731
    np.testing.assert_allclose(order(mine), order(there), rtol=0, atol=atol)


@pytest.mark.parametrize(("decimals", "exact", "atol"), [(6, False, 5.1e-7), (None, True, 0.0), (2, False, 5.1e-3)])
def test_voc_files_are_read_back(
    tmp_path: Path, voc: DetectionDataset, decimals: int | None, exact: bool, atol: float
) -> None:
    preds = random_preds(2, exact)
    paths = write_voc_results(tmp_path / "out", preds, voc.ids, voc.class_names, decimals=decimals)
    assert sorted(path.name for path in paths) == ["comp4_det_test_cat.txt", "comp4_det_test_dog.txt"]
    same_rows(read_detections(tmp_path / "out", voc).boxes(inclusive=False), preds, atol)


def test_voc_files_hold_one_based_inclusive_pixels_and_six_decimals(tmp_path: Path, voc: DetectionDataset) -> None:
    write_voc_results(tmp_path, [pred(boxes_at(0), [1 / 3], [1])], ["a"], ["cat", "dog"], prefix="comp4_det_val")
    line = (tmp_path / "comp4_det_val_dog.txt").read_text()
    assert line == "a 0.333333 1.000000 1.000000 10.000000 10.000000\n"
    assert (tmp_path / "comp4_det_val_cat.txt").read_text() == ""


@pytest.mark.parametrize("label", [2, 12, -1])
def test_a_label_without_a_name_is_refused_and_nothing_is_written(label: int, tmp_path: Path) -> None:
    preds = [pred(boxes_at(0), [0.5], [1]), pred(boxes_at(0, 20), [0.5, 0.4], [0, label])]
    message = f"image b: expected labels in .0, 2., the entries of .* but a detection has label {label}; .* background"
    with pytest.raises(InputError, match=message):
        write_voc_results(tmp_path / "out", preds, ["a", "b"], ["cat", "dog"])
    with pytest.raises(InputError, match=message):
        write_coco_results(tmp_path / "found.json", preds, ["a", "b"], [18, 17])
    assert list(tmp_path.iterdir()) == []


def test_coco_files_are_read_back(tmp_path: Path, coco: DetectionDataset) -> None:
    preds = random_preds(2, exact=True)
    write_coco_results(tmp_path / "found.json", preds, coco.ids, [18, 17])
    same_rows(read_detections(tmp_path / "found.json", coco).detections, preds, 0.0)
    entry = json.loads((tmp_path / "found.json").read_text())[0]
    assert set(entry) == {"image_id", "category_id", "bbox", "score"}
    assert entry["image_id"] == 4


def test_coco_detections_of_a_voc_folder_number_classes_from_one(tmp_path: Path, voc: DetectionDataset) -> None:
    write_coco_results(tmp_path / "found.json", random_preds(2, exact=True), voc.ids)
    same_rows(read_detections(tmp_path / "found.json", voc).detections, random_preds(2, exact=True), 0.0)


def test_detections_may_lie_under_annotations(tmp_path: Path, coco: DetectionDataset) -> None:
    (tmp_path / "found.json").write_text(json.dumps({"images": [], "annotations": [GOOD]}))
    assert read_detections(tmp_path / "found.json", coco).detections.boxes.tolist() == [[1, 2, 11, 22]]


def test_numbers_are_counted_in_the_convention_of_the_annotations(tmp_path: Path, voc: DetectionDataset) -> None:
    preds = [pred(torch.tensor([[10.0, 5, 30, 25]]), [0.9], [1]), pred(boxes_at(), [])]  # the dog of image a
    write_voc_results(tmp_path / "out", preds, voc.ids, voc.class_names)
    write_coco_results(tmp_path / "found.json", preds, voc.ids)
    from_text, from_json = (read_detections(tmp_path / name, voc) for name in ("out", "found.json"))
    for found in (from_text, from_json):
        as_they_stand, evidence = evidence_from(voc, found, as_they_stand=True), evidence_from(voc, found)
        for seen in (evidence, evidence.seen_with(1.0), as_they_stand.seen_with(0.0), as_they_stand.seen_with(1.0)):
            assert seen.detections.boxes.tolist() == [[11, 6, 30, 25]]
            assert seen.objects.boxes[0].tolist() == [11, 6, 30, 25]
        continuous = evidence.seen_with(0.0)  # 20 wide and high
        assert continuous.detections.boxes.tolist() == [[11, 6, 31, 26]]
        assert continuous.objects.boxes[0].tolist() == [11, 6, 31, 26]
        assert continuous.seen_with(1.0).detections.boxes.tolist() == [[11, 6, 30, 25]]


def test_coco_objects_keep_double_precision(tmp_path: Path) -> None:
    content = coco_content()
    content["annotations"][0].update(area=1023.9999999, bbox=[0.1, 0.2, 10.3, 20.4])  # the area is small: just so
    coco = load_dataset(write_coco(tmp_path, content), need_images=False)
    (tmp_path / "found.json").write_text(json.dumps([GOOD]))
    evidence = evidence_from(coco, read_detections(tmp_path / "found.json", coco))
    assert evidence.objects.area.tolist() == [2400.0, 1023.9999999, 400.0]
    assert evidence.objects.boxes[1].tolist() == [0.1, 0.2, 0.1 + 10.3, 0.2 + 20.4]
    assert evidence.objects.crowd.tolist() == [False, False, True]
    assert evidence.image_ids == [4, 9]


BAD_ENTRIES: dict[str, tuple[Any, str]] = {
    "unknown image": ({**GOOD, "image_id": 5}, "image 5 is not among the 2 images of instances; check .* same split"),
    "unknown category": ({**GOOD, "category_id": 1}, "unknown category_id 1; instances has 18 dog, 17 cat"),
    "NaN score": ({**GOOD, "score": float("nan")}, "expected a finite score but got nan"),
    "score in words": ({**GOOD, "score": "high"}, "expected a number as score but got 'high'"),
    "infinite box": ({**GOOD, "bbox": [0, 0, float("inf"), 1]}, r"expected a finite box but got \[0, 0, inf, 1\]"),
    "word in a box": ({**GOOD, "bbox": [0, 0, "1", 1]}, r"expected bbox .* but got \[0, 0, '1', 1\]"),
    "short box": ({**GOOD, "bbox": [0, 0, 1]}, r"expected bbox \[x, y, width, height\] but got \[0, 0, 1\]"),
    "reversed box": ({**GOOD, "bbox": [0, 0, -3, 5]}, "image 4: the box is -3 wide and 5 high; swap its corners"),
    "list as category": ({**GOOD, "category_id": [1]}, r"unknown category_id \[1\]; instances has 18 dog, 17 cat"),
    "list as image": ({**GOOD, "image_id": [4]}, r"image \[4\] is not among the 2 images"),
    "boundless score": ({**GOOD, "score": -(10**400)}, "expected a finite score but got -inf"),
    "boundless box": ({**GOOD, "bbox": [0, 0, 10**400, 1]}, r"expected a finite box but got \[0, 0, inf, 1\]"),
    "right edge beyond doubles": (
        {**GOOD, "bbox": [1e308, 0, 1e308, 5]},
        r"image 4: the box \[1e\+308, 0, 1e\+308, 5\] is too large",
    ),
    "area beyond doubles": ({**GOOD, "bbox": [0, 0, 1e154, 1e154]}, "image 4: the box .* is too large"),
    "area lost in rounding": ({**GOOD, "bbox": [0, 0, 1e-170, 1e-170]}, "image 4: the box .* is too small"),
    "no score": ({k: v for k, v in GOOD.items() if k != "score"}, "expected image_id, .* detections need a score"),
    "no entry": (7, "but got int"),
}


@pytest.mark.parametrize("key", GOOD)
def test_entry_nested_to_any_depth_is_refused(tmp_path: Path, coco: DetectionDataset, key: str) -> None:
    """Some depths can still be read but no longer be shown in a message."""
    path = tmp_path / "found.json"
    limit = sys.getrecursionlimit()
    for depth in [10, *range(limit - 150, limit + 10)]:
        path.write_text(json.dumps([{**GOOD, key: "VALUE"}]).replace('"VALUE"', "[" * depth + "]" * depth))
        with pytest.raises(DataError, match=f"{path}: "):
            read_detections(path, coco)


@pytest.mark.parametrize("case", BAD_ENTRIES)
def test_bad_entry_is_named_with_file_and_number(tmp_path: Path, coco: DetectionDataset, case: str) -> None:
    entry, message = BAD_ENTRIES[case]
    path = tmp_path / "found.json"
    path.write_text(json.dumps([GOOD, entry]))
    with pytest.raises(DataError, match=f"{path}: detection 1: .*{message}"):
        read_detections(path, coco)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'[{"image_id": 4, "cat', "is not JSON .*written to the end"),
        (b"\xff\xfe", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b'{"images": []}', "expected a list of detections .* but got NoneType"),
        (b"3", "expected a list of detections .* but got int"),
    ],
)
def test_damaged_json_is_named(tmp_path: Path, coco: DetectionDataset, content: bytes, message: str) -> None:
    path = tmp_path / "found.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"{path}: {message}"):
        read_detections(path, coco)


BAD_LINES = {
    "unknown image": ("zzz 0.5 1 1 9 9", "image 'zzz' is not among the 2 images"),
    "five words": ("a 0.5 1 1 9", "expected `image score xmin ymin xmax ymax` but got 'a 0.5 1 1 9'"),
    "no number": ("a 0.5 1 1 9 nine", "expected `image score"),
    "NaN score": ("a nan 1 1 9 9", "expected a finite score"),
    "infinite box": ("a 0.5 1 1 inf 9", "expected a finite box"),
    "reversed": ("a 0.5 9 1 1 9", "the box is -7 wide and 9 high"),
}


@pytest.mark.parametrize("case", BAD_LINES)
def test_bad_line_is_named_with_file_and_number(tmp_path: Path, voc: DetectionDataset, case: str) -> None:
    line, message = BAD_LINES[case]
    path = tmp_path / "comp4_det_test_dog.txt"
    path.write_text(f"a 0.9 1 1 9 9\n\n{line}\n")
    with pytest.raises(DataError, match=f"{path}, line 3: {message}"):
        read_detections(path, voc)


def test_text_that_is_none_is_named(tmp_path: Path, voc: DetectionDataset) -> None:
    path = tmp_path / "comp4_det_test_dog.txt"
    path.write_bytes(b"\x80\x81")
    with pytest.raises(DataError, match=f"{path}: cannot be read as text"):
        read_detections(path, voc)


@pytest.mark.parametrize("kind", ["voc", "coco"])
def test_boxes_without_area_pass_unless_they_are_to_be_refused(
    tmp_path: Path, voc: DetectionDataset, coco: DetectionDataset, kind: str
) -> None:
    if kind == "voc":
        path, dataset = tmp_path / "comp4_det_test_dog.txt", voc
        path.write_text("a 0.5 9 1 8 9\n")
    else:
        path, dataset = tmp_path / "found.json", coco
        path.write_text(json.dumps([{**GOOD, "bbox": [0, 0, 0, 9]}]))
    assert len(read_detections(path, dataset).detections) == 1
    with pytest.raises(DataError, match=r"the box is 0 wide and 9 high; .*--empty_boxes count"):
        read_detections(path, dataset, empty_boxes="error")


@pytest.mark.parametrize(
    ("ids", "written", "says"),
    [
        (range(1, 31), range(30), "from 0 to 29: add 1 to each"),
        (range(1, 31), range(2, 32), "from 2 to 31: subtract 1 from each"),
        (
            range(10, 310, 10),
            range(30),
            "from 0 to 29, which look like positions of the classes, counted from 0: write the id",
        ),
        (range(10, 310, 10), range(1, 31), "from 1 to 30, which look like positions of the classes, counted from 1"),
        (range(10, 310, 10), [7, 999], "from 7 to 999$"),
    ],
)
def test_unknown_categories_are_compared_with_those_of_the_data_without_listing_all(
    tmp_path: Path, ids: range, written: Sequence[int], says: str
) -> None:
    content = coco_content()
    content["categories"] = [{"id": i, "name": f"class{i}"} for i in ids]
    content["annotations"] = []
    data = load_dataset(write_coco(tmp_path, content), need_images=False)
    path = tmp_path / "found.json"
    path.write_text(json.dumps([{**GOOD, "category_id": c} for c in written]))
    listed = f"instances has 30 classes from {ids[0]} class{ids[0]} to {ids[-1]} class{ids[-1]}. The file has ids "
    with pytest.raises(DataError, match=re.escape(listed) + says):
        read_detections(path, data)


def test_folder_may_hold_other_texts_but_not_other_classes(tmp_path: Path, voc: DetectionDataset) -> None:
    (tmp_path / "comp4_det_test_dog.txt").write_text("a 0.9 1 1 9 9\n")
    (tmp_path / "README.txt").write_text("notes\n")
    found = read_detections(tmp_path, voc)
    assert found.missing == ("cat",)
    assert found.detections.labels.tolist() == [1]
    (tmp_path / "comp4_det_test_dig.txt").write_text("")
    with pytest.raises(
        DataError, match=r"comp4_det_test_dig.txt: 'dig' is not a class of the data.*Did you mean 'dog'"
    ):
        read_detections(tmp_path, voc)


def test_two_sets_in_one_folder_are_told_apart_by_a_pattern(tmp_path: Path, voc: DetectionDataset) -> None:
    for split in ("test", "val"):
        (tmp_path / f"comp4_det_{split}_dog.txt").write_text("a 0.9 1 1 9 9\n" * (1 + (split == "val")))
    with pytest.raises(DataError, match=r"comp4_det_val_dog.txt: comp4_det_test_dog.txt holds .*pattern"):
        read_detections(tmp_path, voc)
    assert len(read_detections(tmp_path / "comp4_det_val_*.txt", voc).detections) == 2
    assert len(read_detections(tmp_path / "comp4_det_test_dog.txt", voc).detections) == 1


@pytest.mark.parametrize("name", ["nothing", "absent.txt", "absent.json", "comp4_*.txt"])
def test_missing_detections_are_named(tmp_path: Path, voc: DetectionDataset, name: str) -> None:
    (tmp_path / "nothing").mkdir()
    with pytest.raises(DataError, match=r"no detections found|no such file|cannot be read"):
        read_detections(tmp_path / name, voc)


def test_class_names_that_end_alike_are_told_apart(tmp_path: Path) -> None:
    dataset = load_dataset(
        write_voc(tmp_path / "V", {"a": [("bike", 1, 1, 9, 9), ("motor_bike", 1, 1, 9, 9)]}), need_images=False
    )
    for name in dataset.class_names:
        (tmp_path / f"comp4_det_test_{name}.txt").write_text("a 0.9 1 1 9 9\n")
    assert read_detections(tmp_path, dataset).detections.labels.tolist() == [0, 1]


@pytest.mark.parametrize("kind", ["voc", "coco"])
def test_full_disk_overwrites_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    def write(score: float) -> None:
        preds = [pred(boxes_at(0, 30), [score, score], [0, 1])]
        if kind == "voc":
            write_voc_results(tmp_path, preds, ["a"], ["cat", "dog"])
        else:
            write_coco_results(tmp_path / "found.json", preds, ["a"])

    write(0.5)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    real, calls = os.fsync, iter(range(9))

    def full(handle: int) -> None:
        if kind == "coco" or next(calls) == 2:  # the second of two files; between them their folder is flushed
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        WriteError, match=rf"{tmp_path}/(found|comp4_det_test_dog).*: the disk is full.*nothing was over"
    ):
        write(0.9)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
