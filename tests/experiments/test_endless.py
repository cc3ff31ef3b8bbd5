"""Training on endless `shapes`: a stopped run ends with the weights of an unbroken one, and leaves a start for others."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_fpn

from experiments.endless.families import FAMILIES
from experiments.endless.held_out import evaluate, held_out
from experiments.endless.run_files import Config, RunFiles, load_start, weights_of
from experiments.endless.soft_labels import soft_targets, soften, varifocal_loss
from experiments.endless.summary import main as summarise
from experiments.endless.train import main, rate, train
from stepgrad.data import EndlessShapes
from stepgrad.detector.sampling import Sample
from stepgrad.detector.training.progress import QuietProgress
from stepgrad.errors import ConfigError
from stepgrad.models.torchvision import train_for_map

SMALL = Config("ssd", steps=16, images=1, val_images=2, evaluations=2, warmup=0)
"""Saved at every second step, evaluated at the 8th and the 16th."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As the runs have it: sums are then taken in the same order every time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unbroken run."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("endless") / "run"
    train(SMALL, folder)
    torch.set_num_threads(threads)
    return folder


def lines_without_seconds(folder: Path) -> list[dict]:
    return [{key: value for key, value in line.items() if key != "seconds"} for line in RunFiles(folder).lines()]


@pytest.mark.parametrize("stop", [1, 11])
def test_a_stopped_run_ends_with_the_bits_of_an_unbroken_one(stop: int, finished: Path, tmp_path: Path) -> None:
    train(SMALL, tmp_path, stop_after=stop)
    assert not (tmp_path / "start.safetensors").exists()
    train(SMALL, tmp_path)
    assert (tmp_path / "start.safetensors").read_bytes() == (finished / "start.safetensors").read_bytes()
    assert lines_without_seconds(tmp_path) == lines_without_seconds(finished)


def test_a_run_killed_between_its_log_and_its_checkpoint_logs_no_step_twice(finished: Path, tmp_path: Path) -> None:
    train(SMALL, tmp_path, stop_after=7)
    with open(tmp_path / "log.jsonl", "a", encoding="utf-8") as handle:
        handle.write(json.dumps({"step": 8}) + '\n{"step": 9, "lo')
    train(SMALL, tmp_path)
    assert lines_without_seconds(tmp_path) == lines_without_seconds(finished)


def test_the_log_has_loss_held_out_map_and_seconds_of_each_evaluation(finished: Path) -> None:
    lines = RunFiles(finished).lines()
    assert [line["step"] for line in lines] == [8, 16]
    for line in lines:
        assert line["loss"] == pytest.approx(sum(line["losses"].values()))
        assert sorted(line["map"]) == ["coco", "voc12"]
        assert line["images"] == 2
    assert 0 < lines[0]["seconds"] < lines[1]["seconds"]
    assert lines[-1]["rate"] == 0.0


def test_logged_losses_are_means_over_the_steps_since_the_last_line(tmp_path: Path) -> None:
    class Listening(QuietProgress):
        def step(self, line: Mapping[str, Any]) -> None:
            losses.append(line["loss"])

    losses: list[float] = []
    train(replace(SMALL, steps=5), tmp_path, Listening())  # lines after steps 2, 4 and 5
    means = [sum(losses[:2]) / 2, sum(losses[2:4]) / 2, losses[4]]
    assert [line["loss"] for line in RunFiles(tmp_path).lines()] == pytest.approx(means)


def test_a_finished_run_is_left_alone(finished: Path) -> None:
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    train(SMALL, finished)
    assert {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()} == before


def test_a_start_is_the_model_its_run_ended_with(finished: Path) -> None:
    config, model = load_start(finished)
    assert config == SMALL
    last = RunFiles(finished).lines()[-1]
    assert evaluate(FAMILIES["ssd"], model, held_out("val", 2)) == last["map"]
    fresh = weights_of(FAMILIES["ssd"].build(SMALL.seed))
    assert any(not torch.equal(value, fresh[name]) for name, value in weights_of(model).items())


def test_a_start_may_go_on_with_other_labels(finished: Path) -> None:
    images = EndlessShapes().batch(0, images=1)
    (_, same), (_, other) = load_start(finished), load_start(finished, labels="soft")
    hard, soft = (FAMILIES["ssd"].losses(model, images, seed=0) for model in (same, other))
    assert torch.equal(hard["bbox_regression"], soft["bbox_regression"])
    assert not torch.equal(hard["classification"], soft["classification"])


