"""The doctor on YOLO data: every problem at once, each with its file, its line and the way out."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from stepgrad.cli import main
from stepgrad.data import load_dataset
from stepgrad.data.doctor import examine
from stepgrad.data.images import EXIF_ORIENTATION
from stepgrad.data.yolo_txt import MOST_COMPLAINTS
from stepgrad.errors import DataError
from tests.data.builders import SIZE, YOLO_YAML, shared_data, write_image, write_yolo
from tests.data.diagnoses import expect, only

OPTION = r"images_outside=True in Python, --images_outside in commands, data\.images_outside: true in configs"


def test_healthy_data_has_no_problems(tmp_path: Path) -> None:
    path = write_yolo(tmp_path)
    assert examine(path).problems == ()
    assert examine(tmp_path, "train").problems == ()
    assert examine(path, need_images=False).problems == ()
    summary = examine(path).summary
    assert (summary.images, summary.total.objects, summary.smallest) == (3, 4, SIZE)


def test_every_problem_is_listed_not_just_the_first(tmp_path: Path) -> None:
    bad = "0 .5 .5 1 1\n7 .5 .5 1 1\n0 .5 .5 0 1\n0 9 9 9 9\nx\n0 .5 .5 1 1\n"
    path = write_yolo(tmp_path, labels={"train/a": bad, "train/b": "1 .5 .5 1.005 1", "val/c": ""})
    (tmp_path / "images/val/c.jpg").write_bytes(b"")
    write_image(tmp_path / "images/train/z.jpg")
    (tmp_path / "labels/train/ghost.txt").write_text("")
    (tmp_path / "ignored_regions.json").write_text('{"train/ghost": [], "train/a": [[1, 2, 3]]}')
    problems = examine(path).problems
    kinds = sorted(problem.kind for problem in problems)
    assert kinds == [
        "box-degenerate",
        "box-numbers",
        "box-shares",
        "duplicate-object",
        "image-unreadable",
        "label-missing",
        "label-spare",
        "region",
        "region-spare",
        "unknown-class",
    ]
    lines = {problem.kind: problem.what for problem in problems if problem.path.endswith("a.txt")}
    assert {kind: what.split(":")[0] for kind, what in lines.items()} == {
        "unknown-class": "line 2",
        "box-degenerate": "line 3",
        "box-shares": "line 4",
        "box-numbers": "line 5",
        "duplicate-object": "line 6 repeats line 1",
    }
    assert all(problem.fix for problem in problems)


def test_boxes_beyond_and_outside_the_image(tmp_path: Path) -> None:
    labels = {"train/a": "0 0 .5 .4 .4\n1 1.005 .5 .005 .5", "val/c": "0 .5 .5 1 1\n1 .5 .5 .9 .9"}
    path = write_yolo(tmp_path, labels=labels)
    problems = {problem.kind: problem for problem in examine(path).problems}
    assert set(problems) == {"box-beyond", "box-outside", "box-one-pixel"}
    assert problems["box-beyond"].severity == "warning"
    assert "reaches 12 pixels beyond the 60 x 40 image" in problems["box-beyond"].what
    with pytest.raises(DataError, match="lies outside"):
        load_dataset(path, "train")[0]


def test_many_bad_lines_of_one_file_are_counted(tmp_path: Path) -> None:
    path = write_yolo(tmp_path, labels={"train/a": "junk\n" * 1000 + "0 .5 .5 1 1\n1 .5 .5 .9 .9", "val/c": ""})
    problems = [problem.what for problem in examine(path).problems]
    assert len(problems) == MOST_COMPLAINTS + 1
    assert f"has {1000 - MOST_COMPLAINTS} more lines of this kind" in problems[-1]


def test_label_files_of_megabytes_are_read_and_larger_ones_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "".join(f"0 0.5 0.5 0.{number:05d}1 0.5\n" for number in range(60_000))
    path = write_yolo(tmp_path, labels={"train/a": lines, "val/c": "1 .5 .5 1 1"})
    assert len(lines) > 1_000_000
    assert examine(path).summary.total.objects == 60_001
    monkeypatch.setattr("stepgrad.data.yolo_txt.LARGEST_FILE", 1_000_000)
    assert examine(path).problems[0].kind == "label-unreadable"


def test_files_that_are_folders_are_errors(tmp_path: Path) -> None:
    path = write_yolo(tmp_path)
    (tmp_path / "labels/val/c.txt").unlink()
    (tmp_path / "labels/val/c.txt").mkdir()
    expect(examine(path), tmp_path / "labels/val/c.txt", "label-unreadable", "error", "cannot be read")
    path.unlink()
    path.mkdir()
    with pytest.raises(DataError, match="is not a VOC, COCO or YOLO folder"):
        load_dataset(tmp_path)


def test_lines_of_both_kinds_in_one_file_are_pointed_out(tmp_path: Path) -> None:
    labels = {"train/a": "0 .5 .5 .5 .5\n1 .1 .1 .9 .1 .9 .5", "val/c": ""}
    path = write_yolo(tmp_path, labels=labels)
    expect(examine(path), tmp_path / "labels/train/a.txt", "label-mixed", "warning", "mixes boxes and polygons")


def test_images_shared_by_splits_and_listed_twice_are_pointed_out(tmp_path: Path) -> None:
    path = write_yolo(tmp_path, "train: images/train\nval: val.txt\nnames: [cat, dog]\n")
    (tmp_path / "val.txt").write_text("./images/val/c.jpg\nimages/train/a.jpg\nimages/val/c.jpg\n")
    kinds = sorted(problem.kind for problem in examine(path).problems)
    assert kinds == ["duplicate-id", "splits-overlap"]
    assert examine(path).errors == 0


def test_names_that_yaml_takes_for_other_things_are_pointed_out(tmp_path: Path) -> None:
    path = write_yolo(tmp_path, YOLO_YAML.replace("[cat, dog]", "[no, 7]"))
    expect(examine(path), path, "class-names", "warning", "class 0 is read as False")
    assert load_dataset(path).class_names == ("False", "7")


@pytest.mark.parametrize("gone", ["../datasets/mine", "~nobody-of-this-name/mine"])
def test_a_root_that_is_gone_is_pointed_out(tmp_path: Path, gone: str) -> None:
    path = write_yolo(tmp_path, YOLO_YAML.replace("path: .", f"path: {gone}"))
    expect(examine(path), path, "yaml-path", "warning", f"path '{gone}' does not exist")


def test_a_split_that_is_not_there_is_named_with_what_is(tmp_path: Path) -> None:
    path = write_yolo(tmp_path, YOLO_YAML.replace("images/val", "images/vla"))
    problem = only(examine(path))
    assert (problem.kind, problem.severity) == ("split-missing", "error")
    assert "Did you mean 'images/val'?" in problem.what


def test_turned_images_are_no_problem(tmp_path: Path) -> None:
    path = write_yolo(tmp_path)
    exif = Image.Exif()
    exif[EXIF_ORIENTATION] = 6
    write_image(tmp_path / "images/val/c.jpg", exif=exif)
    assert examine(path).problems == ()
    assert examine(path).summary.smallest == (SIZE[1], SIZE[1])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2]", r"expected keys such as `train:` and `names:` but got \[1, 2\]"),
        ("just text", "expected keys such as"),
        ("", "expected keys such as .* but got None"),
        ("names: [cat]", "has none of the keys train, val, test"),
        ("a: [", "cannot be read as yaml"),
        ("train: !!python/object/apply:os.mkdir [executed]\nnames: [cat]", "cannot be read as yaml"),
        ("train: 7\nnames: [cat]", "expected train to be a folder, a .txt file or a list of them but got 7"),
        ("train: [images/train, {}]\nnames: [cat]", "expected train to be a folder"),
        ("train: images/train/a.jpg\nnames: [cat, dog]", "is neither a folder nor a .txt file"),
        ("path: [x]\ntrain: images/train\nnames: [cat]", "expected path to be a folder"),
        ('train: "images\\0"\nnames: [cat]', "expected train to be a folder"),
        ("\x00", "cannot be read as yaml"),
    ],
)
def test_a_yaml_that_is_no_data_yaml_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_yolo(tmp_path, text)
    with pytest.raises(DataError, match=message):
        load_dataset(path)
    assert examine(path).errors >= 1
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("yaml", ["path: ..\ntrain: secret/images", "train: ../secret/images", "train: ABSOLUTE"])
def test_a_yaml_that_leads_out_of_its_folder_is_refused_unless_allowed(tmp_path: Path, yaml: str) -> None:
    write_image(tmp_path / "secret/images/s.jpg")
    (tmp_path / "secret/labels").mkdir()
    (tmp_path / "secret/labels/s.txt").write_text("0 .5 .5 1 1")
    yaml = yaml.replace("ABSOLUTE", str(tmp_path / "secret/images"))
    path = write_yolo(tmp_path / "data", f"{yaml}\nnames: [cat, dog]\n")
    with pytest.raises(DataError, match=f"points outside .*{OPTION}"):
        load_dataset(path, "train")
    kinds = [problem.kind for problem in examine(path).problems]
    assert "image-outside" in kinds
    assert load_dataset(path, "train", images_outside=True).ids == ["s"]
    assert main(["doctor", str(path), "--images_outside"]) == 0


@pytest.mark.parametrize("line", ["../secret/images/s.jpg", "ABSOLUTE", "/etc/passwd", "a\x0b../../../../etc/passwd"])
def test_a_line_of_a_list_that_leads_out_is_refused_unless_allowed(tmp_path: Path, line: str) -> None:
    write_image(tmp_path / "secret/images/s.jpg")
    line = line.replace("ABSOLUTE", str(tmp_path / "secret/images/s.jpg"))
    path = write_yolo(tmp_path / "data", "train: list.txt\nnames: [cat, dog]\n")
    (tmp_path / "data/list.txt").write_text(f"images/val/c.jpg\n{line}\n")
    with pytest.raises(DataError, match=r"list\.txt: line \d: (.* points outside .*images_outside|no image)"):
        load_dataset(path, "train")
    assert examine(path).summary.images == 1


def test_a_line_of_a_list_without_its_image_is_named(tmp_path: Path) -> None:
    path = write_yolo(tmp_path, "train: list.txt\nnames: [cat, dog]\n")
    (tmp_path / "list.txt").write_text("images/val/c.jpg\nimages/val/gone.jpg\n")
    problem = examine(path).problems[0]
    assert (problem.path, problem.kind) == (str(tmp_path / "list.txt"), "image-missing")
    assert "line 2: no image 'images/val/gone.jpg'" in problem.what


def test_real_drone_images_are_healthy() -> None:
    diagnosis = examine(shared_data("VisDrone-640"), "val", pixels=False)
    assert {problem.kind for problem in diagnosis.problems} == {"box-one-pixel", "near-duplicate", "two-classes"}
    assert diagnosis.errors == 0
    assert diagnosis.summary.images == 300


def test_texts_beside_images_are_no_spare_labels_though_other_images_are_elsewhere(tmp_path: Path) -> None:
    path = write_yolo(tmp_path, yaml="train: [images/train, beside]\nval: images/val\nnames: [cat, dog]\n")
    write_image(tmp_path / "beside/a.jpg", seed=9)
    (tmp_path / "beside/a.txt").write_text("0 .5 .5 1 1\n")
    (tmp_path / "beside/README.txt").write_text("photos of 2019\n")
    assert examine(path).problems == ()
