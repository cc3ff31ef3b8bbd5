"""BoxMAPLoss: the chain rule to the boxes, what it leaves alone, and boxes that learn from it."""

from __future__ import annotations

import doctest
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import stepgrad as sg
from experiments.box_coordinates import loss as loss_module
from experiments.box_coordinates.loss import BoxMAPLoss
from experiments.box_coordinates.steps import BoxMethod, box_pseudogradient
from experiments.score_memory import ScoreMemory
from stepgrad.errors import ConfigError
from stepgrad.reference.mean_ap import batch_map
from tests.experiments.box_coordinates.brute_force import Taken, box_gradient
from tests.oracles.options import Options
from tests.scenes import Batch, over_seeds, random_batch

EPS = 0.01


def medium_batch(seed: int, **kind: Any) -> Batch:
    kind = {"windows": 20, "images": 3, "K": 2, "objects": 9} | kind
    return random_batch(np.random.default_rng([seed, 95]), **kind)


def run(loss_fn: sg.MAPLoss | BoxMAPLoss, batch: Batch, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Any, Any]:
    """The loss after its backward pass, with the scores and boxes."""
    scores, boxes, targets = batch.tensors(torch.float64, requires_grad=True)
    boxes = [b.to(dtype).requires_grad_() for b in boxes]
    loss = loss_fn(scores, boxes, targets)
    loss.backward()
    return loss.detach(), scores, boxes


def boxes_after(batch: Batch, dtype: torch.dtype = torch.float64, **options: Any) -> Any:
    """The boxes after the backward pass of the default method."""
    return run(BoxMAPLoss(sg.MAPLoss(batch.K, eps=EPS, **options)), batch, dtype)[2]


@pytest.mark.parametrize("log", [True, False])
@over_seeds(1, 20)
def test_gradient_follows_the_chain_rule_from_brute_force(seed: int, log: bool) -> None:
    batch = medium_batch(seed, windows=8, objects=6)
    boxes = boxes_after(batch, log=log)
    slope = -1.0 / (batch_map(batch, Options()) + EPS) if log else -1.0
    for found, expected in zip(boxes, box_gradient(batch, Options(), Taken()), strict=True):
        np.testing.assert_allclose(found.grad, slope * expected, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("protocol", ["voc07", "voc12", "coco"])
@pytest.mark.parametrize("by_class", [False, True])
def test_gradient_without_the_log_is_minus_the_pseudogradient(protocol: str, by_class: bool) -> None:
    batch = medium_batch(1, per_class_boxes=by_class)
    options: dict[str, Any] = {"protocol": protocol, "absent_classes": "skip"}
    method = BoxMethod("sde", reach=1.0)
    loss_fn = BoxMAPLoss(sg.MAPLoss(batch.K, log=False, **options), method)
    _, _, boxes = run(loss_fn, batch)
    raw = box_pseudogradient(*batch.tensors(), **options, method=method)
    for found, expected in zip(boxes, raw, strict=True):
        torch.testing.assert_close(found.grad, -expected)
    share = np.concatenate([g.ravel() for g in raw]) != 0
    assert loss_fn.metrics["box_nonzero"] == share.mean() > 0


def test_value_metrics_and_score_gradient_are_those_of_the_loss_within() -> None:
    batch, inner, outer = medium_batch(2), sg.MAPLoss(2), BoxMAPLoss(sg.MAPLoss(2))
    (with_it, scores, _), (plain, others, untouched) = run(outer, batch), run(inner, batch)
    assert torch.equal(with_it, plain)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(scores, others, strict=True))
    assert all(b.grad is None for b in untouched)
    assert outer.metrics.keys() - inner.metrics.keys() == {"box_nonzero"}
    assert all(np.array_equal(outer.metrics[name], inner.metrics[name]) for name in inner.metrics)


def test_boxes_that_need_no_gradient_cost_nothing_and_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_module, "all_box_gradients", None)  # would fail if called
    scores, boxes, targets = medium_batch(2).tensors(requires_grad=True)
    loss_fn = BoxMAPLoss(sg.MAPLoss(2))
    loss_fn(scores, boxes, targets).backward()
    assert loss_fn.metrics["box_nonzero"] == 0.0
    with torch.no_grad():
        loss_fn(scores, [b.requires_grad_() for b in boxes], targets)
    assert loss_fn.metrics["box_nonzero"] == 0.0


