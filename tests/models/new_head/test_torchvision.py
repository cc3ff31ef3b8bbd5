"""torchvision's detectors with a new last class layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torchvision.models.detection import ssdlite320_mobilenet_v3_large

import stepgrad as sg
from stepgrad.errors import ConfigError
from stepgrad.models.held_out import as_used
from stepgrad.models.new_head import frozen_detector
from stepgrad.models.new_head.frozen import WindowChoice
from stepgrad.models.new_head.layer import FIRST
from stepgrad.models.torchvision import train_for_map
from tests.models.new_head.laws import check_the_model_gives_what_was_judged, everything, random_layer
from tests.models.new_head.small import QUICK
from tests.models.tiny import TWO_STAGE, tiny_batch, tiny_model

ONES = ["ssd", "retinanet", "fcos", "faster_rcnn", "mask_rcnn", "keypoint_rcnn"]


def everything_shown(family: str) -> dict[str, Any]:
    """Options by which a model shows all it finds."""
    if family in TWO_STAGE:
        return {"box_score_thresh": 0.0, "box_detections_per_img": 10**6}
    return {"score_thresh": 0.0, "detections_per_img": 10**6, "topk_candidates": 10**6}


def model_and_image(family: str, side: int = 48) -> tuple[Any, torch.Tensor]:
    """In double precision; the image is not of the size that the model resizes it to."""
    model = tiny_model(family, **everything_shown(family)).double().eval()
    image = tiny_batch(family)[0][0].double()[:, :side]
    return model, image


@pytest.mark.parametrize("centre_only", [False, True])
@pytest.mark.parametrize("family", ONES)
def test_the_whole_model_gives_what_was_judged_on_features(family: str, centre_only: bool) -> None:
    model, image = model_and_image(family)
    check_the_model_gives_what_was_judged(frozen_detector(model, centre_only), image)


def test_ssdlite_keeps_all_but_its_last_convolutions() -> None:
    """Logits are compared: without training they are so close to each other that rounding decides who suppresses whom."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=4).double().eval()
    image = tiny_batch("ssd")[0][0].double()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    detector, seen = frozen_detector(model, centre_only=False), []
    model.head.register_forward_hook(lambda _, inputs, outputs: seen.append(outputs["cls_logits"][0]))
    with as_used(model):
        features = detector.windows(image, everything).features
        layer = random_layer(detector, features)
        detector.install(*layer.folded(), ["a", "b"])
        detector.detect(image)
        torch.testing.assert_close(seen[-1], layer(features), rtol=1e-6, atol=1e-6)
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {f"head.classification_head.module_list.{n}.1.{w}" for n in range(6) for w in ("weight", "bias")}


@pytest.mark.parametrize("family", ONES)
def test_a_second_new_head_goes_on_the_same_features_and_boxes(family: str) -> None:
    model, image = model_and_image(family)
    detector = frozen_detector(model, centre_only=False)
    with as_used(model):
        _, features, boxes, _ = detector.windows(image, everything)
    detector.install(*random_layer(detector, features).folded(), ["a", "b"])
    with as_used(model):
        same = detector.windows(image, everything)
    torch.testing.assert_close(same.features, features)
    again = frozen_detector(model, centre_only=False)
    with as_used(model):
        _, new_features, new_boxes, _ = again.windows(image, everything)
    torch.testing.assert_close(new_features, features)
    torch.testing.assert_close(new_boxes, boxes)
    check_the_model_gives_what_was_judged(again, image)


@pytest.mark.parametrize("family", ["ssd", "retinanet", "fcos"])
def test_a_dense_model_with_a_new_head_has_torchvisions_layers_only_and_can_be_trained(family: str) -> None:
    model, image = model_and_image(family)
    detector = frozen_detector(model, centre_only=False)
    with as_used(model):
        features = detector.windows(image, everything).features
    detector.install(*random_layer(detector, features).folded(), ["a", "b"])
    assert not any(type(layer).__module__.startswith("stepgrad") for layer in model.modules())
    losses = model.train()([image], [{"boxes": torch.tensor([[5.0, 5, 30, 30]]).double(), "labels": torch.tensor([1])}])
    assert all(torch.isfinite(loss) for loss in losses.values())


def test_a_box_of_faster_rcnn_is_that_of_the_old_models_likeliest_class() -> None:
    model, image = model_and_image("faster_rcnn", side=64)
    with as_used(model):
        old = model([image])[0]
        _, features, boxes, _ = frozen_detector(model, False).windows(image, everything)
    assert len(features) == len(boxes) > 0
    best = old["boxes"][old["scores"].argmax()]  # sure of its class, so it is the likeliest of its proposal
    assert (boxes - best).abs().sum(dim=1).min() < 1e-9


def test_the_best_windows_are_those_the_old_model_is_surest_of() -> None:
    model, image = model_and_image("retinanet", side=64)
    detector = frozen_detector(model, centre_only=True)
    with as_used(model):
        every = detector.windows(image, everything).boxes
        best = detector.windows(image, lambda likely: WindowChoice(20, 0).of(likely, image=0)).boxes
        found = model([image])[0]
    assert len(best) == 20 < len(every)
    surest = found["boxes"][found["scores"].argmax()]
    assert (best - surest).abs().sum(dim=1).min() < 1e-9


