"""Links, pipes and devices inside the folder of a dataset: only regular files below it are read, unless others are allowed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from stepgrad.cli import main
from stepgrad.data import load_dataset
from stepgrad.data.convert import convert
from stepgrad.data.doctor import examine
from stepgrad.errors import DataError
from tests.data.builders import write_coco, write_image, write_voc, write_yolo

Writer = Callable[[Path], Path]
WRITERS: dict[str, Writer] = {"yolo": write_yolo, "voc": write_voc, "coco": write_coco}
FILES = [
    ("yolo", "labels/train/a.txt"),
    ("yolo", "images/train/a.jpg"),
    ("yolo", "ignored_regions.json"),
    ("voc", "Annotations/a.xml"),
    ("voc", "JPEGImages/a.jpg"),
    ("voc", "ImageSets/Main/train.txt"),
    ("coco", "images/four.jpg"),
]
"""A file of each kind that a reader opens by itself."""
FOLDERS = [
    ("yolo", "images"),
    ("yolo", "images/train"),
    ("yolo", "labels"),
    ("voc", "Annotations"),
    ("voc", "JPEGImages"),
    ("coco", "images"),
]


def data_in(tmp_path: Path, kind: str) -> Path:
    WRITERS[kind](tmp_path / "data")
    if kind == "yolo":
        (tmp_path / "data/ignored_regions.json").write_text("{}")
    return tmp_path / "data"


def move_out(root: Path, name: str) -> Path:
    """Put a file or folder outside the data, and a link in its place."""
    place = root.parent / "elsewhere"
    shutil.move(root / name, place)
    (root / name).symlink_to(place)
    return place


def load_all(root: Path, images_outside: bool = False) -> int:
    dataset = load_dataset(root, "train" if (root / "ImageSets").exists() else None, images_outside=images_outside)
    return sum(dataset[i][0].numel() > 0 for i in range(len(dataset)))


@pytest.mark.parametrize(("kind", "name"), [*FILES, *FOLDERS])
def test_a_link_out_of_the_data_is_refused_and_allowed_by_the_option(tmp_path: Path, kind: str, name: str) -> None:
    root = data_in(tmp_path, kind)
    count = load_all(root)
    move_out(root, name)
    with pytest.raises(DataError, match=r"outside .*--images_outside"):
        load_all(root)
    assert load_all(root, images_outside=True) == count
    with pytest.raises(DataError, match=r"outside .*--images_outside"):
        convert(root, tmp_path / "made", "coco" if kind != "coco" else "voc")
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(("kind", "name"), [*FILES, *FOLDERS])
def test_the_doctor_names_the_link_once(tmp_path: Path, kind: str, name: str) -> None:
    root = data_in(tmp_path, kind)
    place = move_out(root, name)
    found = [problem for problem in examine(root).problems if "outside" in problem.kind]
    assert found
    assert all(problem.severity == "error" and "--images_outside" in problem.fix for problem in found)
    if (kind, name) not in (("yolo", "images"), ("yolo", "images/train")):  # there it is the line of data.yaml
        assert [problem.path for problem in found] == [str(root / name)]
        assert found[0].what == f"is a link to {place}, outside {root}"
    allowed = [problem for problem in examine(root, images_outside=True).problems if problem.severity == "error"]
    assert allowed == []


@pytest.mark.parametrize(("kind", "name"), FILES)
def test_a_link_inside_the_data_is_like_a_file(tmp_path: Path, kind: str, name: str) -> None:
    root = data_in(tmp_path, kind)
    count = load_all(root)
    (root / "store").mkdir()
    shutil.move(root / name, root / "store/moved")
    (root / name).symlink_to(os.path.relpath(root / "store/moved", (root / name).parent))
    assert load_all(root) == count
    assert examine(root).errors == 0


@pytest.mark.parametrize(("kind", "name"), FILES)
@pytest.mark.parametrize("images_outside", [False, True])
def test_pipes_and_devices_are_not_opened(tmp_path: Path, kind: str, name: str, images_outside: bool) -> None:
    root = data_in(tmp_path, kind)
    (root / name).unlink()
    os.mkfifo(root / name)
    with pytest.raises(DataError):
        load_all(root, images_outside)
    assert examine(root, images_outside=images_outside).errors > 0
    (root / name).unlink()
    (root / name).symlink_to("/dev/zero")
    with pytest.raises(DataError):
        load_all(root, images_outside)
    assert examine(root, images_outside=images_outside).errors > 0


def test_what_is_outside_is_never_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = data_in(tmp_path, "yolo")
    (tmp_path / "secret").write_text("nobody:x:65534\n")
    (root / "labels/train/a.txt").unlink()
    (root / "labels/train/a.txt").symlink_to(tmp_path / "secret")
    assert main(["doctor", str(root), "--limit", "0"]) == 1
    assert "nobody" not in "".join(capsys.readouterr())


@pytest.mark.parametrize(("kind", "name"), [("yolo", "data.yaml"), ("coco", "instances.json"), ("voc", "")])
def test_the_file_that_is_found_in_a_folder_may_not_be_a_link_out_of_it(tmp_path: Path, kind: str, name: str) -> None:
    root = data_in(tmp_path, kind)
    (tmp_path / "top").mkdir()
    (tmp_path / "top" / (name or "VOC2007")).symlink_to(root / name)
    with pytest.raises(DataError, match=r"is a link to .* outside"):
        load_dataset(tmp_path / "top", need_images=False)
    with pytest.raises(DataError, match=r"is a link to .* outside"):
        examine(tmp_path / "top")


def test_the_folder_of_the_data_itself_may_be_a_link(tmp_path: Path) -> None:
    for kind in WRITERS:
        root = data_in(tmp_path / kind, kind)
        (tmp_path / f"link-{kind}").symlink_to(root)
        assert load_all(tmp_path / f"link-{kind}") == load_all(root)


def test_a_folder_that_the_user_names_may_lie_anywhere(tmp_path: Path) -> None:
    root = data_in(tmp_path, "coco")
    place = move_out(root, "images")
    for images in (place, root / "images"):
        assert len(load_dataset(root, images=images)) == 2
    write_image(tmp_path / "other.jpg")
    (place / "four.jpg").unlink()
    (place / "four.jpg").symlink_to(tmp_path / "other.jpg")
    with pytest.raises(DataError, match="is a link to"):
        load_dataset(root, images=place)
