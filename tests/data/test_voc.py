"""VOC folders: what the files say is what the targets hold."""

from __future__ import annotations

import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from stepgrad.data import VOC_CLASSES, VOCDataset, continuous_from_devkit, devkit_from_continuous
from stepgrad.data.voc import list_splits
from stepgrad.errors import ConfigError, DataError
from tests.data.builders import CAT, DOG, SIZE, shared_data, voc_xml, write_image, write_voc


def spoil(root: Path, xml: str, image_id: str = "a") -> Path:
    path = root / "Annotations" / f"{image_id}.xml"
    path.write_text(xml)
    return path


def test_one_based_inclusive_pixels_become_continuous_boxes(tmp_path: Path) -> None:
    target = VOCDataset(write_voc(tmp_path / "V"), "train").target(0)
    assert target["boxes"].tolist() == [[10, 5, 30, 25], [0, 0, 60, 40]]
    assert target["area"].tolist() == [20 * 20, 60 * 40]
    assert target["image_id"] == "a"


def test_targets_have_the_types_torchvision_expects(tmp_path: Path) -> None:
    image, target = VOCDataset(write_voc(tmp_path / "V"), "train")[0]
    assert image.dtype == torch.uint8
    assert image.shape == (3, SIZE[1], SIZE[0])
    types = {key: value.dtype for key, value in target.items() if isinstance(value, torch.Tensor)}
    assert types == {
        "boxes": torch.float32,
        "labels": torch.int64,
        "difficult": torch.bool,
        "iscrowd": torch.int64,
        "area": torch.float32,
    }


def test_devkit_numbers_come_back_exactly_even_with_fractions(tmp_path: Path) -> None:
    corners = (1.0, 147.6, 273.9, 187.5)
    root = write_voc(tmp_path / "V", {"a": [("boat", *corners)]}, {"train": "a"})
    assert VOCDataset(root, "train").devkit_boxes(0).tolist() == [list(corners)]


def test_whole_pixel_boxes_survive_the_round_trip_through_float32() -> None:
    devkit = np.random.default_rng(0).integers(1, 5000, (1000, 4))
    boxes = torch.from_numpy(continuous_from_devkit(devkit)).float().numpy()
    assert np.array_equal(devkit_from_continuous(boxes), devkit)


def test_missing_difficult_means_not_difficult(tmp_path: Path) -> None:
    root = write_voc(tmp_path / "V")
    spoil(root, voc_xml([DOG], difficult=None))
    spoil(root, voc_xml([DOG], difficult="1"), "b")
    dataset = VOCDataset(root, "train")
    assert [dataset.target(i)["difficult"].tolist() for i in range(2)] == [[False], [True]]


def test_parts_of_objects_are_not_objects(tmp_path: Path) -> None:
    root = write_voc(tmp_path / "V")
    part = "<part><name>head</name><bndbox><xmin>1</xmin></bndbox></part></object>"
    spoil(root, voc_xml([DOG]).replace("</object>", part))
    dataset = VOCDataset(root, "train")
    assert dataset.class_names == VOC_CLASSES
    assert len(dataset.target(0)["labels"]) == 1


@pytest.mark.parametrize("text", ["a\nb\n", "a  1\nb -1\n", "\ufeffa\r\nb\r\n", "a 0\n\n  b\t1  \n\n"])
def test_image_sets_may_have_a_second_column_blank_lines_and_any_line_ends(tmp_path: Path, text: str) -> None:
    root = write_voc(tmp_path / "V")
    (root / "ImageSets/Main/train.txt").write_bytes(text.encode())
    assert VOCDataset(root, "train").ids == ["a", "b"]


def test_without_a_split_every_annotation_is_taken(tmp_path: Path) -> None:
    root = write_voc(tmp_path / "V", {"b": [DOG], "a": [CAT]}, {"train": "b"})
    assert VOCDataset(root).ids == ["a", "b"]


def test_per_class_lists_are_not_splits(tmp_path: Path) -> None:
    root = write_voc(tmp_path / "V", splits={"train": "a", "val": "b", "dog_train": "a 1", "train_val": "b 1"})
    assert list_splits(root) == ["train", "val"]
    assert VOCDataset(root, "dog_train").ids == ["a"]  # still there for those who ask


def test_every_split_of_a_folder_has_the_same_classes(tmp_path: Path) -> None:
    objects = {"a": [("dog", 1, 1, 5, 5)], "b": [("hat", 1, 1, 5, 5)]}
    root = write_voc(tmp_path / "V", objects, {"train": "a", "val": "b"})
    assert VOCDataset(root, "train").class_names == VOCDataset(root, "val").class_names == ("dog", "hat")


