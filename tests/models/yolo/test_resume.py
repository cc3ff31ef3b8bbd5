"""Runs of MAPTrainer that were interrupted: they continue as they began, and the stock trainer says that it does not."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from stepgrad.errors import ConfigError, LikelyMistakeWarning
from stepgrad.models.yolo.resume import MARK, WholePath, in_columns, remembered, stripped_whole
from stepgrad.models.yolo.settings import NAME, YoloSettings, as_text
from stepgrad.models.yolo.trainer import bare_model
from tests.models.yolo.small import EASY, NMS_FREE, WITHOUT_STEPGRAD, needs_ultralytics, rows_of, train, yolo_folder
from tests.patience import PATIENCE

pytestmark = needs_ultralytics
STOCK_RESUME = WITHOUT_STEPGRAD[: WITHOUT_STEPGRAD.index("for file")] + "YOLO(sys.argv[1]).train(resume=True)\n"


class Stopped(Exception):
    pass


def stop(trainer: Any) -> None:
    raise Stopped


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return yolo_folder(tmp_path_factory.mktemp("data") / "shapes")


@pytest.fixture
def log() -> Iterator[list[str]]:
    """The lines of ultralytics' log."""
    lines: list[str] = []
    keeper = logging.Handler()
    keeper.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("ultralytics")
    logger.addHandler(keeper)
    yield lines
    logger.removeHandler(keeper)


def interrupted(data: Path, run: Path, model: str = "yolov8n.yaml", **options: Any) -> Path:
    """The last checkpoint of a run that was stopped after the first of four epochs."""
    from stepgrad.models.yolo import MAPTrainer

    trainer = MAPTrainer.options(**options)
    with pytest.raises(Stopped):
        train(data, run, trainer, model, epochs=4, callbacks={"on_fit_epoch_end": stop})
    return run / "weights" / "last.pt"


def resume(last: Path, trainer: Any, **callbacks: Any) -> Any:
    from ultralytics import YOLO

    yolo = YOLO(last)
    for event, callback in callbacks.items():
        yolo.add_callback(event, callback)
    yolo.train(resume=True, trainer=trainer)
    return yolo


def test_a_resumed_run_has_the_options_and_the_mAP_that_it_would_have_had(data: Path, tmp_path: Path) -> None:
    from stepgrad.models.yolo import MAPTrainer

    last = interrupted(data, tmp_path / "run", NMS_FREE, start=2, weight=0.5, **EASY)
    enabled, gains = {}, {}

    def note(trainer: Any) -> None:
        criterion = bare_model(trainer.model).criterion
        enabled[trainer.epoch] = criterion.switches["one2one"].enabled
        gains[trainer.epoch] = getattr(criterion, "o2m", 1.0 / (2 + trainer.epoch))

    yolo = resume(last, MAPTrainer, on_train_batch_end=note)
    assert yolo.trainer.map_settings == MAPTrainer.options(start=2, weight=0.5, **EASY).settings
    assert enabled == {1: False, 2: True, 3: True}
    assert 0.8 > gains[1] > gains[2] > gains[3]  # the schedule of the two heads goes on where it was
    assert [row["epoch"] for row in rows_of(tmp_path / "run")] == [1, 2, 3, 4]


def test_options_given_again_are_those_that_count(data: Path, tmp_path: Path) -> None:
    from stepgrad.models.yolo import MAPTrainer

    last = interrupted(data, tmp_path / "run", start=2, weight=0.5, **EASY)
    other = MAPTrainer.options(start=1, **EASY)
    yolo = resume(last, other)
    assert yolo.trainer.map_settings == other.settings
    assert remembered({"optimizer": yolo.trainer.optimizer.state_dict()}) == other.settings


def test_the_stock_trainer_warns_that_it_continues_without_mAP_and_keeps_the_table_right(
    data: Path, tmp_path: Path
) -> None:
    from stepgrad.models.yolo import MAPTrainer

    last = interrupted(data, tmp_path / "run", start=1, **EASY)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(Stopped):
            resume(last, None, on_fit_epoch_end=lambda trainer: stop(trainer) if trainer.epoch == 2 else None)
    said = [str(warning.message) for warning in caught if warning.category is LikelyMistakeWarning]
    assert len(said) == 1
    assert f"YOLO({str(last)!r}).train(resume=True, trainer=MAPTrainer)" in said[0]
    header, *rows = (tmp_path / "run" / "results.csv").read_text().splitlines()
    assert header.split(",")[-1] == f"train/{NAME}"
    assert [len(row.split(",")) - len(header.split(",")) for row in rows] == [0, -1, -1]  # only the last one is missing
    continued = resume(last, MAPTrainer)  # and the advice works
    assert continued.trainer.map_settings.start == 1
    newest = (tmp_path / "run" / "results.csv").read_text().splitlines()[-1]
    assert len(newest.split(",")) == len(header.split(","))


