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
from tests.models.yolo.small import SIZE, export, needs_ultralytics, save

pytestmark = needs_ultralytics


def made(name: str = "yolov8n.yaml") -> Any:
    from ultralytics import YOLO

    with torch.random.fork_rng():
        torch.manual_seed(0)
        yolo = YOLO(name)
    if "kpt_shape" in yolo.model.yaml:
        yolo.model.kpt_shape = yolo.model.yaml[
            "kpt_shape"
        ]  # earlier versions set it in training only, and predict by it
    return yolo


SHAPED = {"yolo11n-seg.yaml": "masks", "yolo11n-pose.yaml": "keypoints", "yolo11n-obb.yaml": "oriented"}


def an_image() -> Tensor:
    return torch.randint(256, (3, 40, 56), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", ["yolov8n.yaml", "yolo11n.yaml", *SHAPED])
def test_the_network_gives_what_the_layer_gave_on_features(name: str) -> None:
    yolo = made(name)
    yolo.model.double()
    detector: Any = frozen_detector(yolo, image_size=SIZE)
    with as_used(detector.model):
        _, features, boxes, _ = detector.windows(an_image(), everything)
        layer = random_layer(detector, features)
        expected = layer(features).sigmoid()
        detector.install(*layer.folded(), ["a", "b"])
        _, scores, _ = read_inference(detector.model(detector._letterboxed(an_image())), NEW_CLASSES)
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
    with pytest.raises(ConfigError, match=r"end to end|last part is"):
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
        _, scores, _ = read_inference(detector.model(detector._letterboxed(an_image())), 80)
    assert torch.equal(asked[0], scores[:, 0])


@pytest.mark.parametrize("name", SHAPED)
def test_shapes_of_windows_are_those_of_the_detections_that_they_become(name: str) -> None:
    yolo = made(name)
    yolo.model.double()
    detector: Any = frozen_detector(yolo, image_size=SIZE)
    with as_used(detector.model):
        found = detector.windows(an_image(), everything)
        detector.install(*random_layer(detector, found.features).folded(), ["a", "b"])
        detections = detector.detect(an_image())
    shapes = found.shapes(torch.arange(len(found.boxes)))
    assert len(detections["boxes"]) > 0
    for box, shape in zip(detections["boxes"][:20], detections[SHAPED[name]], strict=False):
        same = (found.boxes - box).abs().amax(dim=1) < 1e-3
        assert same.any()
        assert any(torch.allclose(own.double(), shape.double(), atol=1e-3) for own in shapes[same])


def test_masks_are_those_of_the_logits_enlarged_and_end_at_their_boxes() -> None:
    from torch.nn.functional import interpolate

    from stepgrad.models.yolo.frozen import Letterboxed

    g = torch.Generator().manual_seed(0)
    prototypes, coefficients = torch.randn(4, 16, 16, generator=g), torch.randn(3, 4, generator=g)
    image = torch.zeros(3, SIZE, SIZE)
    boxes = torch.tensor([[0.0, 0.0, SIZE, SIZE], [10.5, 20.5, 40.5, 30.5], [5.0, 5.0, 5.0, 60.0]])
    found = Letterboxed.of(image[None], image).masks(prototypes, coefficients, boxes)
    logits = interpolate((coefficients @ prototypes.flatten(1)).view(1, 3, 16, 16), (SIZE, SIZE), mode="bilinear")[0]
    assert torch.equal(found[0], logits[0] > 0)
    inside = torch.zeros(SIZE, SIZE, dtype=torch.bool)
    inside[21:30, 11:40] = True  # pixels whose centres lie in the box
    inside[20, 11:40] = inside[20:30, 10] = False
    edge = torch.zeros_like(inside)
    edge[20:31, 10:41] = True
    assert torch.equal(found[1] & inside, (logits[1] > 0) & inside)
    assert not (found[1] & ~edge).any()
    assert not found[2].any()


def shaped_images(name: str, images: list[Any]) -> list[Any]:
    """The images with a mask, a pose or an oriented box for each object, all as large as its box."""
    found = []
    for image, target in images:
        boxes, more = target["boxes"], {}
        if "seg" in name:
            more["masks"] = torch.zeros(len(boxes), SIZE, SIZE, dtype=torch.bool)
            for mask, (x1, y1, x2, y2) in zip(more["masks"], boxes.int().tolist(), strict=True):
                mask[y1:y2, x1:x2] = True
        elif "pose" in name:
            more["keypoints"] = torch.cat([boxes[:, :2], torch.full((len(boxes), 1), 2.0)], dim=1)[:, None].repeat(
                1, 17, 1
            )
        else:
            centre, sides = (boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]
            more["oriented"] = torch.cat([centre, sides, torch.zeros(len(boxes), 1)], dim=1)
        found.append((image, target | more))
    return found


@pytest.mark.parametrize("name", SHAPED)
def test_new_classes_of_shapes_are_trained_and_exported(name: str, tmp_path: Any) -> None:
    yolo = made(name)
    train, val = (shaped_images(name, images) for images in (TRAIN, VAL))
    options = {**QUICK, "task": SHAPED[name], "image_size": SIZE, "match_threshold": 0.05}
    result = sg.train_new_head(
        yolo, train, val, num_classes=3, class_names=["a", "b", "c"], out=tmp_path / "run", **options
    )
    assert 0.0 <= result.whole <= 1.0
    (found,) = yolo.predict((255 * VAL[0][0]).byte().permute(1, 2, 0).numpy(), imgsz=SIZE, conf=1e-9, verbose=False)
    assert found.names == {0: "a", 1: "b", 2: "c"}
    again = made(name)
    same = sg.train_new_head(
        again, train, val, num_classes=3, class_names=["a", "b", "c"], out=tmp_path / "run", **options
    )
    assert same.whole == result.whole  # from the folder
    check_export(yolo, tmp_path)


def check_export(yolo: Any, folder: Any) -> None:
    """The network in onnxruntime gives what it gives here."""
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    file = folder / "model.onnx"
    yolo.model.float().eval()
    save(yolo, folder / "model.pt")
    file = export(folder / "model.pt")
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    pixels = torch.rand(1, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = yolo.model(pixels)
    while isinstance(expected, (tuple, list)):
        expected = expected[0]
    got = torch.from_numpy(session.run(None, {session.get_inputs()[0].name: pixels.numpy()})[0])
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3)


def test_a_task_that_the_model_does_not_predict_is_refused() -> None:
    with pytest.raises(ConfigError, match="task"):
        sg.train_new_head(made("yolo11n-seg.yaml"), TRAIN, VAL, num_classes=3, task="keypoints", **QUICK)
    with pytest.raises(ConfigError, match="oriented"):
        sg.train_new_head(made("yolo11n-obb.yaml"), TRAIN, VAL, num_classes=3, **QUICK)
