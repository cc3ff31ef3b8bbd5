"""Several splits trained on together: every image is found once, with its own picture, objects and windows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from stepgrad.data import PackedProposals, generate_proposals, import_proposals, load_dataset
from stepgrad.detector import FastRCNN
from stepgrad.detector.training.config import DataConfig, from_dict
from stepgrad.detector.training.engine import train
from stepgrad.detector.training.features import source_for
from stepgrad.detector.training.inputs import Images, find_training, locate, open_split, with_windows
from stepgrad.errors import ConfigError, DataError
from tests.data.builders import CAT, DOG, write_image, write_voc

BOTH = "VOC2007/trainval+VOC2012/trainval"


def write_devkit(root: Path) -> Path:
    """Two years; image `a` is in both, with other pixels and objects. VOC2012 has one image more."""
    lists = {"trainval": "a\nb\n", "test": "b\n"}
    write_voc(root / "VOC2007", {"a": [DOG], "b": [DOG, CAT]}, lists)
    write_voc(root / "VOC2012", {"a": [CAT, CAT], "c": [DOG], "d": [CAT]}, {"trainval": "a\nc\nd\n"})
    for seed, image_id in enumerate("acd", start=10):
        write_image(root / "VOC2012" / "JPEGImages" / f"{image_id}.jpg", seed=seed)
    return root


def write_windows(devkit: Path, folder: Path) -> Path:
    """`folder/VOC2007` and `folder/VOC2012`: one window an image, which tells year and place in the list."""
    for year in ("VOC2007", "VOC2012"):
        dataset = load_dataset(devkit / year, "trainval")
        count = len(dataset)
        boxes = [[int(year[-2:]), number, 30, 30] for number in range(count)]
        packed = PackedProposals(dataset.ids, np.arange(count + 1), boxes, "made up")
        import_proposals(packed, dataset, folder / year)
    return folder


@pytest.fixture
def config(tmp_path: Path) -> DataConfig:
    devkit = write_devkit(tmp_path / "VOCdevkit")
    windows = write_windows(devkit, tmp_path / "windows")
    return DataConfig(str(devkit), train=BOTH, val="VOC2007/test", windows=str(windows))


def open_training(config: DataConfig) -> list[Images]:
    return with_windows(find_training(config))


def changed(config: DataConfig, **keys: object) -> DataConfig:
    return from_dict({"data": {**vars(config), **keys}}).data


def test_images_of_both_years_keep_their_pictures_objects_and_windows(config: DataConfig) -> None:
    data = open_training(config)
    assert [len(part) for part in data] == [2, 3]
    at = 0
    for year in ("VOC2007", "VOC2012"):
        dataset = load_dataset(Path(config.path) / year, "trainval")
        for number in range(len(dataset)):
            part, index = locate(data, at)
            example = part.example(index)
            assert torch.equal(example.image, dataset[number][0])
            assert torch.equal(example.target["boxes"], dataset.target(number)["boxes"])
            assert example.windows.tolist() == [[int(year[-2:]), number, 30, 30]]
            assert part.fingerprint(index) == dataset.fingerprint(number)
            at += 1
    with pytest.raises(IndexError):
        locate(data, at)


def test_features_of_images_with_one_id_are_kept_apart(config: DataConfig, tmp_path: Path) -> None:
    model = FastRCNN(20, "tiny", weights=None, hidden=8, freeze="trunk", shortest_side=None, longest_side=None).eval()
    data = open_training(config)
    for _ in range(2):  # computed, then read
        source = source_for(model, tmp_path / "features")
        for part in data:
            for flipped in (False, True):
                found, example = source(part, 0, flipped), part.example(0, flipped)
                (expected,) = model.extract([example.image])
                assert torch.equal(found.image.map, expected.map)
                assert (found.image.scale, found.image.size) == (expected.scale, expected.size)
                assert torch.equal(found.windows, example.windows)
                assert torch.equal(found.target["boxes"], example.target["boxes"])


def test_parts_of_splits_and_a_limit_over_all_of_them_can_be_taken(config: DataConfig) -> None:
    data = open_training(changed(config, train="VOC2007/trainval[1:] + VOC2012/trainval[:2]"))
    assert [int(part.windows(i)[0, 1]) for part in data for i in range(len(part))] == [1, 0, 1]
    for limit, counts in ((1, [1]), (3, [2, 1]), (30, [2, 3])):
        assert [len(part) for part in open_training(changed(config, train_images=limit))] == counts
    with pytest.raises(ConfigError, match=r"data\.train_images: expected at least one image but got 0"):
        open_training(changed(config, train_images=0))


def test_windows_are_searched_for_in_a_folder_of_each_year(
    config: DataConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cv2.ximgproc", reason="selective search needs the extra `detector`")
    monkeypatch.chdir(tmp_path)
    for year in ("VOC2007", "VOC2012"):  # here, as many small images do not need processes
        generate_proposals(load_dataset(Path(config.path) / year, "trainval"), f"proposals/{year}-fast")
    open_training(changed(config, windows=None))
    kept = {folder.name: len(list(folder.glob("*.npz"))) for folder in Path("proposals").iterdir()}
    assert kept == {"VOC2007-fast": 2, "VOC2012-fast": 3}


BAD = {
    "VOC2007/trainval+VOC2013/trainval": "belongs to a VOC folder 'VOC2013', which is not there; it has VOC2007, VOC2012.",
    "VOC2007/trainval+VOC2012/test": r"VOC2012/ImageSets/Main/test.txt: no such image set; it has trainval",
    "VOC2007/trainval+VOC2007/test": r"b.xml: is in VOC2007 trainval and again in VOC2007 test; leave one of the two out",
    "VOC2007/trainval+trainval": "holds several VOC folders; pass one of .*, or name it in the split: VOC2007/trainval",
}


@pytest.mark.parametrize("train", BAD)
def test_what_cannot_be_joined_is_refused(train: str, config: DataConfig) -> None:
    with pytest.raises(DataError, match=BAD[train]):
        open_training(changed(config, train=train))


@pytest.mark.parametrize("train", ["+", "VOC2007/trainval+", "VOC2007/trainval++VOC2012/trainval"])
def test_a_join_of_nothing_is_refused(train: str, config: DataConfig) -> None:
    with pytest.raises(ConfigError, match=r"data\.train: expected splits with '\+' between them but got"):
        open_training(changed(config, train=train))


def test_one_source_of_windows_for_two_images_of_one_id_is_refused(config: DataConfig, tmp_path: Path) -> None:
    file = tmp_path / "all.npz"
    np.savez(file, ids=list("abcd"), offsets=[0, 1, 2, 3, 4], boxes=[[0, 0, 9, 9]] * 4)
    with pytest.raises(DataError, match=r"cannot tell image 'a' of VOC2007 trainval from that of VOC2012 trainval"):
        open_training(changed(config, windows=str(file)))
    (alone,) = open_training(changed(config, train="VOC2012/trainval", windows=str(file)))
    assert len(alone) == 3


def test_missing_windows_of_one_year_are_named(config: DataConfig) -> None:
    next((Path(config.windows or "") / "VOC2012").glob("c.npz")).unlink()
    with pytest.raises(DataError, match=r"windows/VOC2012: has no windows for 1 of the 3 images of VOC2012 trainval"):
        open_training(config)


def test_years_of_other_classes_are_refused(config: DataConfig) -> None:
    (Path(config.path) / "VOC2012" / "classes.txt").write_text("cat\ndog\n")
    with pytest.raises(DataError, match="same classes in VOC2007 trainval and VOC2012 trainval but got"):
        open_training(config)


def test_validation_takes_one_split(config: DataConfig) -> None:
    with pytest.raises(
        ConfigError, match=r"data\.val: expected one split here but got 'VOC2007/test\+VOC2012/trainval'"
    ):
        open_split(changed(config, val="VOC2007/test+VOC2012/trainval"), "val")


def test_a_run_reads_the_images_of_the_second_year_too(config: DataConfig, tmp_path: Path) -> None:
    """One step of as many images as there are meets the damaged one."""
    damaged = Path(config.path) / "VOC2012" / "JPEGImages" / "d.jpg"
    damaged.write_bytes(damaged.read_bytes()[:99])
    small = {"backbone": "tiny", "weights": None, "hidden": 8, "shortest_side": None, "longest_side": None}
    data = {**vars(config), "flip": False}
    content = {"loss": "nll", "data": data, "model": small, "nll": {"steps": 1, "images": 5}, "run": {"report": False}}
    with pytest.raises(DataError, match=r"VOC2012/JPEGImages/d\.jpg"):
        train(from_dict(content), tmp_path / "run")
