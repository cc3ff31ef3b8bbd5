"""Real trainings of YOLO with MAPTrainer: stock where mAP has no weight, and nothing of ours in what they leave behind."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from stepgrad.models.yolo.settings import NAME
from stepgrad.models.yolo.trainer import bare_model
from tests.models.yolo.small import (
    EASY,
    NMS_FREE,
    SIZE,
    WITHOUT_STEPGRAD,
    needs_ultralytics,
    rows_of,
    train,
    yolo_folder,
)
from tests.patience import PATIENCE

pytestmark = needs_ultralytics
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return yolo_folder(tmp_path_factory.mktemp("data") / "shapes")


def map_trainer(**options: Any) -> Any:
    from stepgrad.models.yolo import MAPTrainer

    return MAPTrainer.options(**options)


def stock_trainer() -> Any:
    from ultralytics.models.yolo.detect import DetectionTrainer

    return DetectionTrainer


def states(yolo: Any) -> dict[str, torch.Tensor]:
    """All numbers at the end of a training: weights, averaged weights and the optimiser's."""
    trainer = yolo.trainer
    found = {f"model {name}": value for name, value in bare_model(trainer.model).state_dict().items()}
    found |= {f"average {name}": value for name, value in trainer.ema.ema.state_dict().items()}
    momenta = trainer.optimizer.state_dict()["state"]
    return found | {f"momentum {i}": value["momentum_buffer"] for i, value in momenta.items()}


@pytest.mark.parametrize("model", ["yolov8n.yaml", NMS_FREE])
def test_at_weight_zero_training_is_stock_to_the_last_bit(model: str, data: Path, tmp_path: Path) -> None:
    stock = train(data, tmp_path / "stock", None, model)
    zero = train(data, tmp_path / "zero", map_trainer(weight=0, start=0, **EASY), model)
    other = train(data, tmp_path / "map", map_trainer(weight=0.5, start=0, **EASY), model)
    expected, found, changed = states(stock), states(zero), states(other)
    assert found.keys() == expected.keys()
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []
    assert any(not torch.equal(changed[name], expected[name]) for name in expected)
    for row, stock_row in zip(rows_of(tmp_path / "zero"), rows_of(tmp_path / "stock"), strict=True):
        assert set(row) - set(stock_row) == {f"train/{NAME}"}  # validation has its stock losses only
        assert {name: row[name] for name in stock_row} | {"time": 0} == stock_row | {"time": 0}


def test_checkpoints_load_where_stepgrad_is_not_installed(data: Path, tmp_path: Path) -> None:
    yolo = train(data, tmp_path / "run", map_trainer(start=0, **EASY), save_period=1)
    files = sorted((tmp_path / "run" / "weights").glob("*.pt"))
    assert {"best.pt", "last.pt", "epoch0.pt"} <= {file.name for file in files}
    picture = next((data.parent / "images" / "val").iterdir())
    command = [sys.executable, "-c", WITHOUT_STEPGRAD, str(picture), *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, cwd=tmp_path)
    assert done.stdout.splitlines()[-1:] == [f"loaded {len(files)}"], done.stderr
    assert b"stepgrad.models" not in pickle.dumps(bare_model(yolo.trainer.model))  # nor in the model that is left


def test_mAP_comes_in_when_mosaic_is_closed_and_shows_in_the_log(data: Path, tmp_path: Path) -> None:
    seen: set[tuple[int, bool]] = set()

    def note(trainer: Any) -> None:
        seen.add((trainer.epoch, trainer.map_switches[""].enabled))

    train(data, tmp_path / "run", map_trainer(**EASY), epochs=3, callbacks={"on_train_batch_end": note})
    assert seen == {(0, False), (1, False), (2, True)}
    column = [row[f"train/{NAME}"] for row in rows_of(tmp_path / "run")]
    assert column[:2] == [0.0, 0.0]
    assert column[2] > 0


