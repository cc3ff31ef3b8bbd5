"""COCO files: ids, order, crowds, and complaints with an address."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stepgrad.data import COCODataset
from stepgrad.data.doctor import examine
from stepgrad.errors import DataError
from tests.data.builders import SIZE, coco_content, write_coco, write_image

Content = dict[str, Any]


def test_labels_count_the_categories_in_file_order(tmp_path: Path) -> None:
    dataset = COCODataset(write_coco(tmp_path))
    assert dataset.class_names == ("dog", "cat")
    assert dataset.category_ids == (18, 17)
    assert dataset.target(dataset.index_of(9))["labels"].tolist() == [1, 0]


def test_boxes_areas_and_crowds_are_the_files(tmp_path: Path) -> None:
    dataset = COCODataset(write_coco(tmp_path))
    target = dataset.target(dataset.index_of(9))
    assert target["boxes"].tolist() == [[1, 2, 11, 22], [5.5, 5, 25.5, 25]]
    assert target["area"].tolist() == [77.5, 400]  # the second has no area field
    assert target["iscrowd"].tolist() == [0, 1]
    assert not target["difficult"].any()
    assert target["image_id"] == 9


def test_images_are_in_the_order_of_their_ids(tmp_path: Path) -> None:
    dataset = COCODataset(write_coco(tmp_path))
    assert dataset.ids == [4, 9]
    assert dataset.image_path(0).name == "four.jpg"


def test_ids_read_from_text_find_their_image(tmp_path: Path) -> None:
    assert COCODataset(write_coco(tmp_path)).index_of("9") == 1


def test_image_without_annotations_has_an_empty_target(tmp_path: Path) -> None:
    content = coco_content()
    del content["annotations"][2]
    image, target = COCODataset(write_coco(tmp_path, content))[0]
    assert image.shape[0] == 3
    assert target["boxes"].shape == (0, 4)


@pytest.mark.parametrize("folder", ["images", "instances", "images/instances", "JPEGImages", "."])
def test_images_are_found_in_the_usual_places(tmp_path: Path, folder: str) -> None:
    assert COCODataset(write_coco(tmp_path, images=folder)).image(0).size == (60, 40)


def test_images_of_the_official_layout_are_found(tmp_path: Path) -> None:
    path = tmp_path / "annotations/instances_val2017.json"
    path.parent.mkdir()
    path.write_text(json.dumps(coco_content()))
    for name in ("nine.jpg", "four.jpg"):
        write_image(tmp_path / "val2017" / name)
    assert COCODataset(path).image_path(0) == tmp_path / "val2017/four.jpg"


def test_images_elsewhere_are_asked_for(tmp_path: Path) -> None:
    path = write_coco(tmp_path, images="odd/place")
    with pytest.raises(DataError, match=r"'four.jpg' is in none of .*images=\.\.\."):
        COCODataset(path)
    assert COCODataset(path, images=tmp_path / "odd/place").image(0).size == (60, 40)


def test_missing_image_is_noticed_before_training(tmp_path: Path) -> None:
    path = write_coco(tmp_path)
    (tmp_path / "images/nine.jpg").unlink()
    with pytest.raises(DataError, match=r"1 of 2 images is missing in .*, first 'nine\.jpg'"):
        COCODataset(path)
    assert len(COCODataset(path, need_images=False)) == 2


def _set(where: str, number: int, **values: Any) -> Callable[[Content], None]:
    return lambda content: content[where][number].update(values)


BAD: dict[str, tuple[Callable[[Content], Any], str]] = {
    "duplicate image id": (_set("images", 0, id=4), "image id 4 occurs more than once"),
    "duplicate annotation id": (_set("annotations", 0, id=2), "annotation id 2 occurs more than once"),
    "duplicate category": (_set("categories", 0, id=17), r"category 17 \(cat\) occurs twice"),
    "unknown image": (_set("annotations", 0, image_id=5), "annotation 1 belongs to unknown image 5"),
    "unknown category": (_set("annotations", 0, category_id=1), r"annotation 1 \(image 9\) has unknown category 1"),
    "no width": (_set("annotations", 0, bbox=[1, 2, 0, 9]), r"width 0, height 9; .*degenerate=\"drop\""),
    "negative height": (_set("annotations", 0, bbox=[1, 2, 4, -9]), "width 4, height -9"),
    "short box": (_set("annotations", 0, bbox=[1, 2, 4]), r"expected bbox \[x, y, width, height\] but got \[1, 2, 4\]"),
    "NaN box": (_set("annotations", 0, bbox=[1, 2, 4, float("nan")]), "expected bbox"),
    "boundless box": (_set("annotations", 0, bbox=[1, 2, 4, 10**400]), "expected bbox"),
    "list as id": (
        _set("annotations", 0, id=[1]),
        r"annotation number 0: expected a number or text as id but got \[1\]",
    ),
    "list as category id": (_set("annotations", 0, category_id=[1]), r"unknown category \[1\]"),
    "long file name": (_set("images", 1, file_name="a" * 5000), "1 of 2 images is missing in .*images, first 'aaa"),
    "ids of one text": (_set("images", 0, id="4"), "image id 4 occurs more than once"),
    "area that is no number": (_set("annotations", 0, area=float("nan")), "expected an area of at least 0 but got nan"),
    "negative area": (_set("annotations", 0, area=-1), "expected an area of at least 0 but got -1"),
    "boundless area": (_set("annotations", 0, area=10**400), "expected an area of at least 0"),
    "no images": (lambda content: content.update(images=[], annotations=[]), "lists no images"),
    "no categories key": (lambda content: content.pop("categories"), "categories is not one"),
    "image without id": (lambda content: content["images"][0].pop("id"), "image 0 has no id"),
}


@pytest.mark.parametrize("name", list(BAD))
def test_bad_entry_is_refused_with_its_address(tmp_path: Path, name: str) -> None:
    spoil, message = BAD[name]
    content = coco_content()
    spoil(content)
    path = write_coco(tmp_path, content)
    with pytest.raises(DataError, match=message) as error:
        COCODataset(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("where", "key"),
    [
        ("images", "id"),
        ("images", "file_name"),
        *(("annotations", k) for k in ("id", "image_id", "category_id", "bbox")),
    ],
)
def test_entry_nested_to_any_depth_is_refused(tmp_path: Path, where: str, key: str) -> None:
    """Some depths can still be read but no longer be shown in a message."""
    content = coco_content()
    content[where][1][key] = "VALUE"
    path = write_coco(tmp_path, content)
    text, limit = path.read_text(), sys.getrecursionlimit()
    for depth in [10, *range(limit - 150, limit + 10)]:
        path.write_text(text.replace('"VALUE"', "[" * depth + "]" * depth))
        with pytest.raises(DataError, match=f"{path}: "):
            COCODataset(path)


def test_image_of_a_name_too_long_for_the_disk_is_missing(tmp_path: Path) -> None:
    content = coco_content()
    content["images"][0]["file_name"] = "a" * 5000
    path = write_coco(tmp_path, content)
    with pytest.raises(DataError, match="1 of 2 images is missing"):
        COCODataset(path)
    assert [problem.kind for problem in examine(path).problems if problem.severity == "error"] == ["image-missing"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "is not JSON"),
        (b'{"images": [', "is not JSON"),
        (b"\xff\xfe\x00", "is not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'[{"image_id": 4, "category_id": 18, "bbox": [0, 0, 1, 1], "score": 1}]', "as files of detections are"),
        (b'{"images": 3, "categories": [], "annotations": [2]}', "images, annotations is not one"),
    ],
)
def test_what_is_no_coco_file_is_refused(tmp_path: Path, text: bytes, message: str) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(text)
    with pytest.raises(DataError, match=message):
        COCODataset(path)


def test_boxes_without_area_can_be_dropped_on_request(tmp_path: Path) -> None:
    content = coco_content()
    content["annotations"][0]["bbox"] = [1, 2, 0, 9]
    dataset = COCODataset(write_coco(tmp_path, content), degenerate="drop")
    assert dataset.target(1)["labels"].tolist() == [0]


def test_annotation_id_zero_is_an_object_like_any_other(tmp_path: Path) -> None:
    content = coco_content()
    content["annotations"][2]["id"] = 0
    assert COCODataset(write_coco(tmp_path, content)).target(0)["labels"].tolist() == [0]


def test_transforms_see_image_and_target(tmp_path: Path) -> None:
    dataset = COCODataset(write_coco(tmp_path), transforms=lambda image, target: (image.shape, target))
    assert dataset[0][0] == (3, SIZE[1], SIZE[0])
