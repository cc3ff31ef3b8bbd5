"""Options of MAPLoss: impossible ones are refused by name, numbers of any type are numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import stepgrad as sg
from stepgrad.errors import ConfigError

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
    ],
    ids=str,
)
def test_impossible_options_are_refused_by_name(option: dict[str, Any]) -> None:
    name, value = list(option.items())[-1]
    with pytest.raises(ConfigError) as caught:
        sg.MAPLoss(**({"num_classes": 2} | option))
    assert str(value) in str(caught.value)
    assert name in str(caught.value).lower()


@pytest.mark.parametrize("three", [3, np.int64(3), np.array(3), torch.tensor(3)], ids=lambda v: type(v).__name__)
def test_a_whole_number_of_any_integer_type_is_a_number_of_classes(three: Any) -> None:
    loss_fn = sg.MAPLoss(three)
    assert loss_fn.num_classes == 3
    assert type(loss_fn.num_classes) is int


@pytest.mark.parametrize("half", [0.5, np.float32(0.5), np.array(0.5), torch.tensor(0.5), [0.5], np.array([0.5])])
def test_a_number_of_any_type_is_a_match_threshold(half: Any) -> None:
    assert sg.MAPLoss(1, match_threshold=half).protocol.match_thresholds == (0.5,)


@pytest.mark.parametrize("name", ["COCO", "Voc12", "VOC07-devkit"])
def test_a_protocols_name_may_be_in_capitals(name: str) -> None:
    assert sg.get_protocol(name) is sg.PROTOCOLS[name.lower()]
    assert sg.MAPLoss(1, protocol=name).protocol.name == name.lower()
