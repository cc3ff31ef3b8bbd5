"""train_for_map on every family: one loss changes, nothing else does."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

import stepgrad as sg
from stepgrad.errors import ConfigError, InputError
from stepgrad.models.torchvision import restore, train_for_map
from tests.models.tiny import (
    CLASSES,
    DENSE,
    FAMILIES,
    HIDDEN,
    TWO_STAGE,
    classification_key,
    classifier_weight,
    permissive,
    tiny_batch,
    tiny_model,
)


def losses_of(model: nn.Module, family: str, seed: int = 7) -> dict[str, Tensor]:
    torch.manual_seed(seed)  # the stock models sample with the global generator
    return model(*tiny_batch(family))


def detections_of(model: nn.Module, family: str) -> list[dict[str, Tensor]]:
    with torch.no_grad():
        return copy.deepcopy(model).eval()(tiny_batch(family)[0])


def assert_same_detections(first: list[dict[str, Tensor]], second: list[dict[str, Tensor]]) -> None:
    assert sum(len(image["scores"]) for image in first) > 0
    for a, b in zip(first, second, strict=True):
        assert a.keys() == b.keys()
        assert all(torch.equal(a[key], b[key]) for key in a)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mode", ["replace", "mix"])
def test_all_other_losses_are_the_stock_models_to_the_last_bit(family: str, mode: str) -> None:
    model = tiny_model(family)
    expected = losses_of(copy.deepcopy(model), family)
    found = losses_of(train_for_map(model, mode=mode), family)
    key = classification_key(family)
    changed = {key} if mode == "replace" else {"loss_map"}
    assert found.keys() == expected.keys() | changed
    assert all(torch.equal(found[name], expected[name]) for name in found.keys() - changed)
    assert not torch.equal(found[changed.pop()], expected[key])


@pytest.mark.parametrize("family", FAMILIES)
def test_gradient_of_map_alone_reaches_the_classifier(family: str) -> None:
    model = train_for_map(tiny_model(family), mode="replace", weight=2.0)
    loss = losses_of(model, family)[classification_key(family)]
    loss.backward()
    assert classifier_weight(model).grad.abs().sum() > 0
    metrics = model.map_loss.metrics
    assert loss.item() == pytest.approx(2.0 * -torch.tensor(metrics["map"] + 0.01).log().item(), rel=1e-5)
    assert 0.0 < metrics["map"] < 1.0


@pytest.mark.parametrize("family", FAMILIES)
def test_detections_in_eval_mode_stay_the_same_to_the_last_bit(family: str) -> None:
    model = permissive(family)
    before = detections_of(model, family)
    train_for_map(model)
    assert_same_detections(detections_of(model, family), before)
    assert_same_detections(detections_of(restore(model), family), before)


@pytest.mark.parametrize("family", FAMILIES)
def test_trained_weights_load_into_a_stock_model_and_detect_the_same(family: str) -> None:
    model = train_for_map(permissive(family), mode="replace")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(2):
        optimizer.zero_grad()
        sum(losses_of(model, family, step).values()).backward()
        optimizer.step()
    fresh = permissive(family, seed=99)
    assert list(model.state_dict()) == list(fresh.state_dict())
    fresh.load_state_dict(model.state_dict(), strict=True)
    assert_same_detections(detections_of(fresh, family), detections_of(model, family))
    model.load_state_dict(permissive(family, seed=98).state_dict(), strict=True)  # and back


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("clone", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_train_for_map_on_their_own(family: str, clone: object) -> None:
    model = train_for_map(tiny_model(family), mode="replace")
    other = clone(model)
    assert type(other) is type(model)
    assert other.map_loss is not model.map_loss
    expected, found = losses_of(model, family), losses_of(other, family)
    assert expected.keys() == found.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    other.map_loss_switch.enabled = False
    losses_of(other, family)
    assert torch.equal(losses_of(model, family)[classification_key(family)], expected[classification_key(family)])


@pytest.mark.parametrize("family", FAMILIES)
def test_stock_brings_everything_back(family: str) -> None:
    model = tiny_model(family)
    kinds = [type(m) for m in model.modules()]
    expected = losses_of(copy.deepcopy(model), family)
    again = restore(train_for_map(train_for_map(model), mode="mix"))
    assert again is model
    assert [type(m) for m in model.modules()] == kinds
    assert not hasattr(model, "map_loss_switch")
    found = losses_of(model, family)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_switched_off_the_model_trains_as_stock_and_still_measures(family: str) -> None:
    model = tiny_model(family)
    expected = losses_of(copy.deepcopy(model), family)
    train_for_map(model, enabled=False)
    found = losses_of(model, family)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    assert model.map_loss_switch.metrics["objects"] == 8
    model.map_loss_switch.measure = False
    model.map_loss_switch.metrics.clear()
    losses_of(model, family)
    assert not model.map_loss_switch.metrics


@pytest.mark.parametrize("family", FAMILIES)
def test_images_without_objects_are_ordinary(family: str) -> None:
    model = train_for_map(tiny_model(family), mode="replace")
    images, targets = tiny_batch(family)
    empty = [{key: value[:0] for key, value in target.items()} for target in targets]
    for given in (empty, [targets[0], empty[1]]):
        if family == "keypoint_rcnn" and given is empty:
            continue  # the stock model itself cannot
        losses = model(images, given)
        sum(losses.values()).backward()
        assert all(torch.isfinite(loss) for loss in losses.values())
    assert model.map_loss.metrics["objects"] == 4


@pytest.mark.parametrize("family", ["faster_rcnn", *DENSE])
def test_a_few_steps_raise_the_map_of_one_image(family: str) -> None:
    windows = 60 if family in TWO_STAGE else None
    model = train_for_map(tiny_model(family), mode="replace", weight=1.0, windows_per_image=windows)
    images, targets = tiny_batch(family, images=1)
    for part in (model.backbone, getattr(model, "rpn", None)):
        if part is not None:
            part.requires_grad_(False)  # the windows stay as they are
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=0.3)
    reached = []
    for _ in range(12):
        torch.manual_seed(0)
        loss = model(images, targets)[classification_key(family)]
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        reached.append(model.map_loss.metrics["map"])
    assert max(reached[-3:]) > reached[0] + 0.05


def test_stock_builders_of_torchvision_are_supported() -> None:
    from torchvision.models import detection

    small = {"weights": None, "weights_backbone": None, "num_classes": 4}
    for model in (
        detection.fasterrcnn_mobilenet_v3_large_320_fpn(**small, min_size=64, max_size=64, box_batch_size_per_image=16),
        detection.ssdlite320_mobilenet_v3_large(**small),
    ):
        expected = losses_of(copy.deepcopy(model), "ssd")
        found = losses_of(train_for_map(model, mode="mix"), "ssd")
        assert all(torch.equal(found[key], expected[key]) for key in expected)
        assert found["loss_map"].requires_grad


@pytest.mark.parametrize("family", FAMILIES)
def test_labels_and_targets_are_checked_before_any_work(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = train_for_map(tiny_model(family))
    monkeypatch.setattr(type(model.transform), "forward", lambda *_: pytest.fail("work was done"))
    images, targets = tiny_batch(family)
    without_boxes = [targets[0], {"labels": targets[1]["labels"]}]
    below = [targets[0], {**targets[1], "labels": targets[1]["labels"] * 0 - int(family in DENSE[:2])}]
    above = [targets[0], {**targets[1], "labels": targets[1]["labels"] + CLASSES}]
    for given, words in (
        (without_boxes, "image 1.*'boxes' is not in"),
        (below, "image 1.*expected labels in .*" + ("" if family in DENSE[:2] else "background")),
        (above, "image 1.*expected labels in"),
        (targets[:1], "one dict for each of 2 images but got 1"),
        (None, "one dict for each of 2 images"),
        ([targets[0], {**targets[1], "labels": targets[1]["labels"].float()}], "image 1.*int64"),
    ):
        with pytest.raises(InputError, match=words):
            model(images, given)
    with pytest.raises(InputError, match=r"model\.train\(\)"):
        model.eval()(images, targets)


def test_other_models_are_refused_with_the_list_of_those_supported() -> None:
    with pytest.raises(ConfigError, match=r"FasterRCNN.*RetinaNet.*FCOS.*SSD.*but got Linear"):
        train_for_map(nn.Linear(2, 2))
    with pytest.raises(ConfigError, match="model inside"):
        train_for_map(nn.DataParallel(tiny_model("ssd")))


@pytest.mark.parametrize(
    ("family", "options", "words"),
    [
        ("ssd", {"windows_per_image": 10}, "two-stage"),
        ("faster_rcnn", {"topk": 10}, "dense"),
        ("ssd", {"topk": 0}, "topk"),
        ("ssd", {"score_thresh": 1.0}, "score_thresh to be a probability"),
        ("ssd", {"score_thresh": -0.5}, "score_thresh to be a probability"),
        ("ssd", {"mode": "add"}, "mode"),
        ("ssd", {"weight": 0.0}, "weight"),
        ("ssd", {"raduis": 3}, "'raduis'.*Did you mean 'radius'"),
        ("ssd", {"wieght": 3}, "'wieght'.*Did you mean 'weight'"),
        ("ssd", {"topk": True}, "topk"),
        ("ssd", {"loss_fn": sg.MAPLoss(CLASSES), "radius": 1.0}, "both"),
        ("ssd", {"loss_fn": sg.DistributedMAPLoss(CLASSES)}, "DistributedMAPLoss"),
    ],
)
def test_options_that_cannot_be_are_refused(family: str, options: dict[str, object], words: str) -> None:
    model = tiny_model(family)
    with pytest.raises(ConfigError, match=words):
        train_for_map(model, **options)
    assert type(model) is type(tiny_model(family))  # untouched


def test_a_loss_for_another_number_of_classes_is_refused() -> None:
    with pytest.raises(InputError, match=r"3 classes.*MAPLoss\(5\)"):
        train_for_map(tiny_model("fcos"), loss_fn=sg.MAPLoss(5))
    model = train_for_map(tiny_model("faster_rcnn"))
    model.roi_heads.box_predictor = tiny_model("faster_rcnn").roi_heads.box_predictor
    model.roi_heads.box_predictor.cls_score = nn.Linear(HIDDEN, 3)
    model.roi_heads.box_predictor.bbox_pred = nn.Linear(HIDDEN, 12)
    images, targets = tiny_batch("faster_rcnn")
    with pytest.raises(InputError, match="call train_for_map after"):
        model(images, [{**t, "labels": t["labels"].clamp(max=2)} for t in targets])


def test_a_class_layer_that_was_widened_afterwards_is_refused() -> None:
    model = train_for_map(tiny_model("retinanet"))
    head = model.head.classification_head
    old = head.cls_logits
    head.num_classes = CLASSES + 1
    head.cls_logits = nn.Conv2d(old.in_channels, old.out_channels // CLASSES * head.num_classes, 3, padding=1)
    with pytest.raises(InputError, match=rf"{CLASSES} classes.*model has {CLASSES + 1}"):
        losses_of(model, "retinanet")


def test_boxes_without_height_are_no_candidates_as_they_are_no_detections() -> None:
    model = train_for_map(tiny_model("faster_rcnn"))
    with torch.no_grad():
        model.roi_heads.box_predictor.bbox_pred.bias.view(-1, 4)[:, 3] = -1000.0
    losses_of(model, "faster_rcnn")
    assert model.map_loss.metrics["kept"] == 0
