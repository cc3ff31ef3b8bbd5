"""A dataset in another format: nothing is lost that the format can hold, and what it cannot is told."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from stepgrad.cli import main
from stepgrad.data import DetectionDataset, load_dataset
from stepgrad.data.convert import convert
from stepgrad.data.doctor import examine
from stepgrad.data.images import EXIF_ORIENTATION
from stepgrad.errors import ConfigError, DataError
from tests.data.builders import (
    SIZE,
    coco_content,
    shared_data,
    voc_xml,
    write_coco,
    write_image,
    write_voc,
    write_yolo,
)

BOUND = 1e-6
"""Pixels by which a box may move in a round trip."""


def assert_same(before: DetectionDataset, after: DetectionDataset, flags: bool = True) -> None:
    """The same ids, images, classes and objects in the same order, boxes to the bound."""
    assert list(map(str, after.ids)) == list(map(str, before.ids))
    assert after.class_names == before.class_names
    for i in range(len(before)):
        old, new = before.target(i), after.target(i)
        assert new["labels"].tolist() == old["labels"].tolist()
        assert np.abs(after.exact_boxes(i) - before.exact_boxes(i)).max(initial=0.0) <= BOUND
        assert after.image(i).size == before.image(i).size
        assert after.fingerprint(i) == before.fingerprint(i)
        if flags:
            assert new["difficult"].tolist() == old["difficult"].tolist()
            assert new["iscrowd"].tolist() == old["iscrowd"].tolist()


def odd_boxes(count: int = 40) -> list[tuple[Any, ...]]:
    """VOC objects anywhere in the image, to a thousandth of a pixel."""
    random = np.random.default_rng(3)
    low = random.uniform(1, 30, (count, 2)).round(3)
    high = (low + random.uniform(0, 9, (count, 2))).round(3)
    return [("dog", *corners) for corners in np.concatenate([low, high], axis=1).tolist()]


def test_voc_comes_back_from_yolo(tmp_path: Path) -> None:
    objects = {"b": odd_boxes(), "a": [("cat", 1, 1, 60, 40)], "c": [("dog", 0, 0, 40, 38)]}
    root = write_voc(tmp_path / "V", objects, {"train": "b\na\n", "val": "c\n", "trainval": "c\nb\na\n"})
    (root / "Annotations/z.xml").write_text(voc_xml([]))
    write_image(root / "JPEGImages/z.jpg", seed=9)
    (root / "classes.txt").write_text("dog\ncat\n")
    convert(root, tmp_path / "Y", "yolo")
    convert(tmp_path / "Y", tmp_path / "W", "voc")
    notes = convert(root, tmp_path / "C", "coco").notes
    assert [note.split(" got")[0] for note in notes] == ["4 images"]  # numbered, those of two splits once
    assert convert(tmp_path / "C", tmp_path / "D", "yolo").images == 4  # a picture of two splits is one
    for split in ("train", "val", "trainval"):
        assert_same(load_dataset(root, split), load_dataset(tmp_path / "Y", split))
        assert_same(load_dataset(root, split), load_dataset(tmp_path / "W", split))
    assert sorted(load_dataset(tmp_path / "W").ids) == ["a", "b", "c", "z"]
    whole = ("xmin", "ymin", "xmax", "ymax")
    text = (tmp_path / "W/Annotations/a.xml").read_text()
    assert all(f"<{corner}>{value}</{corner}>" in text for corner, value in zip(whole, (1, 1, 60, 40), strict=True))


def test_coco_comes_back_from_yolo_and_voc(tmp_path: Path) -> None:
    content = coco_content()
    content["annotations"] = [
        {"id": 1, "image_id": 9, "category_id": 17, "bbox": [1.125, 2.3, 10.7, 20.01]},
        {"id": 3, "image_id": 4, "category_id": 18, "bbox": [0, 0, 60, 40]},
    ]
    before = load_dataset(write_coco(tmp_path / "C", content))
    for to in ("yolo", "voc"):
        done = convert(tmp_path / "C", tmp_path / to, to)
        assert "2 category ids were not kept" in done.notes[0]
        assert "2 image files were named after the id" in done.notes[1]
        convert(tmp_path / to, tmp_path / f"from_{to}", "coco")
        after = load_dataset(tmp_path / f"from_{to}", "train")
        assert list(after.ids) == [4, 9]
        assert_same(before, after)


def test_yolo_comes_back_from_coco(tmp_path: Path) -> None:
    labels = {"train/x": "0 .3 .4 .123456 .2\n1 .5 .5 1 1\n", "train/y": "", "val/x": "1 .1 .2 .05 .0625"}
    path = write_yolo(tmp_path / "Y", labels=labels)
    regions = {"val/x": [[1, 2, 30.5, 20]]}
    (tmp_path / "Y/ignored_regions.json").write_text(json.dumps(regions))
    done = convert(path, tmp_path / "C", "coco")
    assert [note.split(":")[0] for note in done.notes] == [
        "3 images got a number from 1 as id, as in COCO; the entry keeps the name"
    ]
    assert list(load_dataset(tmp_path / "C", "train").ids) == [1, 2]
    back = convert(tmp_path / "C", tmp_path / "Z", "yolo")
    assert back.notes == ()
    for split in ("train", "val"):
        assert_same(load_dataset(path, split), load_dataset(tmp_path / "Z", split))
    assert json.loads((tmp_path / "Z/ignored_regions.json").read_text()) == regions


def test_coco_to_coco_keeps_everything(tmp_path: Path) -> None:
    before = load_dataset(write_coco(tmp_path / "C"))
    done = convert(tmp_path / "C", tmp_path / "D", "coco")
    after = load_dataset(tmp_path / "D")
    assert_same(before, after)
    assert done.notes == ()
    assert after.category_ids == before.category_ids == (18, 17)  # type: ignore[attr-defined]
    assert after.target(1)["area"].tolist() == before.target(1)["area"].tolist() == [77.5, 400]


def test_what_yolo_cannot_hold_is_told_once_per_kind_with_counts(tmp_path: Path) -> None:
    write_coco(tmp_path / "C")
    notes = convert(tmp_path / "C", tmp_path / "Y", "yolo").notes
    assert [note.split(" ", 1)[0] for note in notes] == ["1", "2", "2"]
    assert [word in note for word, note in zip(("area", "category", "ids"), notes, strict=True)] == [True] * 3


def test_a_crowd_of_one_class_comes_back_from_yolo(tmp_path: Path) -> None:
    before = load_dataset(write_coco(tmp_path / "C"))
    convert(tmp_path / "C", tmp_path / "Y", "yolo")
    after = load_dataset(tmp_path / "Y")
    found = [(t["labels"][t["iscrowd"] > 0], t["boxes"][t["iscrowd"] > 0]) for t in (before.target(1), after.target(1))]
    assert len(found[0][0]) == 1
    for old, new in zip(*found, strict=True):
        torch.testing.assert_close(new, old)
    (regions,) = json.loads((tmp_path / "Y/ignored_regions.json").read_text()).values()
    assert regions[0][4] == before.class_names[int(found[0][0])]


@pytest.mark.parametrize(
    ("difficult", "left", "word"), [("keep", 2, "ordinary"), ("drop", 1, "left out"), ("ignore", 2, "ignored region")]
)
@pytest.mark.parametrize("to", ["yolo", "coco"])
def test_difficult_objects_are_kept_or_dropped_and_told(
    tmp_path: Path, to: Any, difficult: Any, left: int, word: str
) -> None:
    root = write_voc(tmp_path / "V", {"7": [("dog", 1, 1, 9, 9)]}, {"train": "7"})
    hard = voc_xml([("cat", 2, 2, 9, 9)], difficult="1")
    text = voc_xml([("dog", 1, 1, 9, 9)]).replace("</annotation>", hard[hard.index("<object>") :])
    (root / "Annotations/7.xml").write_text(text)
    assert load_dataset(root).target(0)["difficult"].tolist() == [False, True]
    (note,) = convert(root, tmp_path / "out", to, difficult=difficult).notes
    assert note.startswith("1 ")
    assert "difficult" in note
    assert word in note
    assert len(load_dataset(tmp_path / "out", "train").target(0)["labels"]) == left


def test_crowds_are_left_out_of_voc_and_narrow_boxes_widened(tmp_path: Path) -> None:
    labels = {"train/a": "0 .5 .5 .001 .5\n", "val/c": ""}
    path = write_yolo(tmp_path / "Y", labels=labels)
    (tmp_path / "Y/ignored_regions.json").write_text('{"train/a": [[0, 0, 9, 9]]}')
    notes = convert(path, tmp_path / "V", "voc").notes
    assert [note.split()[1] for note in notes] == ["crowd", "box"]
    assert examine(tmp_path / "V", "train").errors == 0
    assert load_dataset(tmp_path / "V", "train").exact_boxes(0)[0].tolist() == [29.97, 10, 30.97, 30]


def test_boxes_far_beyond_the_image_are_cut_for_yolo(tmp_path: Path) -> None:
    objects = {"a": [("dog", -20, 5, 30, 30), ("dog", 0.7, 1, 60, 40), ("dog", 100, 1, 120, 9), ("dog", 1, 1, 200, 9)]}
    root = write_voc(tmp_path / "V", objects, {"train": "a"})
    notes = convert(root, tmp_path / "Y", "yolo").notes
    assert [note.split()[1] for note in notes] == ["box", "box", "object"]  # beyond, cut, outside
    assert load_dataset(tmp_path / "Y").exact_boxes(0).round(6).tolist() == [
        [-21, 4, 30, 30],
        [-0.3, 0, 60, 40],
        [0, 0, 60, 9],
    ]


def test_images_are_copied_or_linked(tmp_path: Path) -> None:
    path = write_yolo(tmp_path / "Y")
    convert(path, tmp_path / "copied", "yolo")
    notes = convert(path, tmp_path / "linked", "voc", pictures="link").notes
    assert any("3 images were linked" in note and "--images_outside" in note for note in notes)
    assert not (tmp_path / "copied/images/train/a.jpg").is_symlink()
    assert (tmp_path / "linked/JPEGImages/a.jpg").is_symlink()
    with pytest.raises(DataError, match="--images_outside"):
        load_dataset(tmp_path / "linked", "train")
    assert load_dataset(tmp_path / "linked", "train", images_outside=True).image(0).size == SIZE


@pytest.mark.parametrize("orientation", [2, 3, 6, 8])
@pytest.mark.parametrize(("start", "to"), [("yolo", "voc"), ("yolo", "coco"), ("voc", "yolo"), ("coco", "yolo")])
def test_turned_images_keep_their_boxes_on_the_same_pixels(
    tmp_path: Path, start: str, to: Any, orientation: int
) -> None:
    write = {"yolo": write_yolo, "voc": write_voc, "coco": write_coco}
    write[start](tmp_path / start)  # type: ignore[operator]
    exif = Image.Exif()
    exif[EXIF_ORIENTATION] = orientation
    for path in (tmp_path / start).rglob("*.jpg"):
        write_image(path, exif=exif, quality=95, seed=4)
    done = convert(tmp_path / start, tmp_path / "out", to)
    assert any("saved again" in note for note in done.notes)
    before, after = load_dataset(tmp_path / start, None), load_dataset(tmp_path / "out", "train")
    index = 0  # of both the first, whatever its id
    assert after.image(0).size == before.image(index).size
    difference = np.abs(np.asarray(after.image(0), dtype=float) - np.asarray(before.image(index), dtype=float))
    assert difference.mean() < 12  # noise stored twice as JPEG; another turn of it differs by some 80
    assert np.abs(after.exact_boxes(0) - before.exact_boxes(index)[: len(after.exact_boxes(0))]).max() <= BOUND


def test_shapes_become_files(tmp_path: Path) -> None:
    done = convert("shapes:length=3", tmp_path / "Y", "yolo")
    assert done.splits == {"train": 3, "val": 3, "test": 3}
    assert "path" not in yaml.safe_load(
        (tmp_path / "Y/data.yaml").read_text()
    )  # others seek it in the working directory
    drawn, stored = load_dataset("shapes:val,length=3"), load_dataset(tmp_path / "Y", "val")
    for i in range(3):
        assert np.array_equal(np.asarray(drawn.image(i)), np.asarray(stored.image(i)))
        assert np.abs(drawn.exact_boxes(i) - stored.exact_boxes(i)).max() <= BOUND
    convert("shapes:val,length=3", tmp_path / "C", "coco")
    assert list(load_dataset(tmp_path / "C").ids) == [0, 1, 2]


def test_one_split_alone_can_be_written(tmp_path: Path) -> None:
    path = write_yolo(tmp_path / "Y")
    assert convert(path, tmp_path / "C", "coco", "val").splits == {"val": 1}
    assert sorted(file.name for file in (tmp_path / "C/annotations").iterdir()) == ["instances_val.json"]


def test_equal_names_in_two_splits_are_told_apart(tmp_path: Path) -> None:
    labels = {"train/a": "0 .5 .5 1 1", "val/a": "1 .5 .5 1 1"}
    notes = convert(write_yolo(tmp_path / "Y", labels=labels), tmp_path / "V", "voc").notes
    assert load_dataset(tmp_path / "V").ids == ["train_a", "val_a"]
    assert load_dataset(tmp_path / "V", "val").target(0)["labels"].tolist() == [1]
    assert ["renamed" in note for note in notes] == [True]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such file names")
@pytest.mark.parametrize("name", ["new\nline", "IMG 1", "50%", "CON", " x", "ö"])
def test_any_name_of_an_image_becomes_a_file_in_its_folder(tmp_path: Path, name: str) -> None:
    path = write_yolo(tmp_path / "Y", labels={f"train/{name}": "0 .5 .5 1 1", "val/c": ""})
    for to in ("voc", "coco", "yolo"):
        convert(path, tmp_path / to, to)
        dataset = load_dataset(tmp_path / to, "train")
        assert (len(dataset), dataset.target(0)["labels"].tolist()) == (1, [0])


def test_classes_that_voc_cannot_write_are_refused(tmp_path: Path) -> None:
    path = write_yolo(tmp_path / "Y", 'train: images/train\nval: images/val\nnames: ["a\\nb", "</name>"]\n')
    with pytest.raises(DataError, match="cannot be written to a VOC folder"):
        convert(path, tmp_path / "V", "voc")
    assert not (tmp_path / "V").exists()
    assert load_dataset(_converted(path, tmp_path / "Z", "yolo")).class_names == ("a\nb", "</name>")
    assert load_dataset(_converted(path, tmp_path / "C", "coco"), "train").class_names == ("a\nb", "</name>")


def _converted(path: Path, out: Path, to: Any) -> Path:
    convert(path, out, to)
    return out


def test_a_folder_that_is_there_is_refused_and_untouched(tmp_path: Path) -> None:
    path = write_yolo(tmp_path / "Y")
    (tmp_path / "out").mkdir()
    with pytest.raises(DataError, match="exists already"):
        convert(path, tmp_path / "out", "voc")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_a_conversion_that_stops_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    path = write_yolo(tmp_path / "Y")
    before = sorted(tmp_path.rglob("*"))

    def stop(done: int, total: int) -> None:
        if done == 2:
            raise error

    with pytest.raises((KeyboardInterrupt, DataError)):
        convert(path, tmp_path / "out", "voc", progress=stop)
    assert sorted(tmp_path.rglob("*")) == before


def test_coco_files_with_other_classes_are_not_mixed(tmp_path: Path) -> None:
    write_coco(tmp_path / "C")
    content = coco_content()
    content["categories"][0]["name"] = "emu"
    (tmp_path / "C/annotations").mkdir()
    (tmp_path / "C/instances.json").rename(tmp_path / "C/annotations/instances_train.json")
    (tmp_path / "C/annotations/instances_val.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match="has other categories than"):
        convert(tmp_path / "C", tmp_path / "Y", "yolo")


def test_the_command_converts_and_tells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_coco(tmp_path / "C")
    assert main(["convert", str(tmp_path / "C"), "--to", "yolo", str(tmp_path / "Y")]) == 0
    shown = capsys.readouterr().out
    assert "2 images in" in shown
    assert "note: 1 area was lost" in shown
    assert main(["convert", str(tmp_path / "C"), str(tmp_path / "Z")]) == 2
    assert "parameter --to requires an argument" in capsys.readouterr().err
    assert main(["convert", str(tmp_path / "C"), "--to", "yolo", str(tmp_path / "Y")]) == 2
    assert "exists already" in capsys.readouterr().err


def test_real_blood_cells_come_back_from_yolo_and_coco(tmp_path: Path) -> None:
    root = shared_data("BCCD")
    convert(root, tmp_path / "Y", "yolo", pictures="link")
    convert(tmp_path / "Y", tmp_path / "C", "coco", pictures="link", images_outside=True)
    convert(tmp_path / "C", tmp_path / "V", "voc", pictures="link", images_outside=True)
    for split in ("train", "val", "test"):
        before, after = load_dataset(root, split), load_dataset(tmp_path / "V", split, images_outside=True)
        assert list(after.ids) == list(before.ids)
        for i in range(len(before)):
            names = [before.class_names[label] for label in before.target(i)["labels"]]
            assert [after.class_names[label] for label in after.target(i)["labels"]] == names
            assert np.abs(after.exact_boxes(i) - before.exact_boxes(i)).max(initial=0.0) <= BOUND


def test_an_unknown_format_is_refused_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Expected to .*yolo"):
        convert("shapes:length=1", tmp_path / "out", "pascal")
