"""A window without area is a detection that overlaps nothing, as it is for pycocotools; the rest is as ever."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pycocotools import mask as coco_masks

import stepgrad as sg
from stepgrad.losses.ragged import ScoredPairs, ragged_map_loss
from stepgrad.reference.map_loss import loss_gradient, loss_value
from stepgrad.reference.mean_ap import batch_map
from stepgrad.reference.nms import nms
from tests.losses.test_map_loss import loss_and_gradient
from tests.oracles.options import Options
from tests.scenes import Batch, over_seeds, random_batch, small_batch, with_empty_windows
from tests.steps.test_map_steps import assert_same_steps
from tests.steps.test_pseudogradient import assert_close, assert_same_gradient

LINE, POINT = [5.0, 2.0, 5.0, 8.0], [5.0, 5.0, 5.0, 5.0]
SOLID = [0.0, 0.0, 10.0, 10.0]
PROTOCOLS = ["voc07", "voc12", "coco", "voc12-devkit", "voc07-python"]


def scene(rng: np.random.Generator, protocol: str = "voc12") -> Batch:
    return with_empty_windows(rng, small_batch(rng, crowds=protocol == "coco"))


@pytest.mark.parametrize("nms_threshold", [None, 0.0, 0.3])
@pytest.mark.parametrize("protocol", PROTOCOLS)
@over_seeds(2, 40)
def test_value_and_steps_equal_brute_force(seed: int, protocol: str, nms_threshold: float | None) -> None:
    rng = np.random.default_rng([seed, 120])
    for _ in range(5):
        batch, options = scene(rng, protocol), Options(protocol, nms_threshold, match_threshold=0.5)
        assert_same_steps(batch, options)
        result = sg.mean_average_precision(*batch.tensors(), **options.call())  # type: ignore[arg-type]
        assert result.map == batch_map(batch, options)


@pytest.mark.parametrize(("estimator", "through_nms"), [("mee", "exact"), ("sde", "paper"), ("radius", "none")])
@pytest.mark.parametrize("protocol", PROTOCOLS)
@over_seeds(2, 40)
def test_pseudogradient_equals_brute_force(seed: int, protocol: str, estimator: str, through_nms: str) -> None:
    if through_nms == "paper" and protocol == "coco":
        through_nms = "exact"  # the paper knows VOC's rule only
    rng = np.random.default_rng([seed, 121])
    for _ in range(3):
        options = Options(protocol, 0.3, 0.5, through_nms, estimator, min_step=0.1)
        assert_same_gradient(scene(rng, protocol), options)


@pytest.mark.parametrize("estimator", ["mee", "sde", "radius"])
@over_seeds(2, 40)
def test_loss_and_gradient_equal_brute_force(seed: int, estimator: str) -> None:
    rng = np.random.default_rng([seed, 122])
    batch = with_empty_windows(rng, random_batch(rng, windows=16, images=3, K=3, objects=9))
    options = Options("voc12", 0.3, 0.5, estimator=estimator, min_step=0.1, balance="class")
    loss, gradient = loss_and_gradient(batch, **options.for_gradient(), eps=0.01)
    assert loss == pytest.approx(loss_value(batch, options, 0.01, None), rel=1e-12)
    assert_close(gradient, loss_gradient(batch, options, True, 0.01, None, None))


@over_seeds(2, 40)
def test_candidates_without_area_give_the_loss_of_the_rectangle(seed: int) -> None:
    rng = np.random.default_rng([seed, 123])
    batch = with_empty_windows(rng, random_batch(rng, windows=16, images=2, K=2, objects=8, per_class_boxes=True))
    scores, boxes, targets = batch.tensors(requires_grad=True)
    loss_fn = sg.MAPLoss(2)
    expected = torch.autograd.grad(loss_fn(scores, boxes, targets), scores)
    image = torch.cat([torch.full((s.numel(),), i) for i, s in enumerate(scores)])
    column = torch.cat([torch.arange(2).repeat(len(s)) for s in scores])
    flat_boxes = torch.cat([b.reshape(-1, 4) for b in boxes])
    candidates = ScoredPairs(torch.cat([s.reshape(-1) for s in scores]), flat_boxes, image, column)
    found = torch.autograd.grad(ragged_map_loss(loss_fn, candidates, targets), scores)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("threshold", [0.0, 0.3, 1.0])
@over_seeds(4, 100)
def test_nms_equals_the_oracle(seed: int, threshold: float) -> None:
    rng = np.random.default_rng([seed, 124])
    batch = with_empty_windows(rng, random_batch(rng, windows=150, clusters=3, ties=True))
    keep, suppressor = sg.nms(torch.tensor(batch.boxes[0]), torch.tensor(batch.scores[0][:, 0]), threshold)
    assert (keep.tolist(), suppressor.tolist()) == nms(batch.boxes[0], batch.scores[0][:, 0].tolist(), threshold)
    empty = (batch.boxes[0][:, 2:] == batch.boxes[0][:, :2]).any(axis=1)
    assert (suppressor.numpy()[empty] == -1).all()
    assert not np.isin(suppressor.numpy(), np.flatnonzero(empty)).any()


def test_the_nms_layer_keeps_them() -> None:
    boxes = torch.tensor([SOLID, LINE, LINE, POINT, POINT])
    scores = torch.arange(5.0, requires_grad=True)
    keep = sg.layers.NMSLayer(threshold=0.0)(scores, boxes)
    keep.sum().backward()
    assert keep.tolist() == [1.0] * 5
    assert scores.grad.tolist() == [0.0] * 5


@pytest.mark.parametrize("empty", [LINE, POINT], ids=["line", "point"])
def test_it_is_a_false_positive_as_it_is_for_pycocotools(empty: list[float]) -> None:
    sized = [empty[0], empty[1], empty[2] - empty[0], empty[3] - empty[1]]
    assert coco_masks.iou(np.array([sized]), np.array([SOLID]), [0]).tolist() == [[0.0]]
    scores = [torch.tensor([[2.0], [1.0]])]
    targets = [{"boxes": torch.tensor([SOLID]), "labels": torch.tensor([0])}]
    assert sg.mean_average_precision(scores, [torch.tensor([empty, SOLID])], targets).map == 0.5


def test_where_pixels_are_inclusive_a_window_of_equal_edges_is_one_pixel_wide() -> None:
    column = [5.0, 0.0, 5.0, 9.0]  # 1 x 10 pixels
    target = {"boxes": torch.tensor([[4.0, 0.0, 5.0, 9.0]]), "labels": torch.tensor([0])}  # 2 x 10
    call = [torch.tensor([[1.0]])], [torch.tensor([column])], [target]
    assert sg.mean_average_precision(*call, protocol="voc12-devkit").map == 1.0
    assert sg.mean_average_precision(*call, protocol="voc12").map == 0.0


def test_baselines_take_it_for_a_negative() -> None:
    from experiments.baselines import SmoothAPLoss

    scores = torch.tensor([[0.0], [1.0], [2.0]], requires_grad=True)
    loss_fn = SmoothAPLoss(1)
    loss_fn(
        [scores], [torch.tensor([SOLID, LINE, POINT])], [{"boxes": torch.tensor([SOLID]), "labels": torch.tensor([0])}]
    )
    assert (loss_fn.metrics["positives"], loss_fn.metrics["negatives"]) == (1, 2)
