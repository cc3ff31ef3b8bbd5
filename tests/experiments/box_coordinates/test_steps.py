"""mAP in box coordinates: its steps against brute force and under the symmetries of the plane, and the loss made of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import stepgrad as sg
from experiments.box_coordinates.loss import BoxMAPLoss
from experiments.box_coordinates.steps import BoxMethod, BoxSteps, box_pseudogradient, box_steps
from stepgrad.errors import ConfigError
from stepgrad.reference.mean_ap import batch_ap, batch_map
from tests.experiments.box_coordinates.brute_force import Coordinate, Taken, box_gradient, nearest_steps
from tests.oracles.options import Options
from tests.scenes import Array, Batch, over_seeds, random_batch, small_batch, with_empty_windows

OBJECT = [0.0, 0.0, 10.0, 10.0]
EPS = 0.01
every_estimator = pytest.mark.parametrize("estimator", ["mee", "sde", "radius"])


def one_image(scores: list[float], boxes: list[list[float]], objects: list[list[float]]) -> Batch:
    target = {"boxes": np.array(objects).reshape(-1, 4), "labels": np.zeros(len(objects), dtype=np.int64)}
    return Batch([np.array(scores)[:, None]], [np.array(boxes)], [target])


def medium_batch(seed: int, **kind: Any) -> Batch:
    kind = {"windows": 20, "images": 2, "K": 2, "objects": 8, "ties": True} | kind
    return random_batch(np.random.default_rng([seed, 96]), **kind)


def gradient_of(batch: Batch, **options: Any) -> list[Array]:
    return [g.numpy() for g in box_pseudogradient(*batch.tensors(), **options)]


def assert_same(found: list[Array], expected: list[Array]) -> None:
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-12)


def numbers(steps: BoxSteps, at: Coordinate) -> list[float]:
    columns = (steps.up_at, steps.up_value, steps.down_at, steps.down_value)
    return [float(column[at.image][at.window, at.label, at.q]) for column in columns]


def check_steps(batch: Batch, options: Options, reach: float) -> None:
    """All nearest steps against brute force."""
    found = box_steps(*batch.tensors(), **options.call(), reach=reach)  # type: ignore[arg-type]
    assert found.value.tolist() == batch_ap(batch, options)
    (threshold,) = options.thresholds()
    for at in (Coordinate(*window, q) for window in batch.windows() for q in range(4)):
        steps = nearest_steps(batch, options, threshold, at, reach)
        expected = [steps.up_at, steps.up_value.rounded, steps.down_at, steps.down_value.rounded]
        assert numbers(found, at) == pytest.approx(expected, rel=1e-9, abs=1e-9), at


@over_seeds(8, 400)
def test_nearest_steps_are_those_of_brute_force(seed: int) -> None:
    rng = np.random.default_rng([seed, 99])
    protocol = str(rng.choice(["voc07", "voc12", "coco", "voc12-devkit", "voc07-python"]))
    batch = small_batch(rng, crowds=protocol == "coco")
    nms_threshold = [0.3, 0.5, None, 0.0][int(rng.integers(4))]
    options = Options(protocol, nms_threshold, float(rng.choice([0.3, 0.5, 0.75])))
    check_steps(batch, options, float(rng.choice([0.5, 1.0, math.inf])))


@pytest.mark.parametrize("protocol", ["voc12", "coco"])
def test_equal_rivals_do_not_hide_a_step(protocol: str) -> None:
    twins = one_image([2.0, 1.0], [[0.0, 0.0, 10.0, 8.0], [0.0, 2.0, 10.0, 10.0]], [OBJECT, OBJECT])
    check_steps(twins, Options(protocol, None, 0.5), math.inf)


@every_estimator
@pytest.mark.parametrize("protocol", ["voc07", "voc12", "coco"])
@over_seeds(1, 31)
def test_gradient_is_that_of_brute_force(seed: int, protocol: str, estimator: str) -> None:
    rng = np.random.default_rng([seed, 98])
    windows, objects = (4, 4) if protocol == "coco" else (7, 5)
    ties, difficult = bool(rng.random() < 0.4), 0.25 * (rng.random() < 0.5)
    kind: dict[str, Any] = {"windows": windows, "images": 2, "objects": objects, "K": 2, "ties": ties}
    batch = random_batch(rng, **kind, difficult=difficult, per_class_boxes=bool(rng.random() < 0.5))
    how = Taken(estimator, radius=0.15, min_step=0.05, reach=0.8)
    found = gradient_of(batch, protocol=protocol, method=BoxMethod(*how))
    assert_same(found, box_gradient(batch, Options(protocol), how))


SYMMETRIES: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    "mirrored": (
        lambda boxes: np.stack([64.0 - boxes[:, 2], boxes[:, 1], 64.0 - boxes[:, 0], boxes[:, 3]], axis=1),
        lambda g: np.stack([-g[:, 2], g[:, 1], -g[:, 0], g[:, 3]], axis=1),
    ),
    "axes exchanged": (lambda boxes: boxes[:, [1, 0, 3, 2]], lambda g: g[:, [1, 0, 3, 2]]),
    "moved": (lambda boxes: boxes + np.array([96.0, -32.0] * 2), lambda g: g),
    "twice as large": (lambda boxes: 2 * boxes, lambda g: 2 * g),
}


@every_estimator
@pytest.mark.parametrize("name", SYMMETRIES)
@over_seeds(1, 20)
def test_a_changed_plane_changes_the_gradient_likewise(seed: int, name: str, estimator: str) -> None:
    change, back = SYMMETRIES[name]
    batch, method = medium_batch(seed), BoxMethod(estimator, radius=3 / 8)  # of whole sides, so that all sums are exact
    targets = [{**t, "boxes": change(t["boxes"])} for t in batch.targets]
    there = gradient_of(Batch(batch.scores, [change(b) for b in batch.boxes], targets), method=method)
    here = gradient_of(batch, method=method)
    assert any(np.abs(g).max() > 0 for g in here)
    assert_same([back(g) for g in there], here)


def test_windows_are_pulled_onto_free_objects_and_pushed_off_those_they_suppress() -> None:
    x1, y1, x2, y2 = gradient_of(one_image([1.0], [[4.0, 0.0, 14.0, 10.0]], [OBJECT]))[0][0]  # too far to the right
    assert (x1, x2) == (
        pytest.approx(-0.5 / 1.0),
        pytest.approx(-0.5 / 2.0),
    )  # AP is 1 from x1 = 3 on and up to x2 = 12
    assert (y1, y2) == (0.0, 0.0)
    batch = one_image([2.0, 1.0], [[0.0, 0.0, 10.0, 3.5], OBJECT], [OBJECT])  # IoU 0.35 with what it suppresses
    x1, y1, x2, y2 = gradient_of(batch, method=BoxMethod(reach=0.3))[0][0]
    assert x1 > 0 > x2  # a smaller window lets the other live
    assert y1 > 0 > y2


@every_estimator
@over_seeds(1, 20)
def test_boxes_without_a_side_get_no_gradient_and_leave_that_of_others_alone(seed: int, estimator: str) -> None:
    rng = np.random.default_rng([seed, 125])
    batch = with_empty_windows(rng, random_batch(rng, windows=6, images=1, objects=4, K=1), share=0.5)
    how = Taken(estimator, radius=0.15, min_step=0.05, reach=0.8)
    empty = (batch.boxes[0][:, 2:] == batch.boxes[0][:, :2]).any(axis=1)
    assert empty.any()
    scores = batch.scores[0].copy()
    scores[empty] = scores.min() - 1.0 - np.arange(empty.sum())[:, None]  # below the others they change no precision
    (found,) = gradient_of(batch.with_scores([scores]), method=BoxMethod(*how))
    assert (found[empty] == 0.0).all()
    without = Batch([batch.scores[0][~empty]], [batch.boxes[0][~empty]], batch.targets)
    assert_same([found[~empty]], box_gradient(without, Options(), how))


def test_what_cannot_be_is_refused() -> None:
    for options in ({"estimator": "me"}, {"radius": 0.0}, {"min_step": -1.0}, {"reach": math.nan}, {"reach": "0.5"}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            BoxMethod(**options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="one at a time"):
        box_steps(*one_image([1.0], [OBJECT], [OBJECT]).tensors(), protocol="coco")
    with pytest.raises(ConfigError, match="BoxMethod"):
        BoxMAPLoss(sg.MAPLoss(1), "mee")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="single process"):
        BoxMAPLoss(sg.DistributedMAPLoss(1))


# ---- the loss


def run(loss_fn: sg.MAPLoss | BoxMAPLoss, batch: Batch, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Any, Any]:
    """The loss after its backward pass, with the scores and boxes."""
    scores, boxes, targets = batch.tensors(torch.float64, requires_grad=True)
    boxes = [b.to(dtype).requires_grad_() for b in boxes]
    loss = loss_fn(scores, boxes, targets)
    loss.backward()
    return loss.detach(), scores, boxes


def boxes_after(batch: Batch, dtype: torch.dtype = torch.float64, **options: Any) -> list[Tensor]:
    """The boxes after the backward pass of the default method."""
    return run(BoxMAPLoss(sg.MAPLoss(batch.K, eps=EPS, **options)), batch, dtype)[2]


@pytest.mark.parametrize("log", [True, False])
@over_seeds(1, 20)
def test_gradient_follows_the_chain_rule_from_brute_force(seed: int, log: bool) -> None:
    batch = medium_batch(seed, windows=8, objects=6)
    slope = -1.0 / (batch_map(batch, Options()) + EPS) if log else -1.0
    expected = [slope * g for g in box_gradient(batch, Options(), Taken())]
    assert_same([box.grad.numpy() for box in boxes_after(batch, log=log)], expected)


def test_value_metrics_and_score_gradient_are_those_of_the_loss_within() -> None:
    batch, inner, outer = medium_batch(2), sg.MAPLoss(2), BoxMAPLoss(sg.MAPLoss(2))
    (with_it, scores, _), (plain, others, untouched) = run(outer, batch), run(inner, batch)
    assert torch.equal(with_it, plain)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(scores, others, strict=True))
    assert all(b.grad is None for b in untouched)
    assert outer.metrics.keys() - inner.metrics.keys() == {"box_nonzero"}


def test_shared_boxes_get_the_sum_of_what_their_classes_get() -> None:
    batch = medium_batch(3)
    by_class = Batch(batch.scores, [np.repeat(b[:, None], 2, axis=1) for b in batch.boxes], batch.targets)
    for one, two in zip(boxes_after(batch), boxes_after(by_class), strict=True):
        torch.testing.assert_close(one.grad, two.grad.sum(1))


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
    nothing = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.long)}
    boxes = torch.zeros(0, 4, requires_grad=True)
    for lists in (([torch.zeros(0, 2)], [boxes], [nothing]), ([], [], [])):
        BoxMAPLoss(sg.MAPLoss(2))(*lists).backward()
    assert boxes.grad is not None
    assert box_pseudogradient([], [], []) == box_steps([], [], []).up_at == []


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
