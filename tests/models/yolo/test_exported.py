"""A YOLO's weights and what ultralytics exports of them, judged by `stepgrad evaluate --model`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from stepgrad.cli.evaluate import evaluate
from stepgrad.models.exported.pipeline import open_pipeline
from tests.models.yolo.small import NMS_FREE, SIZE, export, needs_ultralytics, network, save, yolo_folder

pytest.importorskip("onnxruntime", reason='needs onnxruntime: pip install ".[onnx]"')
pytestmark = needs_ultralytics
NAMES = {0: "disk", 1: "ring", 2: "square", 3: "triangle", 4: "cross", 5: "star"}


def weights(folder: Path, model: str) -> Path:
    """Random weights as ultralytics saves them."""
    from ultralytics import YOLO

    yolo = YOLO(model)
    yolo.model = network(model, classes=len(NAMES)).float().eval()
    yolo.model.names = NAMES
    yolo.model.args = {"imgsz": SIZE, "task": "detect"}
    yolo.model.task = "detect"
    save(yolo, folder / "best.pt")
    return folder / "best.pt"


@pytest.mark.parametrize("model", ["yolov8n.yaml", NMS_FREE])
def test_an_export_differs_from_its_weights_in_nothing(model: str, tmp_path: Path) -> None:
    data = yolo_folder(tmp_path / "data")
    file = weights(tmp_path, model)
    report = tmp_path / "n.json"
    options = {"data": data, "split": "val", "resamples": 20, "report": report, "protocol": "voc12"}
    recipes = {"recipe": ["min_score=0"], "against_recipe": ["min_score=0", f"size={SIZE}"]}
    assert evaluate(model=export(file), against=file, **recipes, **options) == 0
    causes = json.loads(report.read_text())["causes"]
    assert {part["group"] for part in causes["parts"]} <= {"network"}
    assert abs(causes["points"]) < 2.0  # equal scores in another order


def test_weights_give_the_boxes_and_scores_of_the_network(tmp_path: Path) -> None:
    file = weights(tmp_path, "yolov8n.yaml")
    from PIL import Image

    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (SIZE, SIZE, 3)).astype(np.uint8))
    found = open_pipeline(file, list(NAMES.values()), [f"size={SIZE}"]).windows(picture)
    pixels = torch.from_numpy(np.asarray(picture).copy()).permute(2, 0, 1)[None].float() / 255
    plain = network("yolov8n.yaml", classes=len(NAMES)).float().eval()
    with torch.inference_mode():
        expected = plain(pixels)[0][0].double().numpy()
    np.testing.assert_allclose(found.scores, expected[4:].T, atol=1e-4)