def test_boxes_learn_where_scores_do_not() -> None:
    scores, boxes, targets = medium_batch(2).tensors()
    boxes = [b.requires_grad_() for b in boxes]
    BoxMAPLoss(sg.MAPLoss(2))(scores, boxes, targets).backward()
    assert sum(b.grad.abs().sum() for b in boxes) > 0


def test_shared_boxes_get_the_sum_of_what_their_classes_get() -> None:
    batch = medium_batch(3)
    by_class = Batch(batch.scores, [np.repeat(b[:, None], 2, axis=1) for b in batch.boxes], batch.targets)
    mixed = Batch(batch.scores, [by_class.boxes[0], *batch.boxes[1:]], batch.targets)
    shared, apart, both = (boxes_after(b) for b in (batch, by_class, mixed))
    for one, two, three in zip(shared, apart, both, strict=True):
        torch.testing.assert_close(one.grad, two.grad.sum(1))
        torch.testing.assert_close(three.grad, two.grad if three.ndim == 3 else one.grad)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_narrow_boxes_get_the_same_gradient_rounded(dtype: torch.dtype) -> None:
    batch = medium_batch(4)  # whole numbers: the same in every dtype
    wide, narrow = boxes_after(batch), boxes_after(batch, dtype)
    for a, b in zip(wide, narrow, strict=True):
        assert b.grad.dtype == dtype
        assert torch.equal(a.grad.to(dtype), b.grad)


def test_gradients_reach_a_regressor_and_lift_the_map() -> None:
    objects = torch.tensor([[10.0, 10.0, 30.0, 30.0], [50.0, 12.0, 90.0, 40.0], [20.0, 60.0, 40.0, 90.0]])
    size = torch.cat([objects[:, 2:] - objects[:, :2]] * 2, dim=1)
    windows = objects + size * torch.tensor([0.35, 0.1, 0.35, 0.1])  # IoU about 0.41: three false positives
    target = {"boxes": objects, "labels": torch.zeros(3, dtype=torch.long)}
    shift = torch.nn.Parameter(torch.zeros(4))  # one for all windows, in units of their sides
    loss_fn = BoxMAPLoss(sg.MAPLoss(1, log=False))
    optimiser = torch.optim.SGD([shift], lr=0.02)
    history = []
    for _ in range(12):
        optimiser.zero_grad()
        loss_fn([torch.tensor([[0.3], [0.2], [0.1]])], [windows + size * shift], [target]).backward()
        optimiser.step()
        history.append(loss_fn.metrics["map"])
    assert (history[0], history[-1]) == (0.0, 1.0)


def test_empty_batches_have_a_loss_on_the_graph() -> None:
    loss_fn = BoxMAPLoss(sg.MAPLoss(2))
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
    loss_fn, memory = BoxMAPLoss(sg.MAPLoss(1, log=False)), ScoreMemory(10, rescale=False)
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
        return BoxMAPLoss(sg.MAPLoss(2))([o[:, :2] for o in outputs], [o[:, 2:] for o in outputs], targets)

    loss_of([layer(x) for x in inputs]).backward()
    whole, layer.weight.grad = layer.weight.grad, None
    sg.large_batch(lambda x: [layer(x)], inputs, loss_of)
    assert whole is not None
    assert whole[2:].abs().sum() > 0
    torch.testing.assert_close(layer.weight.grad, whole)


@pytest.mark.parametrize("given", ["yes", 1, True, BoxMethod])
def test_what_is_no_method_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match="BoxMethod"):
        BoxMAPLoss(sg.MAPLoss(1), given)


def test_without_a_method_it_is_mee() -> None:
    assert BoxMAPLoss(sg.MAPLoss(1, estimator="radius")).method == BoxMethod("mee", reach=0.5)


def test_several_processes_are_refused() -> None:
    with pytest.raises(ConfigError, match="single process"):
        BoxMAPLoss(sg.DistributedMAPLoss(1))


def test_examples_in_the_docstrings_are_true() -> None:
    outcome = doctest.testmod(loss_module)
    assert outcome.attempted > 0
    assert outcome.failed == 0
