"""DETR-style detectors with a new last class layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stepgrad as sg
from stepgrad.errors import ConfigError
from stepgrad.models.detr.frozen import _last_call
from stepgrad.models.held_out import as_used
from stepgrad.models.new_head import frozen_detector
from stepgrad.models.new_head.frozen import replace_layer
from tests.double_precision import double_precision
from tests.models.hf_models import CLASSES, MODELS, QUERIES, SIDE, make
from tests.models.new_head.laws import check_the_model_gives_what_was_judged, everything
from tests.models.new_head.small import QUICK, TRAIN, VAL


def an_image() -> Tensor:
    return torch.rand(3, SIDE, SIDE, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.fixture(autouse=True)
def in_double_precision() -> Iterator[None]:
    with double_precision():
        yield


@pytest.mark.parametrize("name", MODELS)
def test_the_whole_model_gives_what_was_judged_on_features(name: str) -> None:
    detector = frozen_detector(make(name).double())
    check_the_model_gives_what_was_judged(detector, an_image())
    assert detector.model.config.num_labels == 2
    assert detector.model.config.id2label == {0: "a", 1: "b"}


def test_a_layer_that_stands_in_several_places_is_replaced_in_all() -> None:
    """As the class layer does that all decoder layers share, in DETRs of some versions of transformers."""
    old, new = nn.Linear(2, 3), nn.Linear(2, 1)
    model = nn.ModuleDict({"decoder": nn.ModuleList([old, nn.Linear(2, 3), old]), "head": old})
    replace_layer(model, old, new)
    assert [layer is new for layer in model["decoder"]] == [True, False, True]
    assert model["head"] is new


@pytest.mark.parametrize("name", MODELS)
def test_all_queries_are_windows(name: str) -> None:
    detector = frozen_detector(make(name).double())
    with as_used(detector.model):
        found = detector.windows(an_image(), everything)
    assert found.numbers.tolist() == list(range(QUERIES))
    assert found.boxes.shape == (QUERIES, 4)


@pytest.mark.parametrize("name", ["detr", "d_fine"])
def test_a_second_new_head_goes_on_the_same_features_and_boxes(name: str) -> None:
    detector = frozen_detector(make(name).double())
    check_the_model_gives_what_was_judged(detector, an_image())
    check_the_model_gives_what_was_judged(frozen_detector(detector.model), an_image())


def test_the_call_needs_one_pass_as_all_queries_are_kept() -> None:
    result = sg.train_new_head(make("detr"), TRAIN, VAL, num_classes=CLASSES, **QUICK)
    assert result.names == {0: "0", 1: "1", 2: "2"}
    judged = result.tuned.ways[result.tuned.chosen].val[0]
    assert abs(result.whole - judged) < 0.05  # features in half precision can swap neighbours in the ranking


def test_images_go_through_the_processor() -> None:
    seen: list[Tensor] = []

    def processor(images: Tensor, return_tensors: str) -> dict[str, Any]:
        seen.append(images)
        return {"pixel_values": torch.zeros(1, 3, SIDE, SIDE), "pixel_mask": torch.ones(1, SIDE, SIDE)}

    detector = frozen_detector(make("detr"), processor=processor)
    with as_used(detector.model):
        wide = detector.windows(torch.ones(3, 20, 40), everything)
        tall = detector.windows(torch.ones(3, 40, 20), everything)
    assert all(image.dtype == torch.uint8 and int(image.max()) == 255 for image in seen)
    torch.testing.assert_close(wide.boxes * torch.tensor([0.5, 2, 0.5, 2]), tall.boxes)


def test_logits_that_are_more_than_a_shift_from_the_class_layer_are_refused() -> None:
    generator = torch.Generator().manual_seed(0)
    features, output = torch.randn(1, 5, 8, generator=generator), torch.randn(1, 5, 3, generator=generator)
    shift = torch.randn(1, 5, 1, generator=generator)
    assert _last_call([(features, output)], output + shift) == (features, output)
    noise = 0.3 * torch.randn(1, 5, 3, generator=generator)
    with pytest.raises(ConfigError, match="differ by more than a shift"):
        _last_call([(features, output)], output + noise)
