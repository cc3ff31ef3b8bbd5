"""Options of MAPTrainer: refused at once where they cannot be meant, and the same in processes that it starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import stepgrad as sg
from stepgrad.errors import ConfigError, MissingDependencyError
from stepgrad.models import yolo as ultralytics
from stepgrad.models.yolo.settings import handed_on, inherited
from stepgrad.models.yolo.trainer import MAPTraining
from tests.models.yolo.small import needs_ultralytics, train, yolo_folder
from tests.patience import PATIENCE


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weigth": 1.0}, "Did you mean 'weight'"),
        ({"weight": -1.0}, "weight"),
        ({"weight": "heavy"}, "weight"),
        ({"start": "mosaic"}, "start"),
        ({"start": -1}, "start"),
        ({"candidates": 0}, "candidates"),
        ({"per_object": -1}, "per_object"),
        ({"protocol": "coca"}, "coca"),
        ({"radius": -1.0}, "radius"),
    ],
)
def test_options_that_cannot_be_meant_are_refused_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MAPTraining.options(**options)


def test_without_ultralytics_its_trainer_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ultralytics", None)
    with pytest.raises(MissingDependencyError, match=r'pip install .*\[yolo\]"'):
        _ = ultralytics.MAPTrainer


@pytest.mark.parametrize(
    "options", [{"weight": 0.25, "start": 3}, {"protocol": sg.Protocol("mine", 11, match_thresholds=(0.4, 0.6))}]
)
def test_options_are_handed_on_in_the_environment_to_processes_started(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = MAPTraining.options(**options).settings
    with handed_on(settings):
        assert inherited() is None  # this is no such process
        monkeypatch.setenv("LOCAL_RANK", "0")
        assert inherited() == settings
    assert inherited() is None


class TestWithUltralytics:
    pytestmark = needs_ultralytics

    def test_a_trainer_with_options_has_a_name_that_can_be_imported(self) -> None:
        trainer = ultralytics.MAPTrainer.options(weight=0.25)
        assert getattr(sys.modules[trainer.__module__], trainer.__name__) is ultralytics.MAPTrainer
        assert ultralytics.MAPTrainer.settings.weight == "auto"

    def test_a_trainer_with_options_survives_cloudpickle(self) -> None:
        cloudpickle = pytest.importorskip("cloudpickle", reason="ultralytics from 8.4.140 on asks for it")
        trainer = ultralytics.MAPTrainer.options(weight=0.25, start=3)
        code = "import pickle, sys; t = pickle.load(sys.stdin.buffer); print(t.__name__, t.settings.weight, t.settings.start)"
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, input=cloudpickle.dumps(trainer), capture_output=True, timeout=PATIENCE)
        assert done.stdout.decode().splitlines()[-1:] == ["MAPTrainer 0.25 3"], done.stderr.decode()

    @pytest.mark.parametrize(("task", "why"), [("classify", "no boxes")])
    def test_tasks_without_boxes_along_the_axes_are_refused_before_any_work(self, task: str, why: str) -> None:
        with pytest.raises(ConfigError, match=why):
            ultralytics.MAPTrainer(overrides={"task": task, "model": "yolov8n.yaml"})

    def test_a_mosaic_that_is_never_closed_needs_a_start(self, tmp_path: Path) -> None:
        data = yolo_folder(tmp_path / "data", images=4)
        with pytest.raises(ConfigError, match=r"close_mosaic=0.*start=90"):
            train(data, tmp_path / "run", ultralytics.MAPTrainer, close_mosaic=0)
