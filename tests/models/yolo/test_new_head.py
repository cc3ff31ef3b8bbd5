"""YOLO detectors of ultralytics with a new last class layer; runs where ultralytics is installed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import stepgrad as sg
from stepgrad.errors import ConfigError
from stepgrad.models.held_out import as_used
from stepgrad.models.new_head import frozen_detector
from stepgrad.models.yolo.heads import read_inference
from tests.models.new_head.laws import NEW_CLASSES, everything, random_layer
from tests.models.new_head.small import QUICK, TRAIN, VAL
from tests.models.yolo.small import SIZE, needs_ultralytics

pytestmark = needs_ultralytics


def made(name: str = "yolov8n.yaml") -> Any:
    from ultralytics import YOLO

    with torch.random.fork_rng():
        torch.manual_seed(0)
        return YOLO(name)


def an_image() -> Tensor:
    return torch.randint(256, (3, 40, 56), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", ["yolov8n.yaml", "yolo11n.yaml"])
def test_the_network_gives_what_the_layer_gave_on_features(name: str) -> None:
    yolo = made(name)
    yolo.model.double()
    detector: Any = frozen_detector(yolo, image_size=SIZE)
    with as_used(detector.model):
        _, features, boxes = detector.windows(an_image(), everything)
        layer = random_layer(detector, features)
        expected = layer(features).sigmoid()
        detector.install(*layer.folded(), ["a", "b"])
        _, scores = read_inference(detector.model(detector._letterboxed(an_image())))
        again = detector.windows(an_image(), everything)
    assert scores.shape == (len(boxes), NEW_CLASSES)
    torch.testing.assert_close(scores, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(again.boxes, boxes)


def test_the_call_ends_with_a_yolo_that_predicts_the_new_classes() -> None:
    yolo = made()
    result = sg.train_new_head(yolo, TRAIN, VAL, num_classes=3, class_names=["a", "b", "c"], image_size=SIZE, **QUICK)
    assert result.names == {0: "a", 1: "b", 2: "c"}
    (found,) = yolo.predict((255 * VAL[0][0]).byte().permute(1, 2, 0).numpy(), imgsz=SIZE, conf=1e-9, verbose=False)
    assert found.names == {0: "a", 1: "b", 2: "c"}
    assert len(found.boxes) > 0
    assert set(found.boxes.cls.tolist()) <= {0.0, 1.0, 2.0}


def test_a_head_that_works_end_to_end_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"end to end|Detect head"):
        frozen_detector(made("yolov10n.yaml"))


def test_windows_are_picked_by_the_class_they_most_likely_show() -> None:
    yolo = made()
    detector: Any = frozen_detector(yolo, image_size=SIZE)
    with torch.no_grad():
        for branch in detector.head.cv3:
            branch[-1].bias[0] += 5.0  # all windows look most like the first class
    asked = []

    def all_of(likely: Tensor) -> Tensor:
        asked.append(likely)
        return everything(likely)

    with as_used(detector.model):
        detector.windows(an_image(), all_of)
        _, scores = read_inference(detector.model(detector._letterboxed(an_image())))
    assert torch.equal(asked[0], scores[:, 0])
