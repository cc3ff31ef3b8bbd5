"""Weights without batch norm, in a YOLO that has it; and the table of its trainings."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from experiments.results import save_runs
from experiments.yolo.network import YOLOv8n
from experiments.yolo.train_for_map import main
from experiments.yolo.weights import calibrate, load_folded
from tests.models.yolo.small import needs_ultralytics

CLOSE = 1e-9  # of numbers near 1 in float64, through some hundred layers


class TestWeights:
    pytestmark = needs_ultralytics

    def test_a_network_with_batch_norm_says_what_the_folded_one_does_and_trains_from_there(self) -> None:
        from ultralytics.nn.tasks import DetectionModel

        torch.manual_seed(0)
        folded = YOLOv8n().double().eval()
        model = DetectionModel("yolov8n.yaml", verbose=False).double()
        images = torch.rand(4, 3, 64, 64, dtype=torch.float64)
        load_folded(model, folded.state_dict())
        expected = folded(images).logits.sigmoid().transpose(1, 2)
        assert (model.eval()(images)[0][:, 4:] - expected).abs().max() < CLOSE
        calibrate(model, [images[:2], images[2:]])
        assert (model.eval()(images)[0][:, 4:] - expected).abs().max() < CLOSE
        # The statistics are those of these very images, so in training mode the first layer says the same.
        trunk = copy.deepcopy(model.model[:1])
        assert torch.allclose(trunk.train()(images), model.model[:1].eval()(images), atol=1e-9)

    def test_weights_without_a_place_are_named(self) -> None:
        from ultralytics.nn.tasks import DetectionModel

        weights = YOLOv8n().state_dict()
        with pytest.raises(KeyError, match=r"1 weights have no place in the model, the first model\.99"):
            load_folded(DetectionModel("yolov8n.yaml", verbose=False), {**weights, "model.99.weight": torch.zeros(1)})


def test_the_table_has_the_gain_of_seeds_that_both_trainers_had(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arm, seed, value in (
        ("stock", 0, 10.0),
        ("map", 0, 12.0),
        ("stock", 1, 20.0),
        ("map", 1, 23.0),
        ("stock", 2, 90.0),
    ):
        save_runs(
            tmp_path / "runs.jsonl",
            "final",
            {"set": "bccd", "arm": arm, "seed": seed, "last": {"map": value, "map50": 2 * value}},
        )
    main(["table", str(tmp_path / "runs.jsonl")])
    printed = capsys.readouterr().out
    assert "| bccd | test | 2 | COCO AP | 15.0 (7.1) | 17.5 (7.8) | +2.5 (0.7) |" in printed
    assert printed.strip() in (tmp_path / "runs.md").read_text()