def test_class_file_decides_the_order_of_the_labels(tmp_path: Path) -> None:
    root = write_voc(tmp_path / "V")
    (root / "classes.txt").write_text("dog\ncat\n")
    dataset = VOCDataset(root, "train")
    assert dataset.class_names == ("dog", "cat")
    assert dataset.target(0)["labels"].tolist() == [0, 1]
    assert VOCDataset(root, "train", class_names=["cat", "dog"]).target(0)["labels"].tolist() == [1, 0]


def test_class_file_with_a_repeated_name_is_refused(tmp_path: Path) -> None:
    root = write_voc(tmp_path / "V")
    (root / "classes.txt").write_text("dog\ndog\n")
    with pytest.raises(DataError, match=r"classes\.txt.*each once"):
        VOCDataset(root, "train")


def test_repeated_class_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="each of class_names once"):
        VOCDataset(write_voc(tmp_path / "V"), "train", class_names=["dog", "cat", "dog"])


def test_unknown_class_is_named_with_its_file_and_a_suggestion(tmp_path: Path) -> None:
    root = write_voc(tmp_path / "V")
    path = spoil(root, voc_xml([("dogg", 1, 1, 5, 5)]))
    with pytest.raises(DataError, match=r"unknown class 'dogg'\. Did you mean 'dog'") as error:
        VOCDataset(root, "train", class_names=["cat", "dog"])
    assert str(path) in str(error.value)


def test_image_without_objects_is_ordinary(tmp_path: Path) -> None:
    root = write_voc(tmp_path / "V")
    spoil(root, voc_xml([]))
    _, target = VOCDataset(root, "train")[0]
    assert target["boxes"].shape == (0, 4)
    assert all(len(target[key]) == 0 for key in ("labels", "difficult", "iscrowd", "area"))


@pytest.mark.parametrize(
    ("spoiled", "message"),
    [
        (("dog", 30, 6, 11, 25), r"object 0 \(dog\): xmax 11 < xmin 30; swap"),
        (("dog", 11, 25, 30, 6), r"object 0 \(dog\): ymax 6 < ymin 25; swap"),
        (("dog", "nan", 6, 30, 25), "expected four numbers"),
        (("dog", "1e999", 6, 30, 25), "expected four numbers"),
        (("dog", "", 6, 30, 25), "expected four numbers"),
        (("dog", "left", 6, 30, 25), "expected four numbers in <bndbox> but got xmin left"),
        (("", 11, 6, 30, 25), "object 0 has no <name>"),
    ],
)
def test_bad_object_is_refused_with_path_object_and_way_out(tmp_path: Path, spoiled: tuple, message: str) -> None:
    root = write_voc(tmp_path / "V")
    path = spoil(root, voc_xml([spoiled]))
    with pytest.raises(DataError, match=message) as error:
        VOCDataset(root, "train")
    assert str(path) in str(error.value)
    assert "stepgrad doctor" in str(error.value)


def test_reversed_boxes_can_be_dropped_on_request(tmp_path: Path) -> None:
    root = write_voc(tmp_path / "V")
    spoil(root, voc_xml([("dog", 30, 6, 11, 25), CAT]))
    target = VOCDataset(root, "train", degenerate="drop").target(0)
    assert target["labels"].tolist() == [VOC_CLASSES.index("cat")]


def test_one_pixel_box_is_one_pixel(tmp_path: Path) -> None:
    root = write_voc(tmp_path / "V")
    spoil(root, voc_xml([("dog", 7, 9, 7, 9)]))
    assert VOCDataset(root, "train").target(0)["boxes"].tolist() == [[6, 8, 7, 9]]


def test_zero_corner_does_not_wrap_around(tmp_path: Path) -> None:
    root = write_voc(tmp_path / "V")
    spoil(root, voc_xml([("dog", 0, 0, 30, 25)]))
    assert VOCDataset(root, "train")[0][1]["boxes"].tolist() == [[-1, -1, 30, 25]]


def test_box_wholly_outside_the_image_is_refused_when_the_image_is_read(tmp_path: Path) -> None:
    root = write_voc(tmp_path / "V")
    path = spoil(root, voc_xml([DOG, ("dog", 100, 6, 130, 25)]))
    with pytest.raises(DataError, match=r"\[99.0, 5.0, 130.0, 25.0\] lies outside the 60 x 40 image") as error:
        VOCDataset(root, "train")[0]
    assert str(path) in str(error.value)


BOMB = """<?xml version="1.0"?><!DOCTYPE a [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>
<annotation><object><name>&b;</name></object></annotation>"""


