"""Runs whose boxes move: both phases train them, stopping changes nothing, and their scale stays with the weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import stepgrad.detector.training.engine as engine
from stepgrad.data import load_dataset
from stepgrad.detector import FastRCNN
from stepgrad.detector.training.build import build_model, measure_boxes
from stepgrad.detector.training.config import DataConfig, TrainConfig
from stepgrad.detector.training.inputs import find_training, with_windows
from stepgrad.detector.training.run_folder import open_run
from stepgrad.errors import DataError
from tests.detector.training.small_runs import StopAt, last, log_of, small_config


def config(**model: Any) -> TrainConfig:
    run = {"eval_every": 2, "save_every": 1}
    short: dict[str, Any] = {"data": {"train_images": 4, "val_images": 2}, "nll": {"steps": 2}, "map": {"steps": 2}}
    return small_config(**short, run=run, model={"hidden": 16, "box_regression": True, **model})


def new_model(weights: str | None = None, **model: Any) -> FastRCNN:
    return build_model(config(**model), len(load_dataset("shapes").class_names), weights)


def boxes(model: FastRCNN) -> dict[str, torch.Tensor]:
    assert model.head.boxes is not None
    return model.head.boxes.state_dict()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "unbroken"
    engine.train(config(), folder)
    return folder


def test_both_phases_train_the_boxes(run: Path) -> None:
    lines = [line for line in log_of(run) if line["kind"] == "train"]
    assert [sorted(line["losses"]) for line in lines] == [["box", "nll"]] * 2 + [["box", "map"]] * 2
    assert not torch.equal(boxes(new_model())["layer.weight"], boxes(open_run(run, "last").model)["layer.weight"])


def test_an_opened_run_has_the_scale_of_its_training_data(run: Path) -> None:
    model = new_model()
    measure_boxes(model, with_windows(find_training(config().data)), flip=True)
    opened, measured = boxes(open_run(run).model), boxes(model)
    assert measured["mean"].any()
    assert torch.equal(opened["mean"], measured["mean"])
    assert torch.equal(opened["std"], measured["std"])
    assert opened["mean"][:, 0].abs().max() < 1e-6  # for each window to the left there is one to the right


def test_a_stopped_run_ends_with_the_same_bytes(run: Path, tmp_path: Path) -> None:
    with pytest.raises(engine.RunInterrupted):
        engine.train(config(), tmp_path / "run", progress=StopAt(3))
    engine.resume(tmp_path / "run")
    assert last(tmp_path / "run") == last(run)


def test_a_new_run_from_these_weights_keeps_their_scale(run: Path) -> None:
    model = new_model(str(run))
    measure_boxes(model, with_windows(find_training(DataConfig("shapes", train_images=2))), flip=False)
    assert torch.equal(boxes(model)["mean"], boxes(open_run(run).model)["mean"])


def test_weights_without_moves_do_not_fit_a_model_that_moves(run: Path) -> None:
    with pytest.raises(DataError, match="box_regression"):
        new_model(str(run), box_regression=False)
