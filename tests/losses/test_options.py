"""Options of MAPLoss: impossible ones are refused by name, numbers of any type are numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import stepgrad as sg
from stepgrad.errors import ConfigError
from stepgrad.metric.protocol import PROTOCOLS, get_protocol

NAN = float("nan")


@pytest.mark.parametrize(
    "option",
    [
        {"protocol": "voc7"},
        {"estimator": "mea"},
        {"through_nms": "exactly"},
        {"balance": "classes"},
        {"absent_classes": "drop"},
        {"nms_threshold": -0.1},
        {"nms_threshold": 1.5},
        {"match_threshold": 0.0},
        {"match_threshold": NAN},
        {"min_step": -1.0},
        {"clip": 0.0},
        {"eps": -1.0},
        {"l4": -1.0},
        {"estimator": "radius", "radius": 0.0},
        {"estimator": "radius", "radius": "3"},
        {"estimator": "radius", "radius": True},
        {"nms_threshold": "0.3"},
        {"match_threshold": "0.5"},
        {"min_step": "0.1"},
        {"l4": True},
        {"eps": "0.01"},
        {"clip": False},
        {"protocol": 3},
        {"protocol": ["coco"]},
        {"num_classes": 0},
        {"num_classes": True},
        {"num_classes": np.True_},
        {"num_classes": torch.tensor(True)},
        {"num_classes": 2.0},
        {"num_classes": "3"},
        {"num_classes": None},
        {"radius": 10**400},
        {"nms_threshold": 10**400},
        {"match_threshold": 10**400},
        {"min_step": 10**400},
        {"eps": 10**400},
        {"estimator": ""},
    ],
    ids=str,
)
def test_impossible_options_are_refused_by_name(option: dict[str, Any]) -> None:
    name, value = list(option.items())[-1]
    with pytest.raises(ConfigError) as caught:
        sg.MAPLoss(**({"num_classes": 2} | option))
    assert str(value) in str(caught.value)
    assert name in str(caught.value).lower()


@pytest.mark.parametrize("name", ["estimator", "through_nms", "balance", "absent_classes"])
@pytest.mark.parametrize("value", [np.zeros(3), torch.zeros(2, 2)], ids=lambda v: type(v).__name__)
def test_an_array_is_no_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"Expected {name} to be one of"):
        sg.MAPLoss(2, **{name: value})


@pytest.mark.parametrize("three", [3, np.int64(3), np.array(3), torch.tensor(3)], ids=lambda v: type(v).__name__)
def test_a_whole_number_of_any_integer_type_is_a_number_of_classes(three: Any) -> None:
    loss_fn = sg.MAPLoss(three)
    assert loss_fn.num_classes == 3
    assert type(loss_fn.num_classes) is int


@pytest.mark.parametrize("name", ["radius", "min_step", "nms_threshold", "eps", "l4", "clip"])
@pytest.mark.parametrize("kind", [torch.tensor, np.float32, np.array], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("estimator", ["radius", "mee"])
def test_a_number_of_any_type_is_kept_as_a_plain_float(name: str, kind: Any, estimator: str) -> None:
    loss_fn, plain = (sg.MAPLoss(1, estimator=estimator, **{name: given}) for given in (kind(0.5), 0.5))
    kept = getattr(loss_fn.objective.method if name in ("radius", "min_step") else loss_fn.objective, name)
    assert type(kept) is float
    boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0], [20.0, 0.0, 30.0, 10.0]])
    scores = torch.tensor([[0.25], [0.5]], dtype=torch.float64, requires_grad=True)
    batch = [scores], [boxes], [{"boxes": boxes[:1], "labels": torch.tensor([0])}]
    found, expected = (torch.autograd.grad(loss(*batch), scores)[0] for loss in (loss_fn, plain))
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("half", [0.5, np.float32(0.5), np.array(0.5), torch.tensor(0.5), [0.5], np.array([0.5])])
def test_a_number_of_any_type_is_a_match_threshold(half: Any) -> None:
    assert sg.MAPLoss(1, match_threshold=half).objective.protocol.match_thresholds == (0.5,)


@pytest.mark.parametrize("name", ["COCO", "Voc12", "VOC07-devkit"])
def test_a_protocols_name_may_be_in_capitals(name: str) -> None:
    assert get_protocol(name) is PROTOCOLS[name.lower()]
    assert sg.MAPLoss(1, protocol=name).objective.protocol.name == name.lower()