@pytest.mark.parametrize(("task", "model"), [("segment", "yolov8n-seg.yaml"), ("pose", "yolov8n-pose.yaml")])
def test_the_boxes_of_other_tasks_train_for_mAP(task: str, model: str, tmp_path: Path) -> None:
    data = yolo_folder(tmp_path / "data", task)
    yolo = train(data, tmp_path / "run", map_trainer(start=0, **EASY), model, epochs=1)
    assert yolo.trainer.args.task == task
    (row,) = rows_of(tmp_path / "run")
    assert row[f"train/{NAME}"] > 0
    assert yolo.trainer.map_loss_switch is yolo.trainer.map_switches[""]
    assert yolo.trainer.map_switches[""].weight != 1.0  # measured next to the stock loss
    assert f"val/{NAME}" not in row


def test_training_recovers_from_numbers_that_are_not_finite_where_stock_does(data: Path, tmp_path: Path) -> None:
    if not hasattr(stock_trainer(), "_handle_nan_recovery"):
        pytest.skip("this version of ultralytics does not recover from NaN")
    broken: list[str] = []

    def break_once(trainer: Any) -> None:
        if trainer.epoch == 1 and trainer.args.name not in broken:
            broken.append(trainer.args.name)
            with torch.no_grad():
                for parameter in trainer.model.parameters():
                    parameter.fill_(torch.nan)

    for name, trainer in (("stock", None), ("run", map_trainer(start=0, **EASY))):
        train(data, tmp_path / name, trainer, epochs=3, callbacks={"on_train_batch_start": break_once})
    assert broken == ["stock", "run"]
    stock, ours = ([row["train/box_loss"] > 0 for row in rows_of(tmp_path / name)] for name in broken)
    assert ours == stock


def test_training_stops_early_where_stock_does(data: Path, tmp_path: Path) -> None:
    def ask_too_much(trainer: Any) -> None:
        trainer.stopper.best_fitness = 1.0

    for name, trainer in (("stock", None), ("run", map_trainer(start=0, **EASY))):
        train(data, tmp_path / name, trainer, epochs=6, patience=2, callbacks={"on_train_start": ask_too_much})
    stock, ours = (len(rows_of(tmp_path / name)) for name in ("stock", "run"))
    assert ours == stock < 6


@pytest.mark.nightly  # the compiler takes a minute
def test_a_compiled_network_trains_for_mAP(data: Path, tmp_path: Path) -> None:
    from ultralytics.cfg import DEFAULT_CFG_DICT

    if "compile" not in DEFAULT_CFG_DICT:
        pytest.skip("this version of ultralytics does not compile")
    yolo = train(data, tmp_path / "run", map_trainer(start=0, weight=0.5, **EASY), epochs=1, compile=True)
    (row,) = rows_of(tmp_path / "run")
    assert hasattr(yolo.trainer.model, "_orig_mod") or yolo.trainer.args.compile is False
    assert row[f"train/{NAME}"] > 0
    assert b"stepgrad.models" not in pickle.dumps(bare_model(yolo.trainer.model))


def test_two_processes_train_alike(data: Path, tmp_path: Path) -> None:
    if not hasattr(stock_trainer(), "_build_train_pipeline"):
        pytest.skip("the script for two processes on CPUs knows newer versions of ultralytics only")
    port = str(20000 + os.getpid() % 20000)
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.models.yolo.one_rank", str(data), str(tmp_path / "run"), str(SIZE)]
    ranks = [
        subprocess.Popen(
            command,
            env={**os.environ, **world, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for rank in range(2)
    ]
    try:
        said = [rank.communicate(timeout=PATIENCE)[0].decode() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    files = [tmp_path / f"run-{rank}.pt" for rank in range(2)]
    assert all(file.exists() for file in files), "\n".join(said)
    first, second = (torch.load(file) for file in files)
    assert first["weights"].keys() == second["weights"].keys()
    assert all(torch.equal(value, second["weights"][name]) for name, value in first["weights"].items())
    assert first["used"] == second["used"]  # one weight of mAP
    assert len(set(first["used"])) > 1
    assert first["maps"] == second["maps"]  # and one mAP, of all images
    assert max(first["maps"]) > 0
