"""YOLO datasets as people have them: a data.yaml, folders or lists of images, a text file of labels per image."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from stepgrad.data import YOLODataset, load_dataset
from stepgrad.data.images import EXIF_ORIENTATION
from stepgrad.errors import ConfigError, DataError
from tests.data.builders import SIZE, YOLO_YAML, shared_data, write_image, write_yolo

TRAIN = "train: images/train\nval: images/val\n"


def test_boxes_are_shares_of_the_image(tmp_path: Path) -> None:
    dataset = load_dataset(write_yolo(tmp_path), "train")
    assert isinstance(dataset, YOLODataset)
    assert (dataset.ids, dataset.class_names) == (["a", "b"], ("cat", "dog"))
    target = dataset.target(0)
    assert target["boxes"].tolist() == [[15, 15, 45, 25], [0, 0, 30, 40]]
    assert target["labels"].tolist() == [1, 0]
    assert target["area"].tolist() == [300, 1200]
    assert dataset[0][0].shape == (3, SIZE[1], SIZE[0])


def test_a_folder_with_a_data_yaml_is_recognised_even_beside_json_files(tmp_path: Path) -> None:
    write_yolo(tmp_path)
    (tmp_path / "notes.json").write_text("{}")
    assert isinstance(load_dataset(tmp_path, "val"), YOLODataset)
    (tmp_path / "data.yaml").rename(tmp_path / "cells.yml")
    (tmp_path / "config.yaml").write_text("a: 1\n")
    assert load_dataset(tmp_path, "val").ids == ["c"]
    assert load_dataset(tmp_path).ids == ["a", "b", "c"]


@pytest.mark.parametrize(
    "names",
    ["[cat, dog]", "{0: cat, 1: dog}", "{1: dog, 0: cat}", "{'0': cat, '1': dog}", "[cat, dog]\nnc: 2"],
)
def test_class_names_are_a_list_or_a_mapping(tmp_path: Path, names: str) -> None:
    assert load_dataset(write_yolo(tmp_path, f"{TRAIN}names: {names}\n")).class_names == ("cat", "dog")


def test_a_number_of_classes_without_names_names_them(tmp_path: Path) -> None:
    assert load_dataset(write_yolo(tmp_path, f"{TRAIN}nc: 3\n")).class_names == ("class_0", "class_1", "class_2")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("names: {1: cat, 2: dog}", "numbered from 0 to 1 but got 2"),
        ("names: {0: cat, 0.5: dog}", "numbered from 0 to 1 but got 0.5"),
        ("names: [cat, dog]\nnc: 3", "nc is 3 but there are 2 names"),
        ("names: [cat, cat]", "class 'cat' occurs more than once"),
        ("names: [cat, null]", "expected a name of class 1 but got None"),
        ("names: cat", "expected names of classes but got 'cat'"),
        ("names: []", "expected names of classes"),
        ("nc: many", "expected nc to be a number of classes but got 'many'"),
        ("nc: 100000000", "expected nc to be a number of classes"),
        ("colour: red", "expected names of classes but got None"),
    ],
)
def test_bad_class_names_are_refused(tmp_path: Path, names: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_dataset(write_yolo(tmp_path, f"{TRAIN}{names}\n"))


def test_images_come_from_folders_lists_of_folders_and_text_files(tmp_path: Path) -> None:
    yaml = (
        "train: [images/train, images/val]\nval: val.txt\ntest: [lists/test.txt]\nextra: val.txt\nnames: [cat, dog]\n"
    )
    path = write_yolo(tmp_path, yaml)
    (tmp_path / "val.txt").write_text("./images/val/c.jpg\nimages/train/a.jpg\n\n")
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists/test.txt").write_text("images/train/b.jpg\n../images/val/c.jpg\n")
    assert load_dataset(path, "train").ids == ["a", "b", "c"]
    assert load_dataset(path, "val").ids == ["c", "a"]  # in the order of the list
    assert load_dataset(path, "test").ids == ["b", "c"]
    assert load_dataset(path, "extra").ids == ["c", "a"]
    assert load_dataset(path).ids == ["a", "b", "c"]
    assert load_dataset(path, "test").target(0)["boxes"].tolist() == [[15, 10, 45, 30]]


def test_folders_below_folders_are_read_and_equal_names_told_apart(tmp_path: Path) -> None:
    labels = {"train/x/a": "0 .5 .5 1 1", "train/y/a": "1 .5 .5 1 1", "val/c": ""}
    dataset = load_dataset(write_yolo(tmp_path, labels=labels), "train")
    assert dataset.ids == ["images/train/x/a", "images/train/y/a"]
    assert [dataset.target(i)["labels"].tolist() for i in range(2)] == [[0], [1]]


def test_the_last_folder_images_of_a_path_becomes_labels(tmp_path: Path) -> None:
    path = write_yolo(tmp_path / "images" / "set")
    assert load_dataset(path, "val").source(0) == str(tmp_path / "images/set/labels/val/c.txt")


def test_labels_beside_the_images_are_read_where_no_folder_is_called_images(tmp_path: Path) -> None:
    write_image(tmp_path / "pics/a.jpg")
    (tmp_path / "pics/a.txt").write_text("0 .5 .5 1 1")
    (tmp_path / "data.yaml").write_text("train: pics\nnames: [cat]\n")
    assert load_dataset(tmp_path, "train").target(0)["labels"].tolist() == [0]


def test_a_root_that_is_gone_is_the_folder_of_the_file(tmp_path: Path) -> None:
    path = write_yolo(tmp_path, YOLO_YAML.replace("path: .", "path: /content/somewhere/else"))
    assert load_dataset(path, "train").ids == ["a", "b"]


def test_a_root_below_the_file_is_followed(tmp_path: Path) -> None:
    write_yolo(tmp_path / "deep")
    (tmp_path / "data.yaml").write_text(YOLO_YAML.replace("path: .", "path: deep"))
    assert load_dataset(tmp_path, "train").ids == ["a", "b"]


def test_the_dots_that_an_exporter_puts_before_its_splits_are_passed_over(tmp_path: Path) -> None:
    yaml = "train: ../images/train\nvalidation: ../images/val\nnames: [cat, dog]\n"
    path = write_yolo(tmp_path / "data", yaml)
    assert load_dataset(path, "train").ids == ["a", "b"]
    assert load_dataset(path, "val").ids == ["c"]


def test_polygons_corners_and_keypoints_give_their_boxes(tmp_path: Path) -> None:
    labels = {"train/a": "0 .5 .9 .1 .3 .2 .4 .7 .8\n1 .1 .1 .9 .1 .9 .5 .1 .5", "val/c": ""}
    boxes = load_dataset(write_yolo(tmp_path / "seg", labels=labels), "train").exact_boxes(0)
    assert np.allclose(boxes, [[6, 12, 42, 36], [6, 4, 54, 20]], atol=1e-12)
    pose = {"train/a": "0 .5 .5 .5 .5 .4 .4 2 .6 .6 1\n", "val/c": ""}
    dataset = load_dataset(write_yolo(tmp_path / "pose", f"{YOLO_YAML}kpt_shape: [2, 3]\n", pose), "train")
    assert dataset.target(0)["boxes"].tolist() == [[15, 10, 45, 30]]


def test_images_without_objects_or_label_files_are_background(tmp_path: Path) -> None:
    path = write_yolo(tmp_path, labels={"train/a": "", "train/b": " \n\n", "train/d": "0 .5 .5 1 1", "val/c": ""})
    write_image(tmp_path / "images/train/z.jpg")
    dataset = load_dataset(path, "train")
    assert dataset.ids == ["a", "b", "d", "z"]
    assert [len(dataset.target(i)["labels"]) for i in range(4)] == [0, 0, 1, 0]


def test_data_without_any_label_file_is_refused_with_the_place_of_the_first(tmp_path: Path) -> None:
    path = write_yolo(tmp_path)
    (tmp_path / "labels").rename(tmp_path / "label")
    with pytest.raises(
        DataError, match=r"2 of 2 images have no label file, first .*labels.train.a\.txt; put the labels"
    ):
        load_dataset(path, "train")


def test_equal_lines_are_one_object(tmp_path: Path) -> None:
    labels = {"train/a": "0 .5 .5 1 1\n1 .5 .5 1 1\n0 0.50 0.50 1.0 1.0\n", "val/c": ""}
    assert load_dataset(write_yolo(tmp_path, labels=labels), "train").target(0)["labels"].tolist() == [0, 1]


def test_boxes_that_reach_a_little_outside_keep_their_numbers(tmp_path: Path) -> None:
    labels = {"train/a": "0 .25 .5 .505 1.01", "val/c": ""}
    boxes = load_dataset(write_yolo(tmp_path, labels=labels), "train").exact_boxes(0)
    assert np.allclose(boxes, [[-0.15, -0.2, 30.15, 40.2]], atol=1e-12)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("2 .5 .5 1 1", r"a\.txt: line 2: expected a class from 0 to 1 but got 2; correct it, or add its name"),
        ("-1 .5 .5 1 1", "expected a class from 0 to 1 but got -1"),
        ("0.5 .5 .5 1 1", "expected a class from 0 to 1 but got 0.5"),
        ("1e308 .5 .5 1 1", "expected a class from 0 to 1 but got 1e308"),
        ("dog .5 .5 1 1", "expected numbers but got 'dog .5 .5 1 1'"),
        ("0 nan .5 1 1", "expected numbers but got '0 nan"),
        ("0 inf .5 1 1", "expected numbers but got '0 inf"),
        ("0 .5 .5 1", "got 4 numbers; write its box"),
        ("0 .5 .5 1 1 .9", r"got 6 numbers \(is the sixth a confidence"),
        ("0 .5 .5 1 1 .9 .5 .5", "got 8 numbers"),
        ("0 .5 .5 -1 1", "width -1, height 1; delete the line"),
        ("0 .5 .5 0 1", "width 0, height 1"),
        ("0 .1 .1 .1 .2 .1 .3", "width 0, height 0.2"),
        ("0 320 240 50 60", "expected shares of the image, from 0 to 1, but got 320; divide x and width by"),
        ("0 1e308 .5 1e308 1", r"expected shares of the image, from 0 to 1, but got 1e\+308"),
        ("0 .5 .5 1.5 1", "but got 1.5"),
        ("0 .5 -.2 .5 1", "but got -0.2"),
    ],
)
def test_a_bad_line_is_refused_with_its_file_and_number(tmp_path: Path, line: str, message: str) -> None:
    path = write_yolo(tmp_path, labels={"train/a": f"0 .5 .5 1 1\n{line}\n", "val/c": ""})
    with pytest.raises(DataError, match=message):
        load_dataset(path, "train")


def test_boxes_without_area_are_dropped_on_request(tmp_path: Path) -> None:
    lines = "0 .5 .5 0 1\n" * 100 + "1 .5 .5 1 1\n0 .5 .5 -.5 1\n"
    path = write_yolo(tmp_path, labels={"train/a": lines, "val/c": ""})
    assert load_dataset(path, "train", degenerate="drop").target(0)["labels"].tolist() == [1]


def test_an_unknown_split_is_named_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no split 'vla'; it has train, val\. Did you mean 'val'"):
        load_dataset(write_yolo(tmp_path), "vla")


def test_options_of_other_formats_are_refused(tmp_path: Path) -> None:
    path = write_yolo(tmp_path)
    with pytest.raises(ConfigError, match="class_names is for VOC folders"):
        load_dataset(path, class_names=["cat"])
    with pytest.raises(ConfigError, match="images is for COCO files"):
        load_dataset(path, images=tmp_path)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_boxes_are_of_the_picture_as_viewers_show_it(tmp_path: Path, orientation: int) -> None:
    """A dark half at the left, as shown, whatever way the pixels are stored."""
    shown = np.full((40, 60, 3), 255, dtype=np.uint8)
    shown[:, :30] = 0
    path = write_yolo(tmp_path, labels={"train/a": "0 .25 .5 .5 1", "val/c": ""})
    undo = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # Pillow's number of what the camera did to the pixels
    stored = Image.fromarray(shown)
    stored = stored.transpose(Image.Transpose(undo[orientation])) if orientation > 1 else stored
    exif = Image.Exif()
    exif[EXIF_ORIENTATION] = orientation
    stored.save(tmp_path / "images/train/a.jpg", exif=exif, quality=95)
    image, target = load_dataset(path, "train")[0]
    assert image.shape == (3, 40, 60)
    x1, y1, x2, y2 = map(int, target["boxes"][0].tolist())
    assert image[:, y1:y2, x1:x2].double().mean() < 20 < 235 < image[:, :, x2:].double().mean()


def test_an_image_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    path = write_yolo(tmp_path)
    (tmp_path / "images/train/b.jpg").write_bytes(b"junk")
    with pytest.raises(DataError, match=r"b\.jpg: is not an image"):
        load_dataset(path, "train")


def test_numbered_images_are_found_by_their_numbers(tmp_path: Path) -> None:
    labels = {"train/0007": "0 .5 .5 1 1", "train/12": "", "train/b": "", "val/c": ""}
    dataset = load_dataset(write_yolo(tmp_path, labels=labels), "train")
    assert [dataset.index_of(image_id) for image_id in (7, "0007", 12, "b")] == [0, 0, 1, 2]
    assert len(dataset) == 3


def test_ignored_regions_are_crowds_of_every_class(tmp_path: Path) -> None:
    path = write_yolo(tmp_path)
    (tmp_path / "ignored_regions.json").write_text(json.dumps({"train/b": [[1, 2, 10.5, 20]], "val/c": []}))
    dataset = load_dataset(path, "train")
    assert dataset.target(0)["iscrowd"].tolist() == [0, 0]
    target = dataset.target(1)
    assert target["boxes"].tolist() == [[15, 10, 45, 30], [1, 2, 10.5, 20], [1, 2, 10.5, 20]]
    assert (target["labels"].tolist(), target["iscrowd"].tolist()) == ([1, 0, 1], [0, 1, 1])


def test_an_ignored_region_with_a_name_is_a_crowd_of_that_class(tmp_path: Path) -> None:
    path = write_yolo(tmp_path)
    name = load_dataset(path, "train").class_names[1]
    (tmp_path / "ignored_regions.json").write_text(json.dumps({"train/b": [[1, 2, 10.5, 20, name], [0, 0, 5, 5]]}))
    target = load_dataset(path, "train").target(1)
    assert (target["labels"].tolist(), target["iscrowd"].tolist()) == ([1, 1, 0, 1], [0, 1, 1, 1])
    assert target["boxes"][1:].tolist() == [[1, 2, 10.5, 20], [0, 0, 5, 5], [0, 0, 5, 5]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read as json"),
        ("[1]", r"expected regions by image but got \[1\]"),
        ('{"train/b": 3}', "'train/b': expected a list of boxes but got 3"),
        ('{"train/b": [[1, 2, 3]]}', r"'train/b', region 0: expected \[x1, y1, x2, y2\] with an area"),
        ('{"train/b": [[1, 2, 3, 4, "nobody"]]}', "expected a class of data.yaml but got 'nobody'"),
        ('{"train/b": [[1, 2, 3, 4, 5]]}', "with an area but got"),
        ('{"train/b": [[5, 2, 3, 9]]}', "with an area but got"),
        ('{"train/b": [[NaN, 2, 3, 9]]}', "with an area but got"),
        ('{"train/b": [[0, 0, 1e308, 9]]}', "with an area but got"),
    ],
)
def test_bad_regions_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = write_yolo(tmp_path)
    (tmp_path / "ignored_regions.json").write_text(text)
    with pytest.raises(DataError, match=f"ignored_regions.json: .*{message}"):
        load_dataset(path, "train")


def test_real_drone_images_have_their_objects_and_ignored_regions() -> None:
    dataset = load_dataset(shared_data("VisDrone-640"), "val")
    assert (len(dataset), len(dataset.class_names)) == (300, 10)
    targets = [dataset.target(i) for i in range(len(dataset))]
    regions = json.loads((shared_data("VisDrone-640") / "ignored_regions.json").read_text())
    count = sum(len(boxes) for key, boxes in regions.items() if key.startswith("val/"))
    assert sum(int(target["iscrowd"].sum()) for target in targets) == 10 * count > 0
    lines = sum(len(path.read_text().split("\n")) - 1 for path in (dataset.root / "labels/val").glob("*.txt"))
    assert sum(int((target["iscrowd"] == 0).sum()) for target in targets) == lines