def test_a_folder_of_another_run_is_refused_with_what_differs(finished: Path) -> None:
    with pytest.raises(ConfigError, match=r"rate 0\.001, not 0\.5"):
        train(replace(SMALL, rate=0.5), finished)


def test_the_rate_rises_then_falls_to_zero() -> None:
    config = Config("ssd", steps=100, warmup=10)
    rates = [rate(config, step) for step in range(101)]
    assert rates[:10] == sorted(rates[:10])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[100] == 0.0


@pytest.mark.parametrize("family", list(FAMILIES))
def test_the_command_line_trains_every_family(family: str, tmp_path: Path) -> None:
    small = ["--images", "1", "--val-images", "1", "--evaluations", "1"]
    main(["--family", family, "--steps", "1", "--out", str(tmp_path), *small])
    assert load_start(tmp_path)[0] == Config(family, steps=1, images=1, val_images=1, evaluations=1)
    assert len(RunFiles(tmp_path).lines()) == 1


@pytest.mark.parametrize("family", [name for name, family in FAMILIES.items() if family.soft_labels])
def test_soft_labels_change_the_class_loss_and_not_the_boxes(family: str) -> None:
    images = EndlessShapes().batch(0, images=2)
    hard, soft = (
        FAMILIES[family].losses(FAMILIES[family].build(0, labels), images, seed=0) for labels in ("hard", "soft")
    )
    classes = "loss_nll" if family == "fastrcnn" else "classification"
    assert soft[classes].requires_grad
    assert float(soft[classes].detach()) != float(hard[classes].detach())
    assert all(torch.equal(soft[name], hard[name]) for name in soft if name != classes)


@pytest.mark.parametrize("labels", ["hard", "soft"])
@pytest.mark.parametrize("family", ["ssd", "retinanet", "fcos"])
def test_map_joins_the_losses_whatever_the_labels(family: str, labels: str) -> None:
    model, images = FAMILIES[family].build(0, labels), EndlessShapes().batch(0, images=1)
    before = FAMILIES[family].losses(model, images, seed=0)
    mixed = FAMILIES[family].losses(train_for_map(model, mode="mix"), images, seed=0)
    assert float(mixed.pop("loss_map").detach()) > 0.0
    assert {name: float(loss.detach()) for name, loss in mixed.items()} == {
        name: float(loss.detach()) for name, loss in before.items()
    }


def test_soft_targets_are_the_overlap_of_windows_on_objects() -> None:
    windows = torch.tensor([[0.0, 0.0, 10.0, 10.0], [0.0, 0.0, 10.0, 8.0], [0.0, 0.0, 10.0, 2.0]])
    found = soft_targets(Sample(windows, torch.tensor([1, 1, 2]), 2), windows[:1], columns=3)
    expected = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.8, 0.2], [0.0, 0.0, 1.0]])
    torch.testing.assert_close(found, expected)


def test_varifocal_loss_is_least_where_the_score_is_the_wanted_overlap() -> None:
    wanted = torch.tensor([[0.7]], dtype=torch.float64)
    at, below, above = (float(varifocal_loss(torch.logit(wanted + shift), wanted)) for shift in (0.0, -0.1, 0.1))
    assert at < min(below, above)


def test_families_without_soft_labels_say_so() -> None:
    with pytest.raises(ConfigError, match="fastrcnn, ssd, retinanet, fcos"):
        Config("fasterrcnn", steps=1, labels="soft")
    with pytest.raises(TypeError, match="FasterRCNN"):
        soften(fasterrcnn_mobilenet_v3_large_fpn(weights=None, weights_backbone=None))


def test_the_summary_measures_the_last_quarter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = RunFiles(tmp_path / "run")
    files.claim(Config("ssd", steps=8))
    for step, value in ((2, 0.1), (4, 0.2), (6, 0.5), (8, 0.52)):
        files.add_line({"step": step, "seconds": 3600.0, "map": {"voc12": value, "coco": value / 2}})
    summarise([str(tmp_path / "run")])
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "| run | 8 of 8 | 1.0 | 52.0 | +2.0 | 1.4 | 26.0 | +1.0 | 0.7 |"
