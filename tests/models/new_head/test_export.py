"""A model with a new head, exported to ONNX, detects what it detected before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torchvision.transforms.functional import to_pil_image

import stepgrad as sg
from stepgrad.models.exported.causes import partners
from stepgrad.models.exported.limits import Detected
from stepgrad.models.exported.pipeline import open_pipeline
from stepgrad.models.held_out import as_used
from tests.models.exported import graphs  # skips where there is no onnx
from tests.models.hf_models import SIDE, make
from tests.models.new_head.small import QUICK, TRAIN, VAL
from tests.models.tiny import tiny_model

NAMES = ["a", "b", "c"]
NEAR = 1e-3
"""Single precision in two programs: pixels of boxes, and scores."""

pytestmark = pytest.mark.filterwarnings("ignore")  # the exporter's own


def exported(model: nn.Module, inputs: Any, file: Path, outputs: list[str], name: str) -> Path:
    assert graphs.SIZE == SIDE
    with torch.no_grad():
        torch.onnx.export(
            model, inputs, str(file), dynamo=False, input_names=[name], output_names=outputs, opset_version=17
        )
    return file


def check_the_same_detections(one: Detected, other: Detected) -> None:
    """Each of the one is one of the other, but for a few that rounding pushes over a threshold of NMS."""
    assert len(one.scores) > 5
    partner = partners(one, other)
    found = partner >= 0
    assert found.mean() >= 0.95
    close = np.abs(one.scores[found] - other.scores[partner[found]]) <= NEAR
    same = np.abs(one.boxes[found] - other.boxes[partner[found]]).max(axis=1) <= 100 * NEAR
    assert (close & same).mean() >= 0.95


def by_torch(model: Any, picture: Any, first: int) -> Detected:
    pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() / 255
    with as_used(model):
        found = model([pixels])[0]
    columns = found["boxes"].double().numpy(), found["scores"].double().numpy(), found["labels"].numpy() - first
    return Detected(*columns)


@pytest.mark.parametrize("family", ["ssd", "retinanet", "faster_rcnn"])
def test_torchvisions_models(family: str, tmp_path: Path) -> None:
    result = sg.train_new_head(tiny_model(family), TRAIN, VAL, num_classes=3, class_names=NAMES, **QUICK)
    first = min(result.names)
    picture = to_pil_image(VAL[0][0].clamp(0, 1))
    outputs = ["boxes", "labels", "scores"] if family == "faster_rcnn" else ["boxes", "scores", "labels"]
    with as_used(result.model):
        file = exported(result.model, ([VAL[0][0]],), tmp_path / "m.onnx", outputs, "images")
    words = [f"first_label={first}", "min_score=0", "max_detections=1000"]
    found = open_pipeline(file, NAMES, words).detect(picture)
    check_the_same_detections(by_torch(result.model, picture, first), found)


class LogitsAndBoxes(nn.Module):
    """A model of transformers with two outputs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, Tensor]:
        found = self.model(pixel_values=pixel_values)
        return found.logits, found.pred_boxes


def test_a_detr(tmp_path: Path) -> None:
    result = sg.train_new_head(make("detr"), TRAIN, VAL, num_classes=3, class_names=NAMES, **QUICK)
    picture = to_pil_image(VAL[0][0].clamp(0, 1))
    pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1).float()[None] / 255
    with as_used(result.model):
        outputs, model = ["logits", "pred_boxes"], LogitsAndBoxes(result.model).eval()
        file = exported(model, (pixels,), tmp_path / "m.onnx", outputs, "pixel_values")
        logits, boxes = model(pixels)
    found = open_pipeline(file, NAMES, ["normalise=none", "min_score=0"]).windows(picture)
    np.testing.assert_allclose(found.scores, logits[0].softmax(dim=1)[:, :-1].numpy(), atol=NEAR)
    half = boxes[0, :, 2:] / 2
    expected = SIDE * torch.cat([boxes[0, :, :2] - half, boxes[0, :, :2] + half], dim=1)
    np.testing.assert_allclose(found.boxes, expected.numpy(), atol=100 * NEAR)
