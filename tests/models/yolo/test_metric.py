"""MAPTrainer for another metric than mAP: its number is the fitness, and best.pt and early stopping go by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import stepgrad as sg
from stepgrad.errors import ConfigError
from stepgrad.models.yolo.settings import as_text, from_text
from stepgrad.models.yolo.trainer import MAPTraining
from tests.models.yolo.small import EASY, needs_ultralytics, rows_of, train, yolo_folder

COST = "cost@threshold=0.05,false_alarm=1,miss=2"


@pytest.mark.parametrize("metric", ["recall@precision=0.95", sg.metrics.F1(), sg.metrics.Cost(0.05, miss=2.0)])
def test_a_metric_and_weights_of_classes_survive_as_text(metric: Any) -> None:
    settings = MAPTraining.options(metric=metric, class_weights=torch.tensor([1.0, 2.0])).settings
    assert from_text(as_text(settings)) == settings
    assert settings.metric == (metric if isinstance(metric, str) else metric.name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metric": "recal@precision=0.9"}, "recall"),
        ({"metric": lambda hits, objects: 0.0}, "function"),
        ({"metric": "f1", "task": "masks"}, "boxes"),
        ({"classes": "worst"}, "classes"),
        ({"metric": "f1@threshold=-1"}, "threshold"),
    ],
)
def test_metrics_that_cannot_be_meant_are_refused_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MAPTraining.options(**options)


class TestWithUltralytics:
    pytestmark = needs_ultralytics

    @pytest.mark.parametrize(
        ("metric", "fitness"),
        [("recall@precision=0.1", lambda v: v), (COST, lambda v: 1 / (1 + v)), ("ap", lambda v: v)],
    )
    def test_fitness_and_best_weights_go_by_the_metric(self, metric: str, fitness: Any, tmp_path: Path) -> None:
        from stepgrad.models.yolo import MAPTrainer

        data = yolo_folder(tmp_path / "data")
        seen: list[float] = []

        def note(trainer: Any) -> None:
            if len(seen) < 3:
                seen.append(trainer.fitness)

        trainer = MAPTrainer.options(metric=metric, start=0, **EASY)
        yolo = train(data, tmp_path / "run", trainer, epochs=3, callbacks={"on_fit_epoch_end": note})
        rows = rows_of(tmp_path / "run")
        column = "stepgrad/" + metric.replace(",", ";")
        assert [round(value, 5) for value in seen] == pytest.approx([fitness(row[column]) for row in rows], abs=2e-5)
        assert yolo.trainer.best_fitness == pytest.approx(max(seen))
        assert "train/batch_metric" in rows[0]

    def test_mAP_by_our_evaluator_is_that_of_ultralytics_where_their_rules_are_asked_for(self, tmp_path: Path) -> None:
        from stepgrad.models.yolo import MAPTrainer

        data = yolo_folder(tmp_path / "data")
        train(
            data,
            tmp_path / "run",
            MAPTrainer.options(metric="ap", protocol="ultralytics-unlimited"),
            epochs=3,
            lr0=0.02,
        )
        for row in rows_of(tmp_path / "run"):
            assert row["stepgrad/ap"] == pytest.approx(row["metrics/mAP50-95(B)"], abs=1.1e-5)
