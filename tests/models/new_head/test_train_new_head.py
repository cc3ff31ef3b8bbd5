"""The call as a whole: what comes out, what is kept in the folder, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import stepgrad as sg
from stepgrad.errors import ConfigError, DataError, InputError
from stepgrad.integrations._held_out import as_used
from stepgrad.new_head.cache import IMAGES_PER_FILE
from tests.integrations.tiny import tiny_batch, tiny_model

QUICK: dict[str, Any] = {
    "start_steps": 4,
    "start_rates": [1e-2],
    "weight_decays": [0.0],
    "steps": 2,
    "images_per_step": 4,
    "rates": [1e-2],
    "stock_rates": [1e-2],
    "seeds": [0, 1],
    "protocol": "voc12",
    "windows": 40,
    "others": 10,
    "progress": False,
}


def pairs(count: int, seed: int) -> list[tuple[Tensor, dict[str, Tensor]]]:
    images, targets = tiny_batch("retinanet", count, seed)  # whose labels count from 0
    return list(zip(images, targets, strict=True))


TRAIN, VAL = pairs(6, seed=1), pairs(4, seed=2)


def run(model: nn.Module, out: Path | None = None, **changed: Any) -> Any:
    return sg.train_new_head(model, TRAIN, VAL, **{"num_classes": 3, "out": out, **QUICK, **changed})


class Counted(list[Any]):
    """Data that counts how often an image is read."""

    reads = 0
    stop_at: int | None = None

    def __getitem__(self, number: Any) -> Any:
        self.reads += 1
        if self.reads == self.stop_at:
            raise KeyboardInterrupt
        return super().__getitem__(number)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    out = tmp_path_factory.mktemp("run")
    return out, run(tiny_model("ssd"), out, class_names=["a", "b", "c"])


def test_the_model_detects_the_new_classes(done: tuple[Path, Any]) -> None:
    _, result = done
    model = result.model
    with as_used(model):
        found = model([VAL[0][0]])[0]
    assert result.names == {1: "a", 2: "b", 3: "c"}
    assert set(found["labels"].tolist()) <= set(result.names)
    assert len(found["boxes"]) > 0
    assert model.head.classification_head.num_columns == 4


def test_the_result_has_the_control_and_the_whole_model(done: tuple[Path, Any]) -> None:
    _, result = done
    assert list(result.tuned.ways) == ["start", "more of the usual loss", "mAP"]
    assert 0.0 <= result.whole <= 1.0
    assert "The model as a whole" in str(result)


def test_the_same_call_gives_the_same_model_without_reading_an_image_twice(done: tuple[Path, Any]) -> None:
    out, first = done
    counted, model = Counted(TRAIN), tiny_model("ssd")
    trained_before = {file.stat().st_mtime_ns for file in out.rglob("*.safetensors")}
    options = {"num_classes": 3, "class_names": ["a", "b", "c"], "out": out, **QUICK}
    again = sg.train_new_head(model, counted, VAL, **options)
    assert counted.reads == len(TRAIN)  # each once, for its fingerprint
    assert {file.stat().st_mtime_ns for file in out.rglob("*.safetensors")} == trained_before
    for one, other in zip(again.model.parameters(), first.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_everything_but_the_class_layer_is_as_it_was(done: tuple[Path, Any]) -> None:
    _, result = done
    stock = tiny_model("ssd").state_dict()
    for name, value in result.model.state_dict().items():
        if "classification_head" not in name:
            assert torch.equal(value, stock[name]), name
    assert result.model.training == tiny_model("ssd").training
    assert all(weights.requires_grad for weights in result.model.parameters())


def test_features_that_are_there_are_not_made_again(tmp_path: Path) -> None:
    many = Counted(pairs(IMAGES_PER_FILE + 3, seed=3))
    fingerprints = len(range(0, len(many), len(many) // 16))
    many.stop_at = fingerprints + IMAGES_PER_FILE + 2
    with pytest.raises(KeyboardInterrupt):
        sg.train_new_head(tiny_model("ssd"), many, VAL, num_classes=3, out=tmp_path, **QUICK)
    (kept,) = (tmp_path / "features").glob("train-*.safetensors")
    many.stop_at, many.reads = None, 0
    sg.train_new_head(tiny_model("ssd"), many, VAL, num_classes=3, out=tmp_path, **{**QUICK, "rounds": 1})
    assert many.reads == fingerprints + 3
    assert kept.exists()


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"model": tiny_model("ssd", seed=1)}, "model"),
        ({"train_data": pairs(6, seed=5)}, "data"),
        ({"windows": 39}, "best windows"),
    ],
)
def test_a_folder_of_another_run_is_refused_before_any_work(
    changed: dict[str, Any], what: str, done: tuple[Path, Any]
) -> None:
    out, _ = done
    given: dict[str, Any] = {"model": tiny_model("ssd"), "train_data": TRAIN, "val_data": VAL, **QUICK, **changed}
    before = {name: value.clone() for name, value in given["model"].state_dict().items()}
    with pytest.raises(ConfigError, match=rf"features of another run \({what} of train.json differ\)"):
        sg.train_new_head(**given, num_classes=3, out=out)
    assert all(torch.equal(value, before[name]) for name, value in given["model"].state_dict().items())


def test_a_damaged_file_of_features_is_named(tmp_path: Path) -> None:
    run(tiny_model("ssd"), tmp_path)
    (file,) = (tmp_path / "features").glob("val-0*.safetensors")
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(DataError, match=rf"{file.name}: cannot be read"):
        run(tiny_model("ssd"), tmp_path)


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(tiny_model("faster_rcnn")).tuned.report is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("family", ["retinanet", "fcos"])
def test_where_classes_have_a_sigmoid_each_labels_count_from_0(family: str) -> None:
    result = run(tiny_model(family))
    assert result.names == {0: "0", 1: "1", 2: "2"}
    assert result.model.head.classification_head.num_classes == 3


def test_fewer_classes_than_labels_are_refused() -> None:
    with pytest.raises(InputError, match=r"train image 0: expected labels in \[0, 2\) but got 2; they count from 0"):
        run(tiny_model("ssd"), num_classes=2)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"num_classes": None}, ConfigError, "Expected num_classes"),
        ({"class_names": ["a"]}, ConfigError, "as many class_names as num_classes, 3, but got 1"),
        ({"windows": 0}, ConfigError, "windows"),
        ({"start_rates": []}, ConfigError, "at least one of start_rates"),
        ({"refit": lambda images: None}, ConfigError, "leave it out"),
    ],
)
def test_a_wrong_option_is_refused(changed: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        run(tiny_model("ssd"), **changed)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "at least one image"),
        (iter(TRAIN), "a list or a dataset with a length"),
        ([TRAIN[0][0]], r"expected|Expected"),
        ([(TRAIN[0][0][0], TRAIN[0][1])], r"train image 0: expected a tensor \(3, H, W\)"),
        ([(TRAIN[0][0], {"boxes": TRAIN[0][1]["boxes"]})], r"expected a target with 'boxes' and 'labels'"),
    ],
)
def test_data_that_are_something_else_are_refused(data: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        sg.train_new_head(tiny_model("ssd"), data, VAL, num_classes=3, **QUICK)


def test_a_second_round_adds_windows_and_keeps_those_of_the_first(tmp_path: Path) -> None:
    run(tiny_model("ssd"), tmp_path)
    first = load_file(tmp_path / "features" / "train-000000.safetensors")
    second = load_file(tmp_path / "features" / "train-2-000000.safetensors")
    for n in range(len(TRAIN)):
        before, added = first[f"{n}.numbers"].tolist(), second[f"{n}.numbers"].tolist()
        assert len(before) == QUICK["windows"] + QUICK["others"]
        assert len(added) == QUICK["windows"]
        assert not set(before) & set(added)