@pytest.mark.parametrize(
    "xml",
    [
        *(BOMB.replace('"1.0"', f'"1.0" encoding="{code}"').encode(code) for code in ("utf-8", "utf-16")),
        b'<!DOCTYPE annotation SYSTEM "file:///etc/hostname"><annotation/>',
    ],
)
def test_entities_and_document_types_are_refused(tmp_path: Path, xml: bytes) -> None:
    root = write_voc(tmp_path / "V")
    (root / "Annotations/a.xml").write_bytes(xml)
    with pytest.raises(DataError, match="document type or an entity, which is refused; delete the <!DOCTYPE"):
        VOCDataset(root, "train")


@pytest.mark.parametrize(
    ("xml", "message"),
    [
        ("", "not well-formed XML"),
        ("<annotation><object>", "not well-formed XML"),
        ('<?xml version="1.0" encoding="klingon"?><annotation/>', "not well-formed XML"),
        ('<?xml version="1.0" encoding="shift_jis"?><annotation/>', "not well-formed XML"),
        ("<html/>", "expected <annotation> at the top but got <html>"),
        (voc_xml([DOG], difficult="maybe"), "expected <difficult> 0 or 1 but got 'maybe'"),
    ],
)
def test_damaged_annotation_is_named(tmp_path: Path, xml: str, message: str) -> None:
    root = write_voc(tmp_path / "V")
    path = spoil(root, xml)
    with pytest.raises(DataError, match=message) as error:
        VOCDataset(root, "train")
    assert str(path) in str(error.value)


def test_missing_annotation_is_named(tmp_path: Path) -> None:
    root = write_voc(tmp_path / "V", splits={"train": "a\nghost"})
    write_image(root / "JPEGImages/ghost.jpg")
    with pytest.raises(DataError, match=r"ghost\.xml: no such annotation"):
        VOCDataset(root, "train")


def test_missing_images_are_noticed_before_training(tmp_path: Path) -> None:
    root = write_voc(tmp_path / "V")
    (root / "JPEGImages/b.jpg").unlink()
    with pytest.raises(DataError, match="JPEGImages: 1 of 2 images is missing, first 'b'"):
        VOCDataset(root, "train")


def test_evaluation_needs_no_images(tmp_path: Path) -> None:
    root = write_voc(tmp_path / "V")
    for path in (root / "JPEGImages").iterdir():
        path.unlink()
    (root / "JPEGImages").rmdir()
    dataset = VOCDataset(root, "train", need_images=False)
    assert len(dataset.target(0)["labels"]) == 2
    with pytest.raises(DataError, match="need_images=False; load it with the images"):
        dataset[0]
    with pytest.raises(DataError, match="JPEGImages: no such folder"):
        VOCDataset(root, "train")


def test_unknown_split_lists_those_there_are(tmp_path: Path) -> None:
    root = write_voc(tmp_path / "V", splits={"train": "a", "val": "b"})
    with pytest.raises(DataError, match=r"no such image set; it has train, val\. Did you mean 'train'"):
        VOCDataset(root, "trian")


@pytest.mark.parametrize(("text", "message"), [("", "lists no images"), ("a\nb\na", "lists image 'a' more than once")])
def test_bad_image_set_is_refused(tmp_path: Path, text: str, message: str) -> None:
    root = write_voc(tmp_path / "V", splits={"train": text or "\n"})
    with pytest.raises(DataError, match=message):
        VOCDataset(root, "train")


def test_images_may_have_any_usual_suffix_and_jpg_wins(tmp_path: Path) -> None:
    root = write_voc(tmp_path / "V")
    (root / "JPEGImages/b.jpg").unlink()
    write_image(root / "JPEGImages/b.PNG")
    write_image(root / "JPEGImages/a.png")
    dataset = VOCDataset(root, "train")
    assert [dataset.image_path(i).name for i in range(2)] == ["a.jpg", "b.PNG"]


def test_transforms_see_image_and_target(tmp_path: Path) -> None:
    dataset = VOCDataset(write_voc(tmp_path / "V"), "train", transforms=lambda image, target: (image.shape, target))
    assert dataset[0][0] == (3, SIZE[1], SIZE[0])


def test_index_of_finds_images_and_names_strangers(tmp_path: Path) -> None:
    dataset = VOCDataset(write_voc(tmp_path / "V"), "train")
    assert dataset.index_of("b") == 1
    with pytest.raises(DataError, match="no image 'z' among its 2 images"):
        dataset.index_of("z")


def test_counts_of_the_real_voc2007_annotations(tmp_path: Path) -> None:
    """The published numbers of the test split: 4,952 images, 12,032 objects that are not difficult."""
    with tarfile.open(shared_data("voc2007_annotations_main.tar.xz")) as archive:
        archive.extractall(tmp_path, filter="data")
    dataset = VOCDataset(tmp_path, "test", need_images=False)
    counted = sum(int((~annotation.difficult).sum()) for annotation in dataset.annotations)
    assert (len(dataset), counted) == (4952, 12032)
    assert dataset.class_names == VOC_CLASSES
