"""The folder of `train_new_head`: it takes the call that it was made by and no other, and damage in it is named."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

import stepgrad as sg
from stepgrad.data.base import FileDataset, make_target
from stepgrad.errors import ConfigError, DataError, StepgradError
from stepgrad.metric.protocol import get_protocol
from tests.models.fine_tuning.damage import DAMAGE, flip_a_bit
from tests.models.new_head.small import QUICK, TRAIN, VAL, pairs
from tests.models.tiny import tiny_model

Pairs = list[tuple[Tensor, dict[str, Tensor]]]
MANY = pairs(40, seed=7)
CALL: dict[str, Any] = {"train_data": MANY, "val_data": VAL, "num_classes": 3, **QUICK, "rounds": 1}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run")
    sg.train_new_head(tiny_model("ssd"), **CALL, class_weights=torch.ones(3), out=out)
    return out


def repeated(out: Path, **changed: Any) -> Any:
    call = {"model": tiny_model("ssd"), "class_weights": torch.ones(3), **CALL, **changed}
    return sg.train_new_head(out=out, **call)


def with_changed(numbers: range, change: Callable[[Tensor, dict[str, Tensor]], Any]) -> Pairs:
    return [change(*pair) if n in numbers else pair for n, pair in enumerate(MANY)]


def other_labels(image: Tensor, target: dict[str, Tensor]) -> Any:
    return image, {**target, "labels": (target["labels"] + 1) % 3}


def other_boxes(image: Tensor, target: dict[str, Tensor]) -> Any:
    return image, {**target, "boxes": target["boxes"] + 0.25}


def black(image: Tensor, target: dict[str, Tensor]) -> Any:
    return torch.zeros_like(image), target


def one_pixel(image: Tensor, target: dict[str, Tensor]) -> Any:
    image = image.clone()
    image[0, 0, 0] = 1 - image[0, 0, 0]
    return image, target


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "labels of half the images": ({"train_data": with_changed(range(1, 40, 2), other_labels)}, "train_data.targets"),
    "boxes of one image": ({"train_data": with_changed(range(17, 18), other_boxes)}, "train_data.targets"),
    "pixels of half the images": ({"train_data": with_changed(range(1, 40, 2), black)}, "train_data.images"),
    "one pixel": ({"train_data": with_changed(range(39, 40), one_pixel)}, "train_data.images"),
    "labels of held-out images": ({"val_data": [other_labels(*pair) for pair in VAL]}, "val_data.targets"),
    "fewer images": ({"train_data": MANY[:-1]}, "train_data.count was 40 and is 39"),
    "test images": ({"test_data": VAL}, "test_data.count"),
    "weights": ({"model": tiny_model("ssd", seed=1)}, "model differs"),
    "windows": ({"windows": 39}, "windows was 40 and is 39"),
    "steps of the start": ({"start_steps": 5}, "steps was 4 and is 5"),
    "steps": ({"steps": 3}, "steps was 2 and is 3"),
    "a protocol of the same name": (
        {"protocol": replace(get_protocol("voc12"), match_thresholds=(0.9,))},
        r"protocol.match_thresholds was \[0.5\] and is \[0.9\]",
    ),
    "class weights": ({"class_weights": torch.tensor([1.0, 1.0, 2.0])}, "class_weights differs"),
}


@pytest.mark.parametrize(("changed", "what"), CHANGES.values(), ids=list(CHANGES))
def test_a_folder_of_other_input_is_refused_before_any_work(changed: dict[str, Any], what: str, done: Path) -> None:
    before = {file: file.read_bytes() for file in done.rglob("*") if file.is_file()}
    with pytest.raises(ConfigError, match=rf"{what}.*[Cc]hoose another out, or delete"):
        repeated(done, **changed)
    assert {file: file.read_bytes() for file in done.rglob("*") if file.is_file()} == before


def test_what_was_done_before_other_options_mattered_is_kept(done: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(done, out)
    before = {
        file: file.stat().st_mtime_ns for part in ("features", "cross-entropy-1") for file in (out / part).iterdir()
    }
    shutil.rmtree(out / "fine-tuning")  # as the message about other options of fine-tuning says
    tuned = repeated(out, steps=3)
    assert {file: file.stat().st_mtime_ns for file in before} == before
    assert str(tuned) == str(sg.train_new_head(tiny_model("ssd"), **{**CALL, "steps": 3}, class_weights=torch.ones(3)))


def test_windows_of_a_second_round_belong_to_the_layer_that_chose_them(tmp_path: Path) -> None:
    repeated(tmp_path, train_data=TRAIN, rounds=2)
    with pytest.raises(ConfigError, match=r"settings-2\.json: .*start\.rates was \[0\.01\] and is \[0\.1\]"):
        repeated(tmp_path, train_data=TRAIN, rounds=2, start_rates=[1e-1])


class Folder(FileDataset):
    """Pictures in files; counts how many are decoded."""

    name = "pictures"
    class_names = ("a", "b", "c")

    def __init__(self, root: Path) -> None:
        self.ids = [str(n) for n in range(len(TRAIN))]
        self.root, self.decoded = root, 0
        root.mkdir(exist_ok=True)
        for n, (image, _) in enumerate(TRAIN):
            pixels = (255 * image).to(torch.uint8).permute(1, 2, 0).numpy()
            Image.fromarray(pixels).save(self.image_path(n))

    def image_path(self, index: int) -> Path:
        return self.root / f"{index}.png"

    def target(self, index: int) -> Any:
        target = TRAIN[index][1]
        return make_target(target["boxes"].numpy(), target["labels"].numpy(), self.ids[index])

    def image(self, index: int) -> Image.Image:
        self.decoded += 1
        return super().image(index)


def test_images_in_files_are_known_by_their_bytes_and_not_decoded_again(tmp_path: Path) -> None:
    data = Folder(tmp_path / "pictures")
    repeated(tmp_path / "out", train_data=data)
    assert data.decoded == len(data)
    repeated(tmp_path / "out", train_data=data)
    assert data.decoded == len(data)
    Image.new("RGB", (64, 64)).save(data.image_path(3))
    with pytest.raises(ConfigError, match=r"train_data\.images differs"):
        repeated(tmp_path / "out", train_data=data)


def test_transforms_of_a_dataset_are_part_of_its_content(tmp_path: Path) -> None:
    data = Folder(tmp_path / "pictures")
    repeated(tmp_path / "out", train_data=data)
    data.transforms = lambda image, target: (255 - image, target)
    with pytest.raises(ConfigError, match=r"train_data\.images differs"):
        repeated(tmp_path / "out", train_data=data)


def files_of(out: Path) -> list[Path]:
    return sorted(file.relative_to(out) for file in out.rglob("*.safetensors"))


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=list(DAMAGE))
def test_every_damaged_file_of_weights_or_features_is_named_and_made_again_once_deleted(
    damage: Callable[[Path], None], done: Path, tmp_path: Path
) -> None:
    whole = repeated(done)
    for name in (files := files_of(done)):
        out = tmp_path / "out"
        shutil.copytree(done, out)
        damage(out / name)
        with pytest.raises(DataError, match=f"{name.as_posix()}.*delete it, and it is"):
            repeated(out)
        if name in (files[0], files[-1]):  # the way out, where the first and the last of the work was stored
            shutil.rmtree(out / name) if (out / name).is_dir() else (out / name).unlink()
            again = repeated(out)
            assert str(again) == str(whole)
        shutil.rmtree(out)


def test_no_flipped_bit_of_a_file_of_features_is_accepted(done: Path, tmp_path: Path) -> None:
    name = next(name for name in files_of(done) if name.parts[0] == "features")
    size = (done / name).stat().st_size
    for place in range(0, size, size // 12):
        shutil.copytree(done, tmp_path / "out")
        flip_a_bit(tmp_path / "out" / name, place)
        with pytest.raises(DataError, match=name.name):
            repeated(tmp_path / "out")
        shutil.rmtree(tmp_path / "out")


@pytest.mark.parametrize(
    "name", ["features", "cross-entropy-1", "fine-tuning", "cross-entropy-1/heads", "features/settings.json"]
)
def test_a_file_in_place_of_a_folder_or_a_folder_in_place_of_a_file_is_named(
    name: str, done: Path, tmp_path: Path
) -> None:
    shutil.copytree(done, tmp_path / "out")
    place = tmp_path / "out" / name
    if place.is_dir():
        shutil.rmtree(place)
        place.write_text("x")
    else:
        place.unlink()
        place.mkdir()
    with pytest.raises(StepgradError, match=name):
        repeated(tmp_path / "out")
