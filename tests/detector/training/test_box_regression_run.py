"""Runs whose boxes move: what is kept on disk, that stopping changes nothing, and that a run without is as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from stepgrad.detector.training.joined import open_training

import stepgrad.detector.training.engine as engine
from stepgrad.data import load_dataset
from stepgrad.detector.training.build import build_model, measure_boxes
from stepgrad.detector.training.config import TrainConfig, from_dict
from stepgrad.detector.training.inputs import open_split
from stepgrad.detector.training.run_folder import open_run, read_log
from stepgrad.errors import DataError
from tests.detector.training.test_engine import StopAt, last

STEPS = {"steps": 2, "images": 2, "windows": 24, "foreground": 0.5, "background_overlap": 0.0, "lr": 0.01}


def config(**model: Any) -> TrainConfig:
    small = {"backbone": "tiny", "weights": None, "hidden": 16, "shortest_side": None, "longest_side": None}
    return from_dict(
        {
            "data": {"path": "shapes", "train_images": 4, "val_images": 2, "max_windows": 60},
            "model": {**small, "box_regression": True, **model},
            "nll": STEPS,
            "map": {**STEPS, "windows": None, "foreground": None, "ground_truth": False},
            "run": {"eval_every": 2, "save_every": 1, "keep": 9, "log_every": 1, "report": False, "accelerator": "cpu"},
        }
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "unbroken"
    engine.train(config(), folder)
    return folder


def test_both_phases_train_the_boxes(run: Path) -> None:
    lines = [line for line in read_log(run / "log.jsonl") if line["kind"] == "train"]
    assert [sorted(line["losses"]) for line in lines] == [["box", "nll"]] * 2 + [["box", "map"]] * 2
    start = build_model(config(), len(load_dataset("shapes").class_names), None)
    trained = open_run(run, "last").model
    assert start.head.boxes is not None
    assert trained.head.boxes is not None
    assert not torch.equal(start.head.boxes.layer.weight, trained.head.boxes.layer.weight)


def test_an_opened_run_has_the_scale_of_its_training_data(run: Path) -> None:
    model = build_model(config(), len(load_dataset("shapes").class_names), None)
    data = open_training(config().data)
    measure_boxes(model, data, config().data.flip)
    opened = open_run(run).model
    assert model.head.boxes is not None
    assert opened.head.boxes is not None
    assert model.head.boxes.measured
    assert torch.equal(opened.head.boxes.mean, model.head.boxes.mean)
    assert torch.equal(opened.head.boxes.std, model.head.boxes.std)
    if config().data.flip:
        assert opened.head.boxes.mean[:, 0].abs().max() < 1e-6  # for each window to the left there is one to the right


def test_a_stopped_run_ends_with_the_same_bytes(run: Path, tmp_path: Path) -> None:
    with pytest.raises(engine.RunInterrupted):
        engine.train(config(), tmp_path / "run", progress=StopAt(3))
    engine.resume(tmp_path / "run")
    assert last(tmp_path / "run") == last(run)


def test_a_new_run_from_these_weights_keeps_their_scale(run: Path) -> None:
    model = build_model(config(), len(load_dataset("shapes").class_names), str(run))
    opened = open_run(run).model
    assert model.head.boxes is not None
    assert opened.head.boxes is not None
    measure_boxes(model, open_training(from_dict({"data": {"path": "shapes", "train_images": 2}}).data), flip=False)
    assert torch.equal(model.head.boxes.mean, opened.head.boxes.mean)


def test_weights_without_moves_do_not_fit_a_model_that_moves(run: Path) -> None:
    with pytest.raises(DataError, match="box_regression"):
        build_model(config(box_regression=False), len(load_dataset("shapes").class_names), str(run))


def test_features_kept_on_disk_make_the_same_detections(tmp_path: Path) -> None:
    frozen = config(freeze="trunk")
    engine.train(frozen, tmp_path / "run")
    opened = open_run(tmp_path / "run")
    example = open_split(frozen.data, "val").example(0)
    with torch.no_grad():
        (features,) = opened.model.extract([example.image])
        (direct,), (kept,) = (opened.model([image], [example.windows]) for image in (example.image, features))
    assert torch.equal(direct["boxes"], kept["boxes"])
