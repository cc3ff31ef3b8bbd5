"""The doctor on objects and splits: copies of images, repeated objects, boxes of two classes, crowds, thin boxes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from stepgrad.cli import main
from stepgrad.data.convert import convert
from stepgrad.data.doctor import examine
from tests.data.builders import (
    CAT,
    DOG,
    VOCObject,
    coco_content,
    shared_data,
    write_coco,
    write_image,
    write_voc,
    write_yolo,
)
from tests.data.diagnoses import expect, healthy_folder, only


@pytest.mark.parametrize("name", ["a.jpg", "other.jpg"])
def test_an_image_of_val_that_is_a_copy_of_one_of_train_is_found_under_any_name(tmp_path: Path, name: str) -> None:
    path = write_yolo(tmp_path)
    place = tmp_path / "images/val" / name
    shutil.copy(tmp_path / "images/train/a.jpg", place)
    (tmp_path / "labels/val" / name).with_suffix(".txt").write_text("0 .5 .5 1 1")
    what = f"val: 1 of 2 images is in train too, first {place}, a copy of {tmp_path / 'images/train/a.jpg'}"
    expect(examine(path), path, "splits-overlap", "warning", what)
    assert examine(path, need_images=False).problems == ()


def test_copies_are_counted_for_every_pair_of_splits(tmp_path: Path) -> None:
    path = write_yolo(tmp_path, "train: images/train\nval: images/val\ntest: images/test\nnames: [cat, dog]\n")
    for part in ("images", "labels"):
        shutil.rmtree(tmp_path / part / "val")
        for split in ("val", "test"):
            shutil.copytree(tmp_path / part / "train", tmp_path / part / split)
    texts = [problem.what for problem in examine(path).problems]
    assert [text.partition(" too")[0] for text in texts] == [
        "val: 2 of 2 images are in train",
        "test: 2 of 2 images are in train",
        "test: 2 of 2 images are in val",
    ]


def test_a_copy_in_a_voc_folder_is_found(tmp_path: Path) -> None:
    root = write_voc(tmp_path / "V", {"a": [DOG, CAT], "b": [DOG]}, {"train": "a", "val": "b"})
    (root / "classes.txt").write_text("cat\ndog\n")
    assert examine(root).problems == ()
    shutil.copy(root / "JPEGImages/a.jpg", root / "JPEGImages/b.jpg")
    assert only(examine(root)).kind == "splits-overlap"


def test_images_of_the_same_size_in_bytes_are_no_copies(tmp_path: Path) -> None:
    path = write_yolo(tmp_path)
    write_image(tmp_path / "images/train/a.jpg", format="BMP", seed=1)
    write_image(tmp_path / "images/val/c.jpg", format="BMP", seed=2)
    assert {problem.kind for problem in examine(path).problems} == {"image-format"}


def test_ignored_regions_are_no_objects_of_any_class(tmp_path: Path) -> None:
    path = write_yolo(tmp_path)
    before = examine(path).summary
    (tmp_path / "ignored_regions.json").write_text(json.dumps({"val/c": [[1, 2, 3, 4], [2, 3, 59, 39]]}))
    after = examine(path).summary
    for old, new in zip((*before.classes, before.total), (*after.classes, after.total), strict=True):
        assert (new.images, new.objects, new.sides) == (old.images, old.objects, old.sides)
        assert (old.crowd, new.crowd) == (0, 2)
    assert examine(path).problems == ()


def test_a_class_with_crowds_alone_has_no_objects(tmp_path: Path) -> None:
    content = coco_content()
    content["annotations"][2]["iscrowd"] = 1
    diagnosis = examine(write_coco(tmp_path, content))
    assert only(diagnosis).what == "1 class has no objects that are counted: dog"
    assert (diagnosis.summary.total.objects, diagnosis.summary.without_objects) == (1, 1)


def folder_with(tmp_path: Path, kind: str, objects: list[VOCObject]) -> tuple[Path, Path]:
    """A dataset of one format whose second image has these objects, and the file that the doctor should name."""
    root = healthy_folder(tmp_path)
    voc = write_voc(tmp_path / "made", {"a": [DOG, CAT], "b": objects}, {"train": "a\nb\n"})
    shutil.copy(root / "classes.txt", voc / "classes.txt")
    if kind == "voc":
        return voc, voc / "Annotations/b.xml"
    convert(voc, tmp_path / kind, kind)  # type: ignore[arg-type]
    if kind == "yolo":
        return tmp_path / "yolo", tmp_path / "yolo/labels/train/b.txt"
    return tmp_path / "coco", Path(f"{tmp_path / 'coco/annotations/instances_train.json'}, image 2")


@pytest.mark.parametrize(("kind", "word"), [("voc", "object 1"), ("yolo", "line 2"), ("coco", "annotation 4")])
@pytest.mark.parametrize(
    ("second", "problem", "what"),
    [
        (("dog", 11.3, 6, 30, 25.2), "near-duplicate", "{} (dog) has nearly the same box as"),
        (("cat", 11, 6, 30, 25), "two-classes", "{} (cat) has the same box as"),
        (("cat", 11, 6.2, 30, 25), "two-classes", "{} (cat) has the same box as"),
        (("cat", 20, 6, 20, 25), "box-one-pixel", "{} (cat): the box is one pixel wide"),
    ],
)
def test_each_format_gets_the_same_warnings(
    tmp_path: Path, kind: str, word: str, second: VOCObject, problem: str, what: str
) -> None:
    data, file = folder_with(tmp_path, kind, [DOG, second])
    expect(examine(data), file, problem, "warning", what.format(word))


def test_boxes_of_less_than_a_pixel_are_pointed_out(tmp_path: Path) -> None:
    path = write_yolo(tmp_path, labels={"train/a": "1 .5 .5 1 1\n0 .5 .5 .4 .01", "val/c": ""})
    what = "line 2 (cat): the box is 0.40 pixels high"
    expect(examine(path), tmp_path / "labels/train/a.txt", "box-one-pixel", "warning", what)


@pytest.mark.parametrize("kind", ["voc", "coco"])
def test_objects_pasted_twice_are_one_warning(tmp_path: Path, kind: str) -> None:
    objects: list[VOCObject] = [("dog", 2 * i + 1, 1, 2 * i + 9, 9) for i in range(22)]
    data, file = folder_with(tmp_path, kind, [*objects, *objects])
    first = 0 if kind == "voc" else 3
    word = "object" if kind == "voc" else "annotation"
    what = f"{word}s {first + 22}-{first + 43} repeat {word}s {first}-{first + 21}"
    expect(examine(data), file, "duplicate-object", "warning", what)


def test_repeated_lines_are_one_warning(tmp_path: Path) -> None:
    lines = "".join(f"0 0.{i:02d} 0.5 0.1 0.1\n" for i in range(10, 32))
    path = write_yolo(tmp_path, labels={"train/a": lines + lines, "val/c": "1 .5 .5 1 1"})
    what = "lines 23-44 repeat lines 1-22"
    expect(examine(path), tmp_path / "labels/train/a.txt", "duplicate-object", "warning", what)


def test_objects_side_by_side_are_no_repeats(tmp_path: Path) -> None:
    beside: list[VOCObject] = [("dog", 11 + i, 6, 30 + i, 25) for i in range(3)]
    data, _ = folder_with(tmp_path, "voc", beside)
    assert examine(data).problems == ()


def test_numbers_of_objects_are_those_of_the_file_where_others_are_bad(tmp_path: Path) -> None:
    data, file = folder_with(tmp_path, "voc", [("dog", 30, 6, 11, 25), DOG, DOG])
    problems = {problem.kind: problem for problem in examine(data).problems}
    assert problems["duplicate-object"].what == "object 2 repeats object 1"
    assert problems["duplicate-object"].path == str(file)


def test_a_name_that_differs_in_capital_letters_alone_is_suspect(tmp_path: Path) -> None:
    objects: list[VOCObject] = [("RBC", i + 1, 1, i + 9, 9) for i in range(5)]
    root = write_voc(tmp_path / "V", {"a": objects, "b": [("rbc", 1, 1, 9, 9)]})
    expect(examine(root), root / "Annotations/b.xml", "class-suspect", "warning", "class 'rbc' is rare")
    assert "Did you mean 'RBC'?" in only(examine(root)).what
    (root / "classes.txt").write_text("RBC\n")
    expect(examine(root), root / "Annotations/b.xml", "unknown-class", "error", "Did you mean 'RBC'?")


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        ("1;0.5;0.5;0.2;0.2", "separate the numbers by spaces"),
        ("1, 0.5, 0.5, 0.2, 0.2", "separate the numbers by spaces"),
        ("dog 0.5 0.5 0.2 0.2", "write a class and four numbers"),
        ("1 nan 0.5 0.2 0.2", "write a class and four numbers"),
    ],
)
def test_the_fix_of_a_line_fits_what_is_wrong_with_it(tmp_path: Path, line: str, fix: str) -> None:
    path = write_yolo(tmp_path, labels={"train/a": f"1 .5 .5 1 1\n0 .5 .5 .4 .4\n{line}", "val/c": ""})
    problem = only(examine(path))
    assert problem.kind == "box-numbers"
    assert problem.fix.startswith(fix)


def test_boxes_without_area_have_a_way_out_on_the_command_line(tmp_path: Path) -> None:
    path = write_yolo(tmp_path, labels={"train/a": "1 .5 .5 1 1\n0 .5 .5 .4 .4\n0 .5 .5 0 .4", "val/c": ""})
    fix = only(examine(path)).fix
    assert "`stepgrad convert --degenerate drop`" in fix
    assert main(["convert", str(path), "--to", "coco", str(tmp_path / "C"), "--degenerate", "drop"]) == 0
    assert examine(tmp_path / "C/annotations/instances_train.json").errors == 0


def test_the_problems_of_a_file_are_printed_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = "9 .5 .5 1 1\n0 .5 .5 0 1\nx\n"
    path = write_yolo(tmp_path, labels={"train/a": bad, "train/b": bad, "val/c": f"{bad}0 .5 .5 1 1\n1 .5 .5 .4 .4"})
    assert main(["doctor", str(path)]) == 1
    files = [line.split(":")[0] for line in capsys.readouterr().out.splitlines() if line.startswith("error")]
    assert files == [file for file in dict.fromkeys(files) for _ in range(3)]


def test_real_drone_regions_are_no_objects() -> None:
    summary = examine(shared_data("VisDrone-640"), pixels=False, need_images=False).summary
    rows = {row.name: row for row in summary.classes}
    assert (rows["awning-tricycle"].objects, summary.total.objects) == (765, 68591)
