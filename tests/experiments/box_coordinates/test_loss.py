"""MAPLoss(box_gradient=True): the chain rule to the boxes, what it leaves alone, and boxes that learn from it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import stepgrad as sg
from stepgrad.errors import ConfigError
from stepgrad.gradient.box_steps import BoxMethod, box_pseudogradient
from stepgrad.losses import distributed
from stepgrad.losses.score_memory import ScoreMemory
from stepgrad.reference.mean_ap import batch_map
from tests.oracles.box_steps import Taken, box_gradient
from tests.oracles.options import Options
from tests.scenes import Batch, over_seeds, random_batch

EPS = 0.01


def medium_batch(seed: int, **kind: Any) -> Batch:
    kind = {"windows": 20, "images": 3, "K": 2, "objects": 9} | kind
    return random_batch(np.random.default_rng([seed, 95]), **kind)


def run(batch: Batch, dtype: torch.dtype = torch.float64, **options: Any) -> tuple[sg.MAPLoss, Tensor, Any, Any]:
    """The loss after its backward pass, with the scores and boxes."""
    scores, boxes, targets = batch.tensors(torch.float64, requires_grad=True)
    boxes = [b.to(dtype).requires_grad_() for b in boxes]
    loss_fn = sg.MAPLoss(batch.K, **{"eps": EPS, **options})
    loss = loss_fn(scores, boxes, targets)
    loss.backward()
    return loss_fn, loss.detach(), scores, boxes


@pytest.mark.parametrize("log", [True, False])
@over_seeds(1, 20)
def test_gradient_follows_the_chain_rule_from_brute_force(seed: int, log: bool) -> None:
    batch = medium_batch(seed, windows=8, objects=6)
    _, _, _, boxes = run(batch, log=log, box_gradient=True)
    slope = -1.0 / (batch_map(batch, Options()) + EPS) if log else -1.0
    for found, expected in zip(boxes, box_gradient(batch, Options(), Taken()), strict=True):
        np.testing.assert_allclose(found.grad, slope * expected, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("protocol", ["voc07", "voc12", "coco"])
@pytest.mark.parametrize("by_class", [False, True])
def test_gradient_without_the_log_is_minus_the_pseudogradient(protocol: str, by_class: bool) -> None:
    batch = medium_batch(1, per_class_boxes=by_class)
    options: dict[str, Any] = {"protocol": protocol, "absent_classes": "skip"}
    loss_fn, _, _, boxes = run(batch, log=False, box_gradient=BoxMethod("sde", reach=1.0), **options)
    raw = box_pseudogradient(*batch.tensors(), **options, method=BoxMethod("sde", reach=1.0))
    for found, expected in zip(boxes, raw, strict=True):
        torch.testing.assert_close(found.grad, -expected)
    share = np.concatenate([g.ravel() for g in raw]) != 0
    assert loss_fn.metrics["box_nonzero"] == share.mean() > 0


def test_value_and_score_gradient_do_not_depend_on_the_option() -> None:
    batch = medium_batch(2)
    (_, with_it, scores, _), (without, plain, others, untouched) = run(batch, box_gradient=True), run(batch)
    assert torch.equal(with_it, plain)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(scores, others, strict=True))
    assert all(b.grad is None for b in untouched)
    assert "box_nonzero" not in without.metrics


def test_boxes_that_need_no_gradient_cost_nothing_and_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepgrad.losses.box_gradient.all_box_gradients", None)  # would fail if called
    scores, boxes, targets = medium_batch(2).tensors(requires_grad=True)
    loss_fn = sg.MAPLoss(2, box_gradient=True)
    loss_fn(scores, boxes, targets).backward()
    assert loss_fn.metrics["box_nonzero"] == 0.0
    with torch.no_grad():
        loss_fn(scores, [b.requires_grad_() for b in boxes], targets)
    assert loss_fn.metrics["box_nonzero"] == 0.0


def test_boxes_learn_where_scores_do_not() -> None:
    scores, boxes, targets = medium_batch(2).tensors()
    boxes = [b.requires_grad_() for b in boxes]
    sg.MAPLoss(2, box_gradient=True)(scores, boxes, targets).backward()
    assert sum(b.grad.abs().sum() for b in boxes) > 0


def test_shared_boxes_get_the_sum_of_what_their_classes_get() -> None:
    batch = medium_batch(3)
    by_class = Batch(batch.scores, [np.repeat(b[:, None], 2, axis=1) for b in batch.boxes], batch.targets)
    mixed = Batch(batch.scores, [by_class.boxes[0], *batch.boxes[1:]], batch.targets)
    shared, apart, both = (run(b, box_gradient=True)[3] for b in (batch, by_class, mixed))
    for one, two, three in zip(shared, apart, both, strict=True):
        torch.testing.assert_close(one.grad, two.grad.sum(1))
        torch.testing.assert_close(three.grad, two.grad if three.ndim == 3 else one.grad)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_narrow_boxes_get_the_same_gradient_rounded(dtype: torch.dtype) -> None:
    batch = medium_batch(4)  # whole numbers: the same in every dtype
    wide, narrow = run(batch, box_gradient=True)[3], run(batch, dtype, box_gradient=True)[3]
    for a, b in zip(wide, narrow, strict=True):
        assert b.grad.dtype == dtype
        assert torch.equal(a.grad.to(dtype), b.grad)


def test_gradients_reach_a_regressor_and_lift_the_map() -> None:
    objects = torch.tensor([[10.0, 10.0, 30.0, 30.0], [50.0, 12.0, 90.0, 40.0], [20.0, 60.0, 40.0, 90.0]])
    size = torch.cat([objects[:, 2:] - objects[:, :2]] * 2, dim=1)
    windows = objects + size * torch.tensor([0.35, 0.1, 0.35, 0.1])  # IoU about 0.41: three false positives
    target = {"boxes": objects, "labels": torch.zeros(3, dtype=torch.long)}
    shift = torch.nn.Parameter(torch.zeros(4))  # one for all windows, in units of their sides
    loss_fn = sg.MAPLoss(1, box_gradient=True, log=False)
    optimiser = torch.optim.SGD([shift], lr=0.02)
    history = []
    for _ in range(12):
        optimiser.zero_grad()
        loss_fn([torch.tensor([[0.3], [0.2], [0.1]])], [windows + size * shift], [target]).backward()
        optimiser.step()
        history.append(loss_fn.metrics["map"])
    assert (history[0], history[-1]) == (0.0, 1.0)


def test_empty_batches_have_a_loss_on_the_graph() -> None:
    loss_fn = sg.MAPLoss(2, box_gradient=True)
    nothing = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.long)}
    boxes = torch.zeros(0, 4, requires_grad=True)
    for lists in (([torch.zeros(0, 2)], [boxes], [nothing]), ([], [], [])):
        loss_fn(*lists).backward()
    assert boxes.grad is not None
    assert loss_fn.metrics["box_nonzero"] == 0.0


def test_remembered_images_are_company_for_boxes_too() -> None:
    box = torch.tensor([[0.0, 0.0, 4.0, 10.0]], requires_grad=True)  # IoU 0.4 with the object
    here = {"boxes": torch.tensor([[0.0, 0.0, 10.0, 10.0]]), "labels": torch.tensor([0])}
    nothing = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.long)}
    loss_fn, memory = sg.MAPLoss(1, log=False, box_gradient=True), ScoreMemory(10, rescale=False)
    memory(loss_fn, [torch.tensor([[2.0]])], [box.detach()], [nothing])
    memory(loss_fn, [torch.tensor([[1.0]])], [box], [here]).backward()
    assert box.grad is not None
    assert box.grad.tolist() == [[0.0, 0.0, -0.25, 0.0]]  # AP 0 to 1/2, one pixel away, on one side


def test_scores_and_boxes_in_one_tensor_go_through_large_batch() -> None:
    scores, boxes, targets = medium_batch(2).tensors()
    layer = torch.nn.Linear(6, 6, bias=False, dtype=torch.float64)  # two scores and four coordinates of a window
    torch.nn.init.eye_(layer.weight)
    inputs = [torch.cat(pair, dim=1) for pair in zip(scores, boxes, strict=True)]

    def loss_of(outputs: list[Tensor]) -> Tensor:
        return sg.MAPLoss(2, box_gradient=True)([o[:, :2] for o in outputs], [o[:, 2:] for o in outputs], targets)

    loss_of([layer(x) for x in inputs]).backward()
    whole, layer.weight.grad = layer.weight.grad, None
    sg.large_batch(lambda x: [layer(x)], inputs, loss_of)
    assert whole is not None
    assert whole[2:].abs().sum() > 0
    torch.testing.assert_close(layer.weight.grad, whole)


@pytest.mark.parametrize("given", ["yes", 1, None])
def test_what_is_no_method_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match="box_gradient"):
        sg.MAPLoss(1, box_gradient=given)


def test_several_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "is_alone", lambda group: False)
    with pytest.raises(ConfigError, match="single process"):
        sg.DistributedMAPLoss(1, box_gradient=True)([], [], [])


def test_radius_follows_the_losses_estimator() -> None:
    assert sg.MAPLoss(1, estimator="radius", box_gradient=True).box_method == BoxMethod("radius")
    assert sg.MAPLoss(1).box_method is None
    assert math.isclose(BoxMethod().reach, 0.5)
