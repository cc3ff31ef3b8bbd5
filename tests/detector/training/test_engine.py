"""Whole runs on the built-in set: what they leave on disk, and that stopping them changes nothing."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import stepgrad.detector.training.engine as engine
from stepgrad.detector import FastRCNN
from stepgrad.detector.training.checkpoint import checkpoint_step, list_checkpoints, load_checkpoint
from stepgrad.detector.training.config import from_dict
from stepgrad.detector.training.run_folder import open_run
from stepgrad.errors import ConfigError, DataError, NonFiniteError
from tests.detector.training.small_runs import StopAt, last, log_of, small_config
from tests.double_precision import double_precision


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "unbroken"
    engine.train(small_config(), folder)
    return folder


@pytest.fixture
def copy(unbroken: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(unbroken, tmp_path / "copy"))


def steps_in(run: Path) -> list[int]:
    return [checkpoint_step(path) for path in list_checkpoints(run / "checkpoints")]


def test_a_run_leaves_config_log_events_checkpoints_and_evaluation(unbroken: Path) -> None:
    assert from_dict(yaml.safe_load((unbroken / "config.yaml").read_text())) == small_config()
    assert [line["kind"] for line in log_of(unbroken)].count("train") == 12
    assert list((unbroken / "events").glob("events*"))
    assert steps_in(unbroken) == [2, 4, 5, 6, 8, 10, 12]
    evaluation = json.loads((unbroken / "evaluation.json").read_text())
    best, end = open_run(unbroken), log_of(unbroken)[-1]
    assert evaluation["step"] == best.step
    assert (end["kind"], end["best_step"], end["best_map"]) == ("end", best.step, evaluation["map"])


def test_the_log_tells_the_phases_losses_and_shares(unbroken: Path) -> None:
    lines = [line for line in log_of(unbroken) if line["kind"] == "train"]
    assert [line["phase"] for line in lines] == ["nll"] * 6 + ["map"] * 6
    assert all(set(line["losses"]) == {line["phase"]} for line in lines)
    assert all(line["map"] is None and line["nonzero"] is None for line in lines[:6])
    assert all(0 <= line["map"] <= 1 and 0 <= line["nonzero"] <= 1 for line in lines[6:])
    assert all(line["positives"] > 0 for line in lines)


def test_the_same_config_gives_the_same_bytes_and_another_seed_others(unbroken: Path, tmp_path: Path) -> None:
    engine.train(small_config(), tmp_path / "again")
    assert last(tmp_path / "again") == last(unbroken)
    assert log_of(tmp_path / "again") == log_of(unbroken)
    engine.train(small_config(loss="nll", run={"seed": 4}), tmp_path / "other")
    ours, theirs = (
        load_checkpoint(run / "checkpoints/step-00000006.safetensors") for run in (tmp_path / "other", unbroken)
    )
    assert any(not torch.equal(ours.weights[name], theirs.weights[name]) for name in ours.weights)


@pytest.mark.parametrize("step", [1, 3, 5, 6, 9, 11])
def test_a_run_stopped_by_ctrl_c_and_resumed_ends_as_the_unbroken_one(
    unbroken: Path, tmp_path: Path, step: int
) -> None:
    folder, before = tmp_path / "run", signal.getsignal(signal.SIGINT)
    with pytest.raises(engine.RunInterrupted, match=rf"after step {step} of 12.*--resume"):
        engine.train(small_config(), folder, progress=StopAt(step))
    assert signal.getsignal(signal.SIGINT) is before
    with open(folder / "log.jsonl", "a") as log:  # what a killed process would leave of steps to be taken again
        log.write(f'{{"kind": "val", "step": {step}}}\n{{"kind": "train", "step": {step + 1}}}\n{{"kind": "tr')
    result = engine.resume(folder)
    assert last(folder) == last(unbroken)
    assert log_of(folder) == log_of(unbroken)
    assert result.best_step == open_run(unbroken).step


def test_a_run_gone_back_and_stopped_again_goes_on_from_there(unbroken: Path, copy: Path) -> None:
    with pytest.raises(engine.RunInterrupted):
        engine.resume(copy, step=4, progress=StopAt(7))
    assert steps_in(copy)[-1] == 7
    engine.resume(copy)
    assert last(copy) == last(unbroken)
    assert log_of(copy) == log_of(unbroken)


def test_a_finished_run_resumed_only_writes_its_results_again(unbroken: Path, copy: Path) -> None:
    assert engine.resume(copy).step == 12
    for name in ("checkpoints/step-00000012.safetensors", "best.safetensors", "evaluation.json"):
        assert (copy / name).read_bytes() == (unbroken / name).read_bytes()
    assert log_of(copy) == log_of(unbroken)


def test_a_folder_with_a_run_is_not_trained_into(unbroken: Path) -> None:
    with pytest.raises(ConfigError, match=r"already holds a run.*--resume"):
        engine.train(small_config(), unbroken)


def test_a_step_without_checkpoint_is_named_with_those_there_are(unbroken: Path) -> None:
    with pytest.raises(DataError, match="no checkpoint of step 3; there are: 2, 4, 5"):
        engine.resume(unbroken, step=3)


def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_offered(unbroken: Path, copy: Path) -> None:
    newest = copy / "checkpoints/step-00000012.safetensors"
    newest.write_bytes(newest.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"step-00000012.*--step 10"):
        engine.resume(copy)
    assert engine.resume(copy, step=10).step == 12
    assert last(copy) == last(unbroken)


def test_a_nan_stops_the_run_names_step_and_images_and_never_reaches_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = FastRCNN.losses_of
    calls = []

    def poisoned(self: FastRCNN, *rest: Any) -> dict[str, torch.Tensor]:
        calls.append(1)
        losses = real(self, *rest)
        return {name: value * float("nan") for name, value in losses.items()} if len(calls) == 4 else losses

    monkeypatch.setattr(FastRCNN, "losses_of", poisoned)
    with pytest.raises(
        NonFiniteError, match=r"step 4 of 12 \(nll\): the losses are nll nan; images \d, \d.*lower nll.lr"
    ):
        engine.train(small_config(), tmp_path / "run")
    found = load_checkpoint(list_checkpoints(tmp_path / "run/checkpoints")[-1])
    assert found.step == 3
    assert all(value.isfinite().all() for value in found.weights.values())


def test_a_frozen_trunk_gives_the_same_run_with_and_without_remembered_features(tmp_path: Path) -> None:
    moving = {"freeze": "trunk", "box_regression": True}
    frozen = small_config(model=moving, run={"feature_cache": str(tmp_path / "features")})
    engine.train(frozen, tmp_path / "first")
    assert list((tmp_path / "features").rglob("*.safetensors"))
    engine.train(frozen, tmp_path / "second")
    assert last(tmp_path / "first") == last(tmp_path / "second")
    found = [(tmp_path / name / "evaluation.json").read_bytes() for name in ("first", "second")]
    assert found[0] == found[1]


@pytest.mark.parametrize("chunk", [1, 2])
def test_chunks_take_the_steps_of_whole_minibatches(tmp_path: Path, chunk: int) -> None:
    plain: dict[str, Any] = {"model": {"dropout": 0.0}, "run": {"eval_every": 12}}  # dropout draws in another order
    phases = {"nll": {"chunk_images": chunk}, "map": {"chunk_images": chunk}}
    with double_precision():
        engine.train(small_config(**plain), tmp_path / "whole")
        engine.train(small_config(**plain, **phases), tmp_path / "chunks")
        whole, ours = (open_run(tmp_path / name, "last").model.state_dict() for name in ("whole", "chunks"))
    for name, expected in whole.items():
        torch.testing.assert_close(ours[name], expected, rtol=0, atol=1e-9)


def test_the_callers_randomness_is_untouched(tmp_path: Path) -> None:
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    engine.train(small_config(loss="nll", nll={"steps": 1}), tmp_path / "run")
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    ("metric", "balance", "sign"), [("recall@precision=0.3", "class", 1), ("cost@threshold=-1.5,miss=10", "none", -1)]
)
def test_a_run_chooses_its_best_step_by_the_metric_it_trains_for(
    metric: str, balance: str, sign: int, tmp_path: Path
) -> None:
    changes: dict[str, Any] = {"metric": metric, "map_loss": {"balance": balance}, "run": {"eval_every": 3}}
    result = engine.train(small_config(**changes), tmp_path / "run")
    (name,) = result.metrics
    lines = log_of(tmp_path / "run")
    by_step = {line["step"]: sign * line["metrics"][name] for line in lines if line["kind"] == "val"}
    assert result.best_step == max(by_step, key=lambda step: (by_step[step], -step))
    assert sign * result.metrics[name] == pytest.approx(by_step[result.best_step])
    trained = [line for line in lines if line["kind"] == "train"]
    assert [list(line.get("metrics", {})) for line in trained] == [
        [name] * (line["phase"] == "map") for line in trained
    ]
    assert lines[-1]["best_metrics"] == result.metrics
    evaluation = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert evaluation["metrics"][name]["value"] == result.metrics[name]
