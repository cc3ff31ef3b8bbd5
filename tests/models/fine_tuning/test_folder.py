"""The folder of `finetune`: it takes the call that it was made by and no other, and damage in it is named."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import stepgrad as sg
from stepgrad.errors import ConfigError, DataError
from stepgrad.metric.protocol import get_protocol
from stepgrad.models.fine_tuning import ImageWindows
from stepgrad.models.fine_tuning.folder import by_value, digest
from tests.models.fine_tuning.damage import DAMAGE, flip_a_bit
from tests.models.fine_tuning.made_up import SMALL, TRAIN, VAL, new_head, weights

EQUAL = torch.ones(2)
CALL: dict[str, Any] = {"train_images": TRAIN, "val_images": VAL, "protocol": "voc12", "class_weights": EQUAL, **SMALL}


def tune(out: Path, head: nn.Module | None = None, **changed: Any) -> sg.fine_tuning.FineTuned:
    return sg.finetune(head or new_head(), out=out, progress=False, **{**CALL, **changed})


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run")
    tune(out)
    return out


def other_labels(image: ImageWindows) -> ImageWindows:
    return image._replace(target={**image.target, "labels": 1 - image.target["labels"]})


def of_stock(outputs: torch.Tensor, given: Any) -> torch.Tensor:
    return outputs.square().mean()


def with_tanh() -> nn.Module:
    """The weights of `new_head`, and another layer without weights between them."""
    head = new_head()
    head[1] = nn.Tanh()  # type: ignore[index]
    return head


def with_frozen() -> nn.Module:
    head = new_head()
    head[0].requires_grad_(False)  # type: ignore[index]
    return head


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "labels of half the images": (
        {"train_images": [other_labels(image) if n % 2 else image for n, image in enumerate(TRAIN)]},
        "train_images.targets",
    ),
    "a feature": (
        {"train_images": [*TRAIN[:-1], TRAIN[-1]._replace(features=TRAIN[-1].features + 1e-3)]},
        "train_images.windows",
    ),
    "a training image held out": ({"train_images": TRAIN[:-1], "val_images": [TRAIN[-1], *VAL]}, "train_images"),
    "labels of held-out images": ({"val_images": [other_labels(image) for image in VAL]}, "val_images.targets"),
    "a flag of another name": (
        {"train_images": [i._replace(target={**i.target, "iscrowd": torch.zeros(3)}) for i in TRAIN]},
        "train_images.targets",
    ),
    "a protocol of the same name": (
        {"protocol": replace(get_protocol("voc12"), match_thresholds=(0.9,), absent_classes="skip")},
        r'absent_classes was "zero" and is "skip"; protocol.match_thresholds was \[0.5\] and is \[0.9\]',
    ),
    "class weights": ({"class_weights": torch.tensor([1.0, 2.0])}, "loss_options.class_weights differs"),
    "a loss option": ({"radius": 2.0}, "loss_options.radius"),
    "the usual loss": ({"stock_loss": of_stock}, "stock_loss"),
    "weights": ({"head": new_head(1)}, "head differs"),
    "a layer without weights": ({"head": with_tanh()}, "head differs"),
    "frozen weights": ({"head": with_frozen()}, "frozen weights"),
    "steps": ({"steps": 4}, "steps was 3 and is 4"),
    "seeds": ({"seeds": [0]}, "seeds"),
}


@pytest.mark.parametrize(("changed", "what"), CHANGES.values(), ids=list(CHANGES))
def test_a_folder_of_other_input_is_refused_and_left_alone(changed: dict[str, Any], what: str, done: Path) -> None:
    before = {file: file.read_bytes() for file in done.rglob("*") if file.is_file()}
    with pytest.raises(ConfigError, match=rf"{what}.*Choose another out, or delete"):
        tune(done, **changed)
    assert {file: file.read_bytes() for file in done.rglob("*") if file.is_file()} == before


def test_the_same_values_from_elsewhere_are_the_same_call(done: Path) -> None:
    before = {file: file.stat().st_mtime_ns for file in done.rglob("*.safetensors")}
    copied = [ImageWindows(*(v.clone() for v in i[:2]), {k: v.clone() for k, v in i.target.items()}) for i in TRAIN]  # type: ignore[attr-defined]
    tune(done, new_head(), train_images=copied, protocol=replace(get_protocol("voc12")), class_weights=EQUAL.clone())
    assert {file: file.stat().st_mtime_ns for file in done.rglob("*.safetensors")} == before


def test_labels_that_are_columns_of_a_table_are_hashed_too(tmp_path: Path) -> None:
    column = torch.zeros(9, 5, dtype=torch.int64)[:, 0]
    one = [i._replace(target={"boxes": i.target["boxes"][:1], "labels": column[:1]}) for i in TRAIN]
    assert one[0].target["labels"].stride() == (5,)
    tune(tmp_path, train_images=one)


def test_digests_of_values_differ_where_a_text_of_them_would_not() -> None:
    long = torch.zeros(5000)
    other = long.clone()
    other[2500] = 1
    assert str(long) == str(other)
    assert digest([long]) != digest([other])
    assert digest({"a": 1, "b": [2]}) == digest({"b": (2,), "a": 1})
    assert by_value(get_protocol("coco"))["match_thresholds"] == list(get_protocol("coco").match_thresholds)


def heads_of(out: Path) -> list[Path]:
    return sorted((out / "heads").iterdir())


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=list(DAMAGE))
def test_every_damaged_head_is_named_and_trained_again_once_deleted(
    damage: Callable[[Path], object], done: Path, tmp_path: Path
) -> None:
    whole = tune(done)
    for number in range(len(heads_of(done))):
        out = tmp_path / str(number)
        shutil.copytree(done, out)
        head = heads_of(out)[number]
        damage(head)
        with pytest.raises(DataError, match=f"{head.name}: .*; delete it, and it is trained again"):
            tune(out)
        shutil.rmtree(head) if head.is_dir() else head.unlink()
        assert weights(tune(out).head) == weights(whole.head)


def test_no_flipped_bit_of_a_head_is_accepted(done: Path, tmp_path: Path) -> None:
    shutil.copytree(done, tmp_path / "out")
    head = heads_of(tmp_path / "out")[0]
    for place in range(0, head.stat().st_size, 29):
        flip_a_bit(head, place)
        with pytest.raises(DataError, match=head.name):
            tune(tmp_path / "out")
        flip_a_bit(head, place)
    tune(tmp_path / "out")


@pytest.mark.parametrize("content", [b"\xff\xfe{}", b"", b"[1, 2]", b'{"a": ', b"[" * 100_000, None])
def test_settings_that_cannot_be_read_are_named(content: bytes | None, done: Path, tmp_path: Path) -> None:
    shutil.copytree(done, tmp_path / "out")
    file = tmp_path / "out" / "settings.json"
    file.unlink()
    file.mkdir() if content is None else file.write_bytes(content)
    with pytest.raises(DataError, match=r"settings\.json: cannot be read .*choose another out, or delete the folder"):
        tune(tmp_path / "out")


def test_heads_without_their_settings_are_not_taken_for_those_of_another_call(done: Path, tmp_path: Path) -> None:
    shutil.copytree(done, tmp_path / "out")
    (tmp_path / "out" / "settings.json").unlink()
    with pytest.raises(DataError, match="belongs to another training"):
        tune(tmp_path / "out", steps=4)


def test_a_file_in_place_of_the_folder_of_heads_is_named_before_any_training(tmp_path: Path) -> None:
    (tmp_path / "heads").write_text("x")
    told: list[str] = []
    with pytest.raises(DataError, match=r"heads: expected a folder"):
        tune(tmp_path, watch=lambda what, done, total: told.append(what))
    assert told == []
