"""The switch: found wherever a wrapper hides the model, and in nobody's state_dict."""

from __future__ import annotations

from inspect import Parameter, signature
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.models.detection import ssdlite320_mobilenet_v3_large

import stepgrad as sg
from stepgrad.models import torchvision
from stepgrad.models.detr import transformers
from stepgrad.models.switch import NAME, MapLossSwitch, find_switch
from stepgrad.models.torchvision import train_for_map
from tests.models import hf_models
from tests.models.tiny import CLASSES, tiny_model


def one_window() -> tuple[list[Tensor], list[Tensor], list[dict[str, Tensor]]]:
    box = torch.tensor([[0.0, 0.0, 10.0, 10.0]])
    scores = torch.tensor([[0.5]], requires_grad=True)
    return [scores], [box], [{"boxes": box, "labels": torch.tensor([0])}]


def test_a_torchvision_model_inside_a_wrapper_is_switched_from_outside() -> None:
    model = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=3)
    wrapper = nn.ModuleDict({"detector": nn.Sequential(train_for_map(model, enabled=False))})
    switch = find_switch(wrapper)
    target = {"boxes": torch.tensor([[10.0, 10.0, 60.0, 60.0]]), "labels": torch.tensor([2])}
    arguments = [torch.rand(3, 80, 80)] * 2, [target] * 2
    assert "loss_map" not in model(*arguments)
    assert 0.0 <= switch.metrics["map"] <= 1.0
    switch.enabled = True
    assert "loss_map" in model(*arguments)


def test_two_prepared_models_are_one_too_many() -> None:
    pair = nn.ModuleList([nn.Linear(1, 1), nn.Linear(1, 1)])
    for part in pair:
        setattr(part, NAME, MapLossSwitch(sg.MAPLoss(1)))
    with pytest.raises(sg.errors.InputError, match="found 2"):
        find_switch(pair)
    assert find_switch(pair[0]) is pair[0].map_loss_switch
    assert list(pair.state_dict()) == ["0.weight", "0.bias", "1.weight", "1.bias"]


def test_off_it_measures_without_a_gradient_and_without_measure_it_does_nothing() -> None:
    switch = MapLossSwitch(sg.MAPLoss(1), enabled=False)
    assert switch.map_loss(*one_window()) is None
    assert switch.metrics["map"] == 1.0
    silent = MapLossSwitch(sg.MAPLoss(1), enabled=False, measure=False)
    assert not silent.needed
    assert silent.map_loss(*one_window()) is None
    assert silent.metrics == {}


def test_what_to_log_of_a_batch_has_the_name_of_the_metric() -> None:
    for loss_fn, name in ((sg.MAPLoss(1), "map"), (sg.DetectionLoss(1, "f1"), "f1")):
        switch = MapLossSwitch(loss_fn)
        assert switch.batch_value == {}
        switch.map_loss(*one_window())
        assert switch.batch_value == {name: 1.0}


def test_weight_multiplies_the_loss_and_its_gradient() -> None:
    gradients = []
    for weight in (1.0, 2.5):
        _, boxes, targets = one_window()
        two = torch.tensor([[0.5], [0.9]], requires_grad=True)
        switch = MapLossSwitch(sg.MAPLoss(1), weight=weight)
        loss = switch.map_loss([two], [torch.cat([boxes[0], boxes[0] + 50])], targets)
        assert loss is not None
        loss.backward()
        gradients.append(two.grad)
    assert gradients[0].abs().min() > 0
    torch.testing.assert_close(gradients[1], 2.5 * gradients[0])


def test_both_train_for_map_take_the_same_arguments_in_the_same_order() -> None:
    shared = ["model", "mode", "weight", "enabled", "protocol", "loss_fn", "ignore", "loss_options"]
    ours, theirs = (signature(module.train_for_map).parameters for module in (torchvision, transformers))
    assert list(theirs) == shared
    assert [name for name in ours if name in shared] == shared
    for name in shared:
        assert (ours[name].kind, ours[name].default) == (theirs[name].kind, theirs[name].default)
    assert all(argument.kind is Parameter.KEYWORD_ONLY for argument in list(ours.values())[1:-1])


@pytest.mark.parametrize("library", [torchvision, transformers], ids=["torchvision", "transformers"])
def test_both_train_for_map_treat_the_protocol_alike(library: ModuleType) -> None:
    def prepared(**options: Any) -> str:
        model = tiny_model("ssd") if library is torchvision else hf_models.make("detr")
        return str(library.train_for_map(model, **options).map_loss_switch.loss_fn.objective.protocol.name)

    classes = CLASSES if library is torchvision else hf_models.CLASSES
    assert prepared() == "voc12"
    assert prepared(protocol="coco") == "coco"
    loss_fn = sg.MAPLoss(classes, "coco", nms_threshold=None)
    assert prepared(loss_fn=loss_fn) == "coco"
    assert prepared(loss_fn=loss_fn, protocol="coco") == "coco"
    with pytest.warns(sg.errors.LikelyMistakeWarning, match="'voc07' is not used"):
        assert prepared(loss_fn=loss_fn, protocol="voc07") == "coco"
