"""The callback of the Hugging Face Trainer logs the true mAP of the batches and switches when it is told to."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stepgrad as sg

pytest.importorskip("transformers", reason='needs transformers: pip install ".[transformers]"')
pytest.importorskip("accelerate", reason='the Trainer needs accelerate: pip install ".[transformers]"')

from transformers import Trainer, TrainerCallback, TrainingArguments

from stepgrad.models.detr.transformers import train_for_map
from stepgrad.models.frameworks.hf_trainer import MAPCallback
from stepgrad.models.held_out import held_out_map
from tests.models import hf_models

LOW = 0.005  # match threshold at which even random boxes find objects


class Images(torch.utils.data.Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, Any]:
        pixels, labels = hf_models.batch(seed=index, images=1)
        return {"pixel_values": pixels[0], "labels": labels[0]}


def collate(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "pixel_values": torch.stack([row["pixel_values"] for row in rows]),
        "labels": [row["labels"] for row in rows],
    }


class Noting(TrainerCallback):
    """Sees what other callbacks see."""

    def __init__(self) -> None:
        self.logs: list[dict[str, float]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **_: Any) -> None:
        self.logs.append(dict(logs))


class Watched(nn.Module):
    """Keeps the parts of the losses and the mAP of every forward pass."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.seen = model, []

    def forward(self, pixel_values: Tensor, labels: Any = None) -> Any:
        output = self.model(pixel_values=pixel_values, labels=labels)
        if self.training:
            (value,) = self.model.map_loss_switch.batch_value.values()
            self.seen.append((set(output.loss_dict), value))
        return output


def make_trainer(
    folder: Path, steps: int, loss_fn: sg.DetectionLoss | None = None, **more: Any
) -> tuple[Trainer, Watched, Noting]:
    options = {"max_steps": steps, "per_device_train_batch_size": 2, "logging_steps": 2, "learning_rate": 1e-4}
    quiet = {"report_to": [], "disable_tqdm": True, "save_strategy": "no", "use_cpu": True}
    arguments = TrainingArguments(output_dir=str(folder), **options, **quiet, **more)
    prepared: dict[str, Any] = {"loss_fn": loss_fn} if loss_fn else {"match_threshold": LOW}
    model = Watched(train_for_map(hf_models.make("detr"), **prepared))
    noting = Noting()
    trainer = Trainer(model, arguments, train_dataset=Images(), data_collator=collate, callbacks=[noting])
    return trainer, model, noting


def test_switches_after_so_many_steps_and_logs_the_mean_map(tmp_path: Path) -> None:
    trainer, model, noting = make_trainer(tmp_path, steps=4)
    MAPCallback(switch_at=3).add_to(trainer)
    trainer.train()
    assert ["loss_map" in names for names, _ in model.seen] == [False, False, False, True]
    maps = [value for _, value in model.seen]
    means = [(maps[0] + maps[1]) / 2, (maps[2] + maps[3]) / 2]
    for logs in (noting.logs, trainer.state.log_history):
        assert [entry["batch_map"] for entry in logs if "loss" in entry] == pytest.approx(means)
    assert means[0] != means[1]


def test_another_metric_than_map_is_logged_by_its_name(tmp_path: Path) -> None:
    loss_fn = sg.DetectionLoss(hf_models.CLASSES, "miss_rate", nms_threshold=None, match_threshold=LOW)
    trainer, model, noting = make_trainer(tmp_path, steps=2, loss_fn=loss_fn)
    pixels, labels = hf_models.batch(seed=99)
    callback = MAPCallback(val_data=[{"pixel_values": pixels, "labels": labels}], every=1).add_to(trainer)
    trainer.train()
    (entry,) = (entry for entry in noting.logs if "loss" in entry)
    assert entry["batch_miss_rate"] == pytest.approx(sum(value for _, value in model.seen) / 2)
    assert entry["held_out_miss_rate"] == pytest.approx(-callback.best.history[-1].map)
    assert not {"batch_map", "held_out_map"} & set(entry)


def test_counts_optimiser_steps_and_the_mean_includes_every_batch(tmp_path: Path) -> None:
    trainer, model, _ = make_trainer(tmp_path, steps=2, gradient_accumulation_steps=2)
    trainer.add_callback(MAPCallback(switch_at=1))
    trainer.train()
    assert ["loss_map" in names for names, _ in model.seen] == [False, False, True, True]
    (logged,) = (entry["batch_map"] for entry in trainer.state.log_history if "loss" in entry)
    assert logged == pytest.approx(sum(value for _, value in model.seen) / 4)


@pytest.mark.parametrize("rate", [1e-4, 1.0])
@pytest.mark.filterwarnings("ignore::stepgrad.errors.LikelyMistakeWarning")  # a wrecked model finds nothing
def test_training_ends_with_the_best_weights_on_held_out_data(rate: float, tmp_path: Path) -> None:
    trainer, model, noting = make_trainer(tmp_path, steps=3, gradient_accumulation_steps=2)
    trainer.args.learning_rate = rate
    pixels, labels = hf_models.batch(seed=99)
    val_data = [{"pixel_values": pixels, "labels": labels}]
    callback = MAPCallback(switch_at=1, val_data=val_data, every=2).add_to(trainer)
    trainer.train()
    assert [(score.step, score.trained) for score in callback.best.history] == [
        (0, "start"),
        (1, "stock"),  # before mAP joined
        (2, "map"),
        (3, "map"),  # the end
    ]
    maps = [score.map for score in callback.best.history if not math.isnan(score.map)]
    assert held_out_map(model, val_data) == max(maps) == callback.best.best.map
    assert max(maps) >= maps[0] > 0.0
    assert [entry["held_out_map"] for entry in noting.logs if "loss" in entry] == pytest.approx(
        [callback.best.history[2].map], nan_ok=True
    )


def test_a_model_that_is_not_prepared_is_refused_before_training(tmp_path: Path) -> None:
    trainer, model, _ = make_trainer(tmp_path, steps=1)
    model.model = hf_models.make("detr")
    with pytest.raises(sg.errors.InputError, match="found 0"):
        MAPCallback().add_to(trainer)
    trainer.add_callback(MAPCallback())
    with pytest.raises(sg.errors.InputError, match="found 0"):
        trainer.train()
    assert model.seen == []


def test_bad_steps_are_named() -> None:
    with pytest.raises(sg.errors.ConfigError, match="switch_at"):
        MAPCallback(switch_at=-1)
