"""DETR-style models train for mAP, and are otherwise the models they were."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stepgrad as sg

pytest.importorskip("transformers", reason='needs transformers: pip install ".[transformers]"')

from stepgrad.models.detr.transformers import FAMILIES, restore, train_for_map
from tests.double_precision import double_precision
from tests.models import hf_models

LOW = 0.005  # match threshold at which even random boxes find objects
COEFFICIENT = {"lw_detr": 3.0, "rf_detr": 3.0}  # of the classification loss; 1 elsewhere
WITH_DENOISING = ("rt_detr", "rt_detr_v2", "d_fine", "deimv2")
every_family = pytest.mark.parametrize("name", hf_models.MODELS)
one_of_each_kind = pytest.mark.parametrize("name", ["detr", "conditional_detr", "rt_detr", "lw_detr"])


@pytest.fixture(autouse=True)
def _in_double_precision() -> Iterator[None]:
    """Scores that a softmax and a log_softmax give rank the same, and losses add up in any order."""
    with double_precision():
        yield


def make(name: str) -> nn.Module:
    model = hf_models.make(name)
    if name in COEFFICIENT:
        model.config.class_loss_coefficient = COEFFICIENT[name]
    return model


def run(model: nn.Module, images: int = 3) -> Any:
    pixels, labels = hf_models.batch(images=images)
    torch.manual_seed(1)  # of dropout and denoising queries
    return model(pixel_values=pixels, labels=labels)


def class_loss_name(name: str) -> str:
    return "loss_mal" if name == "deimv2" else "loss_vfl" if name in WITH_DENOISING else "loss_ce"


def queries_of_inference(name: str, given: Tensor) -> Tensor:
    return given[:, -hf_models.QUERIES :] if name in WITH_DENOISING else given[:, : hf_models.QUERIES]


def to_corners(boxes: Tensor) -> Tensor:
    x, y, w, h = boxes.unbind(-1)
    return torch.stack([640 * (x - w / 2), 480 * (y - h / 2), 640 * (x + w / 2), 480 * (y + h / 2)], dim=-1)


def arguments_of_loss(name: str, output: Any, images: int = 3) -> tuple[list[Tensor], list[Tensor], list[Any]]:
    """Scores, boxes and targets for MAPLoss from what the model gave, the obvious way."""
    logits, boxes = (queries_of_inference(name, given) for given in (output.logits, output.pred_boxes))
    softmax = name in [build.__name__ for build in hf_models.SOFTMAX]
    scores = logits.softmax(-1)[..., :-1].log() if softmax else logits.sigmoid().log()
    labels = hf_models.batch(images=images)[1]
    targets = [{"boxes": to_corners(label["boxes"]), "labels": label["class_labels"]} for label in labels]
    return list(scores), list(to_corners(boxes)), targets


def own_map_loss(name: str, output: Any) -> tuple[Tensor, float]:
    """MAPLoss of what the model gave, with the options of `train_for_map`, and its mAP."""
    options = {"estimator": "radius", "radius": 3.0, "balance": "class", "absent_classes": "skip"}
    loss_fn = sg.MAPLoss(hf_models.CLASSES, nms_threshold=None, match_threshold=LOW, **options)
    return loss_fn(*arguments_of_loss(name, output)), loss_fn.metrics["map"]


@every_family
def test_replacing_changes_the_class_loss_of_the_last_layer_and_nothing_else(name: str) -> None:
    stock, model = make(name), train_for_map(make(name), mode="replace", weight=0.5, match_threshold=LOW)
    expected, output = run(stock), run(model)
    changed, coefficient = class_loss_name(name), COEFFICIENT.get(name, 1.0)
    map_loss, mean_ap = own_map_loss(name, output)
    assert 0.0 < mean_ap == model.map_loss_switch.metrics["map"]
    torch.testing.assert_close(output.loss_dict[changed], 0.5 * map_loss)
    rest = expected.loss - coefficient * expected.loss_dict[changed]
    torch.testing.assert_close(output.loss, rest + coefficient * 0.5 * map_loss)
    assert type(output) is type(expected)
    assert list(output.loss_dict) == list(expected.loss_dict)
    others = [key for key in output.loss_dict if key != changed]
    assert all(torch.equal(output.loss_dict[key], expected.loss_dict[key]) for key in others)


@one_of_each_kind
def test_mixing_adds_the_map_loss_and_changes_nothing_else(name: str) -> None:
    stock, model = make(name), train_for_map(make(name), mode="mix", weight=0.5, match_threshold=LOW)
    expected, output = run(stock), run(model)
    map_loss, _ = own_map_loss(name, output)
    torch.testing.assert_close(output.loss_dict["loss_map"], 0.5 * map_loss)
    torch.testing.assert_close(output.loss, expected.loss + 0.5 * map_loss)
    assert list(output.loss_dict) == [*expected.loss_dict, "loss_map"]
    assert all(torch.equal(output.loss_dict[key], expected.loss_dict[key]) for key in expected.loss_dict)


@one_of_each_kind
def test_replacing_leaves_the_gradient_of_map_in_the_class_scores_alone(name: str) -> None:
    model = train_for_map(make(name), mode="replace", weight=1.0, match_threshold=LOW)
    gradients = []
    for _ in range(2):
        output = run(model)
        loss = output.loss_dict[class_loss_name(name)] if not gradients else own_map_loss(name, output)[0]
        loss.backward(inputs=[output.logits])
        gradients.append(queries_of_inference(name, output.logits.grad))
    torch.testing.assert_close(*gradients)
    assert gradients[0].abs().max() > 0


@one_of_each_kind
def test_switched_off_the_model_has_its_own_loss_and_still_reports_map(name: str) -> None:
    expected, model = run(make(name)), train_for_map(make(name), enabled=False, match_threshold=LOW)
    assert torch.equal(run(model).loss, expected.loss)
    assert 0.0 < model.map_loss_switch.metrics["map"] < 1.0
    model.map_loss_switch.enabled = True
    assert not torch.equal(run(model).loss, expected.loss)


@one_of_each_kind
def test_eval_mode_and_state_dict_are_those_of_the_stock_model(name: str) -> None:
    stock, model = make(name).eval(), train_for_map(make(name)).eval()
    with torch.no_grad():
        expected, output = run(stock), run(model)
    assert all(torch.equal(output[key], expected[key]) for key in ("loss", "logits", "pred_boxes"))
    assert model.map_loss_switch.metrics == {}
    assert list(model.state_dict()) == list(stock.state_dict())
    stock.load_state_dict(model.state_dict())


def test_every_family_on_the_list_is_tested() -> None:
    known = {name for name in FAMILIES if hasattr(hf_models.hf, name)}  # by this version of transformers
    assert {type(make(name)).__name__ for name in hf_models.MODELS} == known


def test_restore_gives_the_model_its_own_loss_back() -> None:
    model, expected = make("detr"), run(make("detr")).loss
    before = set(vars(model))
    assert restore(model) is restore(train_for_map(train_for_map(model))) is model
    assert set(vars(model)) == before
    assert torch.equal(run(model).loss, expected)


def test_a_loss_function_of_the_users_own_is_wrapped_and_restored() -> None:
    model = make("detr")
    stock = model.loss_function

    def doubled(*given: Any, **named: Any) -> Any:
        loss, parts, auxiliary = stock(*given, **named)
        return 2 * loss, parts, auxiliary

    model.loss_function = doubled
    expected = run(model).loss
    train_for_map(model, enabled=False)
    assert torch.equal(run(model).loss, expected)
    assert restore(model).loss_function is doubled


@pytest.mark.parametrize("again", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_have_a_switch_of_their_own(again: Any) -> None:
    model = train_for_map(make("detr"))
    twin = again(model)
    twin.map_loss_switch.enabled = False
    twin.eval()
    assert model.map_loss_switch.enabled
    assert not torch.equal(run(model).loss, run(twin).loss)
    assert twin.map_loss_switch.metrics == {}


def test_classes_derived_from_a_family_are_of_the_family() -> None:
    model = make("detr")
    model.__class__ = type("MyDetector", (type(model),), {})
    assert train_for_map(model).map_loss_switch.enabled


def test_boxes_without_area_are_ordinary_false_alarms() -> None:
    model = train_for_map(make("yolos"))
    model.bbox_predictor.layers[-1].bias.data[2:] = -1000.0  # the sigmoid of this is 0
    output = run(model)
    output.loss_dict["loss_ce"].backward()
    assert float(output.pred_boxes[..., 2:].detach().max()) == 0.0
    assert model.map_loss_switch.metrics["map"] == 0.0


def test_scores_in_half_precision_get_a_gradient_in_half_precision() -> None:
    model = make("detr")
    exact = run(model)
    model.loss_function = lambda logits, *_: (logits.sum(), {"loss_ce": logits.sum()}, None)
    train_for_map(model, mode="replace", match_threshold=LOW)
    logits, boxes = (x.detach().bfloat16().requires_grad_() for x in (exact.logits, exact.pred_boxes))
    loss, parts, _ = model.loss_function(logits, hf_models.batch(images=3)[1], "cpu", boxes, model.config)
    loss.backward()
    assert parts["loss_ce"].isfinite()
    assert logits.grad.dtype == torch.bfloat16
    assert logits.grad.isfinite().all()
    assert logits.grad.abs().max() > 0


def test_devkit_protocols_count_pixels_of_the_original_image() -> None:
    model = train_for_map(make("detr"), protocol="voc07-devkit", match_threshold=LOW)
    scores, boxes, targets = arguments_of_loss("detr", run(model))
    expected = sg.mean_average_precision(
        scores, boxes, targets, protocol="voc07-devkit", nms_threshold=None, match_threshold=LOW
    )
    assert model.map_loss_switch.metrics["map"] == expected.map
    pixels, labels = hf_models.batch()
    bare = [{key: label[key] for key in ("boxes", "class_labels")} for label in labels]
    with pytest.raises(sg.errors.InputError, match="'orig_size'"):
        model(pixel_values=pixels, labels=bare)


def test_labels_without_sizes_do_for_continuous_protocols() -> None:
    model = train_for_map(make("detr"), match_threshold=LOW)
    pixels, labels = hf_models.batch()
    bare = [{key: label[key] for key in ("boxes", "class_labels")} for label in labels]
    found = []
    for given in (labels, bare):
        torch.manual_seed(1)
        model(pixel_values=pixels, labels=given)
        found.append(model.map_loss_switch.metrics["map"])
    assert found[0] == found[1] > 0.0


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("class_labels", torch.tensor([0, 1, hf_models.CLASSES]), r"in \[0, 3\).*background"),
        ("class_labels", torch.tensor([-1, 0, 1]), r"in \[0, 3\)"),
        ("class_labels", torch.tensor([0.0, 1.0, 2.0]), "image 1: expected class_labels.*int64.*float32"),
        ("class_labels", torch.tensor([True, False, True]), "image 1: expected class_labels.*int64.*bool"),
        ("class_labels", None, "'class_labels' but got"),
        ("boxes", None, "'boxes' and"),
        ("boxes", torch.full((3, 4), 100.0), "parts of the image.*100"),
    ],
)
def test_bad_labels_are_named(key: str, value: Any, message: str) -> None:
    model = train_for_map(make("detr"))
    pixels, labels = hf_models.batch()
    bad = {**labels[1], key: value} if value is not None else {k: v for k, v in labels[1].items() if k != key}
    with pytest.raises(sg.errors.InputError, match=message):
        model(pixel_values=pixels, labels=[labels[0], bad])


def test_bad_models_and_options_are_named() -> None:
    with pytest.raises(sg.errors.ConfigError, match=r"one of \['ConditionalDetr.* but got Linear"):
        train_for_map(nn.Linear(1, 1))
    model = make("detr")
    with pytest.raises(sg.errors.ConfigError, match="nms_threshold=None"):
        train_for_map(model, loss_fn=sg.MAPLoss(hf_models.CLASSES))
    with pytest.raises(sg.errors.ConfigError, match="3 classes but got one for 4"):
        train_for_map(model, loss_fn=sg.MAPLoss(4, nms_threshold=None))
    with pytest.raises(sg.errors.ConfigError, match="Did you mean 'replace'"):
        train_for_map(model, mode="replaced")
    with pytest.raises(sg.errors.ConfigError, match="weight"):
        train_for_map(model, weight=float("nan"))
    with pytest.raises(sg.errors.ConfigError, match=r"'raduis'\. Did you mean 'radius'"):
        train_for_map(model, raduis=3)
    with pytest.raises(sg.errors.ConfigError, match="both"):
        train_for_map(model, loss_fn=sg.MAPLoss(hf_models.CLASSES, nms_threshold=None), radius=1.0)
    with pytest.raises(sg.errors.ConfigError, match="the model inside"):
        train_for_map(nn.DataParallel(model))
    assert not hasattr(model, "map_loss_switch")


def test_preparing_again_takes_the_new_options() -> None:
    model = train_for_map(make("detr"), mode="replace", weight=7.0)
    train_for_map(model, mode="mix", weight=2.0)
    output = run(model)
    assert float(output.loss.detach()) == pytest.approx(
        float(run(make("detr")).loss.detach() + output.loss_dict["loss_map"].detach()), rel=1e-12
    )
    assert model.map_loss_switch.weight == 2.0