def test_other_windows_are_drawn_from_the_rest_and_are_the_same_each_time() -> None:
    likely = torch.arange(50.0)
    chosen = WindowChoice(best=10, others=5).of(likely, image=3)
    assert len(set(chosen.tolist())) == 15
    assert set(range(40, 50)) <= set(chosen.tolist())
    assert torch.equal(chosen, WindowChoice(best=10, others=5).of(likely, image=3))
    assert not torch.equal(chosen, WindowChoice(best=10, others=5).of(likely, image=4))


@pytest.mark.parametrize("family", ["mask_rcnn", "keypoint_rcnn"])
def test_shapes_of_windows_are_those_of_the_detections_that_they_become(family: str) -> None:
    model, image = model_and_image(family)
    detector = frozen_detector(model, centre_only=False)
    with as_used(model):
        found = detector.windows(image, everything)
        shapes = found.shapes(torch.arange(len(found.boxes)))
        detector.install(*random_layer(detector, found.features).folded(), ["a", "b"])
        detections = detector.detect(image)
    assert len(detections["boxes"]) > 0
    for box, shape in zip(detections["boxes"], detections[detector.shapes], strict=True):
        window = (found.boxes - box).abs().amax(dim=1).argmin()
        torch.testing.assert_close(shapes[window].double(), shape.double())
    with as_used(model):
        again = frozen_detector(model, centre_only=False).windows(image, everything)
        assert torch.equal(again.shapes(torch.arange(len(again.boxes))), shapes)


def shaped(family: str, count: int, seed: int) -> list[Any]:
    """Images with targets of the family's shapes, labels from 0; the masks are the objects' boxes."""
    images, targets = tiny_batch(family, count, seed)
    for image, target in zip(images, targets, strict=True):
        target["labels"] = target["labels"] - 1
        if family == "mask_rcnn":
            for mask, (x1, y1, x2, y2) in zip(target["masks"], target["boxes"].int().tolist(), strict=True):
                mask[:] = 0
                mask[y1:y2, x1:x2] = 1
            target["masks"] = target["masks"].bool()
        assert image.shape[0] == 3
    return list(zip(images, targets, strict=True))


@pytest.mark.filterwarnings("ignore")  # those of torch's exporter
@pytest.mark.parametrize(
    ("family", "task"), [("mask_rcnn", "masks"), ("keypoint_rcnn", sg.overlaps.Keypoints([0.1, 0.1]))]
)
def test_new_classes_of_shapes_are_trained_and_exported(family: str, task: Any, tmp_path: Any) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    model = tiny_model(family, box_detections_per_img=5, box_score_thresh=0.0).eval()
    train, val = shaped(family, 4, seed=1), shaped(family, 3, seed=2)
    result = sg.train_new_head(model, train, val, num_classes=2 + 1, task=task, match_threshold=0.05, **QUICK)
    assert 0.0 <= result.whole <= 1.0
    image = val[0][0]
    with torch.no_grad():
        expected = model([image])[0]
    assert set(expected["labels"].tolist()) <= {1, 2, 3}
    file = tmp_path / "model.onnx"
    torch.onnx.export(model, ([image],), str(file), opset_version=17, dynamo=False)
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    got = [torch.from_numpy(part) for part in session.run(None, {session.get_inputs()[0].name: image.numpy()})]
    by_name = dict(zip(expected, got, strict=False))  # scores of keypoints are there, too
    assert torch.equal(by_name["labels"], expected["labels"])
    for name in ("boxes", "scores"):
        torch.testing.assert_close(by_name[name], expected[name], rtol=1e-3, atol=1e-3)


def test_what_is_no_known_detector_is_refused() -> None:
    with pytest.raises(ConfigError, match="but got Linear"):
        frozen_detector(nn.Linear(1, 1), centre_only=False)


def test_a_model_that_trains_for_map_is_stock_again() -> None:
    model, image = model_and_image("ssd")
    train_for_map(model)
    check_the_model_gives_what_was_judged(frozen_detector(model, centre_only=False), image)
    assert type(model).__name__ == "SSD"


def test_windows_that_are_kept_already_are_not_chosen_again() -> None:
    known = torch.tensor([47, 49, 3])
    chosen = WindowChoice(best=10, others=37).of(torch.arange(50.0), image=3, known=known)
    assert sorted([*chosen.tolist(), *known.tolist()]) == list(range(50))


def test_a_picture_in_bytes_is_the_same_picture_in_shares_of_one() -> None:
    model, image = model_and_image("ssd")
    in_bytes = (255 * image).round().to(torch.uint8)
    detector = frozen_detector(model, centre_only=False)
    with as_used(model):
        of_bytes = detector.windows(in_bytes, everything).features
        of_shares = detector.windows(in_bytes / 255, everything).features
    assert torch.equal(of_bytes, of_shares)


def test_a_two_stage_model_picks_windows_by_how_likely_they_show_anything() -> None:
    model, image = model_and_image("faster_rcnn")
    asked = []

    def all_of(likely: torch.Tensor) -> torch.Tensor:
        asked.append(likely)
        return everything(likely)

    with as_used(model):
        rows = frozen_detector(model, centre_only=False).windows(image, all_of).features
        background = model.roi_heads.box_predictor.cls_score(rows[:, FIRST:]).softmax(dim=1)[:, 0]
    torch.testing.assert_close(asked[0].exp(), 1.0 - background)
