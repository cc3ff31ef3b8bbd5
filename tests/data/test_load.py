"""One door: what is there decides."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepgrad.data import COCODataset, ShapesDataset, VOCDataset, load_dataset
from stepgrad.errors import ConfigError, DataError
from tests.data.builders import coco_content, write_coco, write_image, write_voc


@pytest.mark.parametrize("nesting", ["", "VOC2007", "VOCdevkit/VOC2007"])
def test_voc_folder_is_found_at_any_official_depth(tmp_path: Path, nesting: str) -> None:
    root = write_voc(tmp_path / "data" / nesting)
    dataset = load_dataset(tmp_path / "data", "train")
    assert isinstance(dataset, VOCDataset)
    assert dataset.root == root


def test_several_voc_years_must_be_chosen_from(tmp_path: Path) -> None:
    for year in ("VOC2007", "VOC2012"):
        write_voc(tmp_path / year)
    with pytest.raises(DataError, match=r"several VOC folders; pass one of .*VOC2007, .*VOC2012"):
        load_dataset(tmp_path)


@pytest.mark.parametrize("above", ["", "VOCdevkit"])
def test_split_names_the_voc_year_where_there_are_several(tmp_path: Path, above: str) -> None:
    for year in ("VOC2007", "VOC2012"):
        write_voc(tmp_path / above / year, splits={"train": "a\n", "deep/list": "b\n"})
    for year in ("VOC2007", "VOC2012"):
        dataset = load_dataset(tmp_path, f"{year}/train")
        assert isinstance(dataset, VOCDataset)
        assert (dataset.root, dataset.split, dataset.name) == (tmp_path / above / year, "train", f"{year} train")
    assert load_dataset(tmp_path, "VOC2012/").ids == ["a", "b"]
    assert load_dataset(tmp_path, "VOC2012/deep/list").ids == ["b"]


def test_split_may_name_the_folder_that_was_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_voc(tmp_path / "elsewhere")
    (tmp_path / "VOC2007").symlink_to(root, target_is_directory=True)
    assert load_dataset(tmp_path / "VOC2007", "VOC2007/train").ids == ["a", "b"]
    monkeypatch.chdir(tmp_path / "VOC2007")
    assert load_dataset(".", "train").ids == ["a", "b"]


def test_year_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    write_voc(tmp_path / "VOC2012")
    message = (
        r"split 'VOC2007/train' belongs to a VOC folder 'VOC2007', which is not there; it has VOC2012\. Pass the folder that "
        "holds VOC2007"
    )
    for data in (tmp_path, tmp_path / "VOC2012"):
        with pytest.raises(DataError, match=message):
            load_dataset(data, "VOC2007/train")


def test_list_in_a_folder_of_lists_is_found(tmp_path: Path) -> None:
    write_voc(tmp_path / "VOC2012", splits={"mine/few": "b\n"})
    assert load_dataset(tmp_path, "mine/few").ids == ["b"]


def test_coco_file_and_folder_are_recognised(tmp_path: Path) -> None:
    path = write_coco(tmp_path)
    assert isinstance(load_dataset(path), COCODataset)
    assert isinstance(load_dataset(str(tmp_path)), COCODataset)


def test_split_of_a_coco_folder_is_part_of_a_file_name(tmp_path: Path) -> None:
    folder = tmp_path / "annotations"
    folder.mkdir()
    for name in ("instances_train2017", "instances_val2017", "captions_val2017"):
        (folder / f"{name}.json").write_text(json.dumps(coco_content()))
    for name in ("nine.jpg", "four.jpg"):
        write_image(tmp_path / "val2017" / name)
    for split in ("val", "val2017"):
        assert load_dataset(tmp_path, split).name == "instances_val2017"
    with pytest.raises(DataError, match="several COCO files"):
        load_dataset(tmp_path)
    with pytest.raises(DataError, match=r"no COCO file for split 'test'; it has instances_train2017\.json"):
        load_dataset(tmp_path, "test")


def test_word_shapes_is_the_built_in_set() -> None:
    dataset = load_dataset("shapes:val,length=7,seed=3", None)
    assert isinstance(dataset, ShapesDataset)
    assert (dataset.split, len(dataset), dataset.seed) == ("val", 7, 3)
    assert load_dataset("shapes", "test").name == "shapes test"


def test_what_is_not_there_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no such file or folder\. Did you mean 'shapes'\? Looked for: Annotations"):
        load_dataset(tmp_path / "shape")
    with pytest.raises(DataError, match=r"is not a VOC, COCO or YOLO folder\. Looked for: Annotations"):
        load_dataset(tmp_path)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: load_dataset("shapes:vla"), "split of shapes.*Did you mean 'val'"),
        (lambda: load_dataset("shapes:val", "train"), "names another split"),
        (lambda: load_dataset("shapes:val,lenght=3"), "Did you mean 'length'"),
        (lambda: load_dataset("shapes:val,length=few"), "length in .* to be a whole number"),
        (lambda: load_dataset("shapes:val,length=0"), "length of shapes to be a whole number >= 1"),
        (lambda: load_dataset("shapes", class_names=["a"]), "class_names is for VOC folders"),
        (lambda: load_dataset("shapes", images="here"), "images is for COCO files"),
    ],
)
def test_wrong_option_is_refused(call: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()  # type: ignore[operator]


def test_split_of_a_single_coco_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="one COCO file, which has no split 'val'"):
        load_dataset(write_coco(tmp_path), "val")


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(DataError, match=r"expected a folder, a \.json or a \.yaml file"):
        load_dataset(tmp_path / "a.txt")
