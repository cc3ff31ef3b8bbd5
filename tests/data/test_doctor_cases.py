"""The twenty known ailments of detection data: each has a message with its path, or a defined result."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from stepgrad.data import VOCDataset, load_proposals
from stepgrad.data.doctor import examine
from stepgrad.data.images import EXIF_ORIENTATION
from stepgrad.errors import DataError
from tests.data.builders import DOG, SIZE, coco_content, voc_xml, write_coco, write_image
from tests.data.diagnoses import cache_of, expect, healthy_folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return healthy_folder(tmp_path)


def test_case_01_truncated_jpeg(root: Path) -> None:
    path = root / "JPEGImages/a.jpg"
    path.write_bytes(path.read_bytes()[:-300])
    expect(examine(root), path, "image-unreadable", "error", "cannot be decoded (image file is truncated")
    with pytest.raises(DataError, match=r"a\.jpg: cannot be decoded"):
        VOCDataset(root, "train")[0]


def test_case_02_zero_byte_image(root: Path) -> None:
    path = root / "JPEGImages/a.jpg"
    path.write_bytes(b"")
    expect(examine(root), path, "image-unreadable", "error", "the file is empty")
    expect(examine(root, pixels=False), path, "image-unreadable", "error", "the file is empty")


def test_case_03_png_named_jpg(root: Path) -> None:
    path = root / "JPEGImages/a.jpg"
    write_image(path, format="PNG")
    expect(examine(root), path, "image-format", "warning", "is a PNG file called .jpg")
    assert VOCDataset(root, "train")[0][0].shape == (3, SIZE[1], SIZE[0])


def test_case_04_grey_image_is_counted_and_read_as_three_equal_channels(root: Path) -> None:
    write_image(root / "JPEGImages/a.jpg", mode="L")
    diagnosis = examine(root)
    assert diagnosis.problems == ()
    assert diagnosis.summary.modes == {"L": 1, "RGB": 1}
    image, _ = VOCDataset(root, "train")[0]
    assert (image[0] == image[1]).all()


def test_case_05_cmyk_image(root: Path) -> None:
    write_image(root / "JPEGImages/a.jpg", mode="CMYK")
    expect(examine(root), root / "JPEGImages/a.jpg", "image-cmyk", "warning", "CMYK")
    assert VOCDataset(root, "train")[0][0].shape[0] == 3


def exif(orientation: int) -> Image.Exif:
    tags = Image.Exif()
    tags[EXIF_ORIENTATION] = orientation
    return tags


def test_case_06_exif_rotation_with_boxes_of_the_turned_picture(root: Path) -> None:
    path = root / "JPEGImages/b.jpg"
    write_image(path, exif=exif(6))
    (root / "Annotations/b.xml").write_text(voc_xml([DOG], size=SIZE[::-1]))
    expect(examine(root), path, "exif-rotation", "error", "orientation 6")


def test_case_06_exif_rotation_with_boxes_of_the_stored_pixels(root: Path) -> None:
    path = root / "JPEGImages/b.jpg"
    write_image(path, exif=exif(3))
    expect(examine(root), path, "exif-rotation", "warning", "EXIF orientation 3")


def test_case_07_missing_image(root: Path) -> None:
    (root / "JPEGImages/a.jpg").unlink()
    expect(examine(root), root / "JPEGImages/a.jpg", "image-missing", "error", "no such image")


def test_case_08_missing_proposals(root: Path, tmp_path: Path) -> None:
    cache = cache_of(root, tmp_path, {"a": 5})
    expect(examine(root, proposals=cache), cache, "windows-missing", "error", "has no windows for image 'b'")


XML, LISTS = "Annotations/b.xml", "ImageSets/Main"
FILES = {
    "case 09 no objects": (XML, voc_xml([]), "no-objects", "warning", "holds no objects"),
    "case 10 xmin zero": (
        *(XML, voc_xml([("dog", 0, 6, 30, 25)]), "zero-based", "warning"),
        "object 0 (dog): xmin or ymin is 0",
    ),
    "case 11 xmax below xmin": (
        *(XML, voc_xml([("dog", 30, 6, 11, 25), DOG]), "box-degenerate", "error"),
        "object 0 (dog): xmax 11 < xmin 30",
    ),
    "case 11 xmax equal to xmin": (
        *(XML, voc_xml([("dog", 11, 6, 11, 25)]), "box-one-pixel", "warning"),
        "one pixel wide",
    ),
    "case 12 outside": (
        *(XML, voc_xml([("dog", 61, 6, 80, 25)]), "box-outside", "error"),
        "lies outside the 60 x 40 image: 60, 5, 80, 25",
    ),
    "case 13 unknown class": (
        *(XML, voc_xml([("dogg", 11, 6, 30, 25)]), "unknown-class", "error"),
        "object 0: unknown class 'dogg'. Did you mean 'dog'?",
    ),
    "case 15 duplicate ids": (
        *(f"{LISTS}/train.txt", "a\nb\na\n", "duplicate-id", "error"),
        "lists image 'a' more than once",
    ),
    "empty list": (f"{LISTS}/val.txt", "", "no-images", "error", "lists no images"),
    "entities": (
        *(XML, '<!DOCTYPE x [<!ENTITY a "a">]><annotation>&a;</annotation>', "xml-entities", "error"),
        "refused",
    ),
}


@pytest.mark.parametrize("case", FILES)
def test_a_bad_file_of_a_voc_folder_is_named_with_what_is_wrong(root: Path, case: str) -> None:
    name, text, kind, severity, what = FILES[case]
    (root / name).write_text(text)
    expect(examine(root), root / name, kind, severity, what)


@pytest.mark.parametrize(
    ("index", "number", "kind", "severity", "what"),
    [
        (1, 1, "duplicate-id", "error", "annotation id 1 occurs more than once"),  # case 15
        (0, 0, "id-zero", "warning", "annotation id 0"),  # case 16
    ],
)
def test_a_bad_id_of_a_coco_file_is_named(
    tmp_path: Path, index: int, number: int, kind: str, severity: str, what: str
) -> None:
    content = coco_content()
    content["annotations"][index]["id"] = number
    path = write_coco(tmp_path, content)
    expect(examine(path), path, kind, severity, what)


def test_case_13_misspelt_class_in_a_folder_without_class_list(root: Path) -> None:
    (root / "classes.txt").unlink()
    path = root / "Annotations/b.xml"
    path.write_text(voc_xml([("dogg", 11, 6, 30, 25)]))
    expect(
        examine(root),
        path,
        "class-suspect",
        "warning",
        "'dogg' is rare and looks like a misspelt one. Did you mean 'dog'?",
    )


def test_case_14_missing_difficult_counts_as_not_difficult(root: Path) -> None:
    (root / "Annotations/b.xml").write_text(voc_xml([DOG], difficult=None))
    diagnosis = examine(root)
    assert diagnosis.problems == ()
    assert diagnosis.summary.total.difficult == 0


def test_case_17_float_coordinates_are_kept(root: Path) -> None:
    (root / "Annotations/b.xml").write_text(voc_xml([("dog", 11.5, 6.25, 30.75, 25.5)]))
    assert examine(root).problems == ()
    assert VOCDataset(root, "train").target(1)["boxes"].tolist() == [[10.5, 5.25, 30.75, 25.5]]


def test_case_18_one_pixel_image(root: Path) -> None:
    write_image(root / "JPEGImages/b.jpg", size=(1, 1))
    (root / "Annotations/b.xml").write_text(voc_xml([], size=(1, 1)))
    problems = {problem.kind: problem for problem in examine(root).problems}
    assert set(problems) == {"image-tiny", "no-objects"}
    assert "only 1 x 1 pixels" in problems["image-tiny"].what
    assert VOCDataset(root, "train")[1][0].shape == (3, 1, 1)


def test_case_19_no_proposals(root: Path, tmp_path: Path) -> None:
    cache = cache_of(root, tmp_path, {"a": 0, "b": 5})
    expect(
        examine(root, proposals=cache),
        cache / "a.npz",
        "windows-none",
        "warning",
        "no windows for image 'a', which has 2",
    )
    assert load_proposals(cache, VOCDataset(root, "train"))["a"].shape == (0, 4)


def test_case_20_twenty_thousand_proposals(root: Path, tmp_path: Path) -> None:
    cache = cache_of(root, tmp_path, {"a": 20_000, "b": 5})
    expect(examine(root, proposals=cache), cache / "a.npz", "windows-many", "warning", "20000 windows")
    assert load_proposals(cache, VOCDataset(root, "train"))["a"].shape == (20_000, 4)
