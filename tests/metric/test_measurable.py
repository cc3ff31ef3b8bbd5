"""Boxes whose areas double precision cannot hold: refused by every loss, metric and evaluator, in the same words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stepgrad as sg
from stepgrad.errors import InputError
from stepgrad.losses.ragged import ScoredPairs, ragged_map_loss
from stepgrad.metric.boxes import MEASURABLE

SCORES = torch.tensor([[0.5], [0.25]], dtype=torch.float64)
TOO_LARGE = [1e154, 1e155, 1e200]
TOO_SMALL = [1e-170, 1e-200]


def square(side: float) -> Tensor:
    return torch.tensor([[0.0, 0.0, side, side]], dtype=torch.float64)


def evaluated(windows: Tensor, objects: Tensor) -> float:
    evaluator = sg.Evaluator(1, "voc12")
    labels = torch.zeros(len(windows), dtype=torch.long)
    evaluator.update(
        [{"boxes": windows, "scores": SCORES[: len(windows), 0], "labels": labels}],
        [{"boxes": objects, "labels": torch.zeros(len(objects), dtype=torch.long)}],
    )
    return evaluator.compute().map


def batch(windows: Tensor, objects: Tensor) -> tuple[list[Tensor], list[Tensor], list[dict[str, Tensor]]]:
    labels = torch.zeros(len(objects), dtype=torch.long)
    return [SCORES[: len(windows)]], [windows], [{"boxes": objects, "labels": labels}]


def by_map_loss(windows: Tensor, objects: Tensor) -> float:
    loss_fn = sg.MAPLoss(1)
    loss_fn(*batch(windows, objects))
    return float(loss_fn.metrics["map"])


def by_ragged_loss(windows: Tensor, objects: Tensor) -> float:
    loss_fn = sg.MAPLoss(1)
    places = torch.zeros(len(windows), dtype=torch.long)
    pairs = ScoredPairs(SCORES[: len(windows), 0], windows, places, places)
    ragged_map_loss(loss_fn, pairs, batch(windows, objects)[2])
    return float(loss_fn.metrics["map"])


MEASURES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "Evaluator": evaluated,
    "MAPLoss": by_map_loss,
    "ragged_map_loss": by_ragged_loss,
    "mean_average_precision": lambda w, o: sg.mean_average_precision(*batch(w, o)).map,
    "map_steps": lambda w, o: float(sg.map_steps(*batch(w, o)).value[0]),
}
every_measure = pytest.mark.parametrize("measure", MEASURES.values(), ids=MEASURES)


@every_measure
@pytest.mark.parametrize("side", [*TOO_LARGE, *TOO_SMALL])
def test_windows_whose_area_no_double_holds_are_refused(measure: Callable[..., Any], side: float) -> None:
    with pytest.raises(InputError, match=f"image 0: expected {MEASURABLE} but .* (is|has) .*are these pixels"):
        measure(torch.cat([square(5.0), square(side)]), square(5.0))


@every_measure
@pytest.mark.parametrize("side", [*TOO_LARGE, *TOO_SMALL])
def test_objects_whose_area_no_double_holds_are_refused(measure: Callable[..., Any], side: float) -> None:
    with pytest.raises(InputError, match=f"image 0: expected {MEASURABLE} but object 1 is .*are these pixels"):
        measure(square(5.0), torch.cat([square(5.0), square(side)]))


@every_measure
@pytest.mark.parametrize("side", [6e153, 1e153, 1e-160])
def test_boxes_whose_area_a_double_holds_are_found(measure: Callable[..., Any], side: float) -> None:
    assert measure(square(side), square(side)) == 1.0


@every_measure
def test_windows_without_width_are_no_such_case(measure: Callable[..., Any]) -> None:
    line = torch.tensor([[1.0, 1.0, 1.0, 1e200]], dtype=torch.float64)
    assert measure(torch.cat([square(5.0), line]), square(5.0)) == 1.0


@pytest.mark.parametrize("side", [*TOO_LARGE, *TOO_SMALL])
def test_nms_refuses_boxes_that_would_not_even_overlap_themselves(side: float) -> None:
    twice = square(side).repeat(2, 1)
    with pytest.raises(InputError, match=MEASURABLE):
        sg.nms(twice, SCORES[:, 0], 0.5)
    with pytest.raises(InputError, match=MEASURABLE):
        sg.layers.NMSLayer(threshold=0.5)(SCORES[:, 0], twice)
