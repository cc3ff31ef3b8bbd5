"""The Lightning callback logs the true mAP of every batch and switches when it is told to."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import stepgrad as sg

pytest.importorskip("lightning", reason='needs Lightning: pip install ".[lightning]"')
pytest.importorskip("transformers", reason='needs transformers: pip install ".[transformers]"')

from stepgrad.models.detr.transformers import train_for_map
from stepgrad.models.frameworks.lightning import MAPCallback
from stepgrad.models.frameworks.torchmetrics import MAPMetric
from stepgrad.models.held_out import held_out_map
from tests.models import hf_models

LOW = 0.005  # match threshold at which even random boxes find objects
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.*:FutureWarning"),  # Lightning on a newer torch
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),  # said on machines with many cores
]
PACKAGES = ["lightning.pytorch", "pytorch_lightning"]


def packages() -> list[Any]:
    return [
        pytest.param(name, marks=[] if _there(name) else pytest.mark.skip(f"{name} is not installed"))
        for name in PACKAGES
    ]


def _there(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


def make_module(pl: Any, **options: Any) -> Any:
    options = options if "loss_fn" in options else {"match_threshold": LOW, **options}
    key, log_name = ("value", "miss_rate") if "loss_fn" in options else ("map", "map")

    class Detector(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.detector = train_for_map(hf_models.make("yolos"), **options)
            self.metric = MAPMetric(hf_models.CLASSES)
            self.parts: list[dict[str, Tensor]] = []
            self.maps: list[float] = []

        def training_step(self, batch: Any, index: int) -> Tensor:
            pixels, labels = hf_models.batch(seed=int(batch[0]))
            output = self.detector(pixel_values=pixels, labels=labels)
            self.parts.append(output.loss_dict)
            self.maps.append(self.detector.map_loss_switch.metrics[key])
            return output.loss

        def on_train_batch_end(self, *_: Any) -> None:  # runs after those of callbacks
            assert float(self.trainer.callback_metrics[f"train/batch_{log_name}"]) == pytest.approx(self.maps[-1])

        def validation_step(self, batch: Any, index: int) -> None:
            box = torch.tensor([[0.0, 0.0, 10.0, 10.0]])
            found = {"boxes": box, "scores": torch.ones(1), "labels": torch.zeros(1).long()}
            self.metric.update([found], [{"boxes": box + 20 * (index % 2), "labels": torch.zeros(1).long()}])

        def on_validation_epoch_end(self) -> None:
            self.log("val/map", self.metric.compute()["map"])
            self.metric.reset()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    return Detector()


def make_trainer(pl: Any, folder: Path, steps: int, **more: Any) -> Any:
    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
    }
    where = {"accelerator": "cpu", "devices": 1, "default_root_dir": folder}
    return pl.Trainer(**quiet, **where, max_steps=steps, **more)


def batches(count: int = 8) -> Any:
    return torch.utils.data.DataLoader(torch.arange(count), batch_size=1)


@pytest.mark.parametrize("package", packages())
def test_switches_after_so_many_steps_and_logs_every_batch(package: str, tmp_path: Path) -> None:
    pl = importlib.import_module(package)
    module = make_module(pl)
    trainer = make_trainer(pl, tmp_path, steps=4, callbacks=[MAPCallback(switch_at=2)])
    trainer.fit(module, batches(4), batches(2))
    assert ["loss_map" in parts for parts in module.parts] == [False, False, True, True]
    assert len(set(module.maps)) > 1
    assert float(trainer.callback_metrics["val/map"]) == pytest.approx(51 / 101)  # one of two objects, found first


def test_counts_optimiser_steps_not_batches(tmp_path: Path) -> None:
    pl = importlib.import_module("lightning.pytorch")
    module = make_module(pl)
    callbacks = [MAPCallback(switch_at=1)]
    make_trainer(pl, tmp_path, steps=2, callbacks=callbacks, accumulate_grad_batches=2).fit(
        module, batches(4), batches(2)
    )
    assert ["loss_map" in parts for parts in module.parts] == [False, False, True, True]


def test_without_a_step_the_switch_stays_as_it_is(tmp_path: Path) -> None:
    pl = importlib.import_module("lightning.pytorch")
    module = make_module(pl, enabled=False)
    make_trainer(pl, tmp_path, steps=2, callbacks=[MAPCallback()]).fit(module, batches(2), batches(2))
    assert ["loss_map" in parts for parts in module.parts] == [False, False]


@pytest.mark.parametrize("rate", [1e-3, 1.0])
@pytest.mark.filterwarnings("ignore::stepgrad.errors.LikelyMistakeWarning")  # a wrecked model finds nothing
def test_a_fit_ends_with_the_best_weights_on_held_out_data(rate: float, tmp_path: Path) -> None:
    pl = importlib.import_module("lightning.pytorch")
    module = make_module(pl)
    module.configure_optimizers = lambda: torch.optim.SGD(module.parameters(), lr=rate)
    val_data = [hf_models.batch(seed=99)]
    callback = MAPCallback(switch_at=1, val_data=val_data, every=2)
    trainer = make_trainer(pl, tmp_path, steps=3, callbacks=[callback], accumulate_grad_batches=2)
    trainer.fit(module, batches(6), batches(2))
    assert [(score.step, score.trained) for score in callback.best.history] == [
        (0, "start"),
        (1, "stock"),  # before mAP joined
        (2, "map"),
        (3, "map"),  # the end
    ]
    maps = [score.map for score in callback.best.history if not math.isnan(score.map)]
    assert held_out_map(module, val_data) == max(maps) == callback.best.best.map
    assert max(maps) >= maps[0] > 0.0
    assert "held_out_map" in trainer.callback_metrics
    assert callback.best.summary.startswith("Kept the weights ")


def test_another_metric_than_map_is_logged_by_its_name(tmp_path: Path) -> None:
    pl = importlib.import_module("lightning.pytorch")
    loss_fn = sg.DetectionLoss(hf_models.CLASSES, "miss_rate", nms_threshold=None, match_threshold=LOW)
    module = make_module(pl, loss_fn=loss_fn)
    callback = MAPCallback(val_data=[hf_models.batch(seed=99)], every=1)
    trainer = make_trainer(pl, tmp_path, steps=2, callbacks=[callback])
    trainer.fit(module, batches(2), batches(2))
    assert 0.0 < module.maps[-1] <= 1.0
    assert float(trainer.callback_metrics["held_out_miss_rate"]) == pytest.approx(-callback.best.history[-1].map)
    assert not [name for name in trainer.callback_metrics if name in ("train/batch_map", "held_out_map")]


def test_a_module_without_a_prepared_model_is_refused_before_training(tmp_path: Path) -> None:
    pl = importlib.import_module("lightning.pytorch")
    module = make_module(pl)
    module.detector = hf_models.make("yolos")
    trainer = make_trainer(pl, tmp_path, steps=1, callbacks=[MAPCallback()])
    with pytest.raises(sg.errors.InputError, match="`train_for_map` in Detector but found 0"):
        trainer.fit(module, batches(1), batches(2))
    assert module.parts == []


@pytest.mark.parametrize("step", [-1, 1.5, True, "10"])
def test_bad_steps_are_named(step: Any) -> None:
    with pytest.raises(sg.errors.ConfigError, match="switch_at"):
        MAPCallback(switch_at=step)