def test_a_run_continues_where_stepgrad_is_not_installed(data: Path, tmp_path: Path) -> None:
    last = interrupted(data, tmp_path / "run", start=1, **EASY)
    command = [sys.executable, "-c", STOCK_RESUME, str(last)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "run" / "results.csv").read_text().splitlines()) == 5


def test_weights_that_are_ready_for_use_remember_nothing(data: Path, tmp_path: Path) -> None:
    from stepgrad.models.yolo import MAPTrainer

    train(data, tmp_path / "run", MAPTrainer.options(start=0, **EASY), epochs=1)
    for name in ("best.pt", "last.pt"):
        content = (tmp_path / "run" / "weights" / name).read_bytes()
        assert MARK.encode() not in content


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"start": 1, "weight": 0.5}, "mAP takes part from epoch 2 of 2 on, with weight 0.5"),
        ({}, "mAP takes part from epoch 2 of 2 on, with a weight that balances itself"),
        ({"weight": 0}, "mAP takes no part (weight 0); it is measured from epoch 2 of 2 on"),
        ({"start": 5}, "mAP takes no part, as it starts with epoch 6 and training ends after 2"),
    ],
)
def test_the_log_says_from_which_epoch_mAP_takes_part_and_with_which_weight(
    options: dict[str, Any], said: str, data: Path, tmp_path: Path, log: list[str]
) -> None:
    from stepgrad.models.yolo import MAPTrainer

    with pytest.raises(Stopped):
        train(data, tmp_path / "run", MAPTrainer.options(**options), callbacks={"on_train_start": stop})
    assert [line for line in log if "MAPTrainer: " in line] == [f"MAPTrainer: {said}"]


def test_an_interrupted_run_says_how_to_continue_it(data: Path, tmp_path: Path, log: list[str]) -> None:
    last = interrupted(data, tmp_path / "run", start=1, **EASY)
    assert log[-1] == f"To continue this run for mAP: YOLO({str(last)!r}).train(resume=True, trainer=MAPTrainer)"


def test_a_save_that_fails_halfway_leaves_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = WholePath(tmp_path / "weights") / "last.pt"
    assert isinstance(path, WholePath)
    assert path.write_bytes(b"first") == 5

    def fail(*_: Any) -> None:
        raise Stopped

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(Stopped):
        path.write_bytes(b"second")
    assert path.read_bytes() == b"first"


def test_finished_weights_are_put_in_place_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ultralytics.engine import trainer

    path = tmp_path / "last.pt"
    path.write_bytes(b"all of it")

    def tear(f: Any, s: Any = "") -> None:
        Path(s or f).write_bytes(b"all")
        raise Stopped

    monkeypatch.setattr(trainer, "strip_optimizer", tear)
    with pytest.raises(Stopped), stripped_whole():
        trainer.strip_optimizer(path)
    assert trainer.strip_optimizer is tear
    monkeypatch.setattr(trainer, "strip_optimizer", lambda f, s="": {})  # what it does with files that are no weights
    with stripped_whole():
        trainer.strip_optimizer(path)
    assert path.read_bytes() == b"all of it"
    assert [file.name for file in tmp_path.iterdir()] == ["last.pt"]


def test_rows_follow_the_header_that_is_there(tmp_path: Path) -> None:
    """Runs that older versions began have mAP of batches in the middle, those of the stock trainer have none."""
    ours, metrics = f"train/{NAME}", {"train/box_loss": 1.0, f"train/{NAME}": 0.5, "lr/pg0": 0.1}
    table = tmp_path / "results.csv"
    assert list(in_columns(table, metrics)) == ["train/box_loss", "lr/pg0", ours]
    for header in (["train/box_loss", ours, "lr/pg0"], ["train/box_loss", "lr/pg0"]):
        table.write_text(",".join(["epoch", "time", *header]) + "\n")
        assert list(in_columns(table, metrics)) == header


def test_options_that_cannot_be_read_are_asked_for_again() -> None:
    fields = json.loads(as_text(YoloSettings()))
    for text in ("{", json.dumps({**fields, "unknown": 1}), json.dumps({**fields, "start": -1})):
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        optimizer.param_groups[0][MARK] = text
        with pytest.raises(ConfigError, match="give them again"):
            remembered({"optimizer": optimizer.state_dict()})
    assert remembered({"optimizer": None}) is None
