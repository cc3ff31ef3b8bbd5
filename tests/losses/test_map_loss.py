"""MAPLoss: its value, its gradient, its metrics, and the ways it is called."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import stepgrad as sg
from stepgrad.reference.map_loss import loss_gradient, loss_value
from stepgrad.reference.matching import best_object
from stepgrad.reference.mean_ap import batch_map, scene_of
from tests.oracles.options import Options
from tests.scenes import Array, Batch, over_seeds, random_batch
from tests.steps.test_pseudogradient import assert_close

EPS = 0.01
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def loss_and_gradient(batch: Batch, dtype: torch.dtype = torch.float64, **options: Any) -> tuple[float, list[Array]]:
    loss_fn = sg.MAPLoss(batch.K, **options)
    scores, boxes, targets = batch.tensors(dtype, requires_grad=True)
    loss = loss_fn(scores, boxes, targets)
    loss.backward()
    return float(loss.detach()), [s.grad.double().numpy() for s in scores]


def medium_batch(seed: int, **kind: Any) -> Batch:
    kind = {"windows": 16, "images": 3, "K": 3, "objects": 9} | kind
    return random_batch(np.random.default_rng([seed, 60]), **kind)


@pytest.mark.parametrize("balance", ["none", "class"])
@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("l4", [None, 1e-3])
@pytest.mark.parametrize("estimator", ["mee", "sde", "radius"])
@over_seeds(2, 40)
def test_loss_and_gradient_follow_the_formula(
    seed: int, estimator: str, l4: float | None, clip: float | None, balance: str
) -> None:
    batch = medium_batch(seed)
    options = Options("voc12", 0.3, 0.5, estimator=estimator, min_step=0.1, balance=balance)
    loss, gradient = loss_and_gradient(batch, **options.for_gradient(), log=True, eps=EPS, l4=l4, clip=clip)
    assert loss == pytest.approx(loss_value(batch, options, EPS, l4), rel=1e-12)
    assert_close(gradient, loss_gradient(batch, options, True, EPS, clip, l4))


@pytest.mark.parametrize("protocol", ["voc07", "voc12", "coco"])
@over_seeds(2, 40)
def test_gradient_without_the_log_is_minus_the_pseudogradient(seed: int, protocol: str) -> None:
    batch = medium_batch(seed, windows=10, K=2)
    options = Options(protocol, 0.5, min_step=0.1)
    _, gradient = loss_and_gradient(batch, **options.for_gradient(), log=False, l4=None, clip=None)
    raw = sg.map_pseudogradient(*batch.tensors(), **options.for_gradient())
    assert_close(gradient, [-g.numpy() for g in raw])


@pytest.mark.parametrize("log", [True, False])
@over_seeds(3, 40)
def test_the_loss_is_minus_the_log_of_the_metric_or_one_minus_it(seed: int, log: bool) -> None:
    options = {"protocol": "voc12", "nms_threshold": 0.3, "log": log, "eps": EPS, "l4": None, "clip": None}
    first, second = medium_batch(seed), medium_batch(seed + 1000)
    losses = [loss_and_gradient(batch, **options)[0] for batch in (first, second)]
    maps = [batch_map(batch, Options()) for batch in (first, second)]
    expected = [-math.log(m + EPS) if log else 1.0 - m for m in maps]
    assert losses == pytest.approx(expected, abs=1e-12)


def test_the_value_is_the_evaluators_number_to_the_last_bit() -> None:
    batch = medium_batch(0, windows=60, objects=20)
    for protocol in ("voc07", "voc12", "coco"):
        options = {"protocol": protocol, "nms_threshold": 0.3}
        loss_fn = sg.MAPLoss(batch.K, **options)
        loss_fn(*batch.tensors())
        result = sg.mean_average_precision(*batch.tensors(), **options)
        assert float(loss_fn.metrics["map"]) == float(result.map)
        np.testing.assert_array_equal(loss_fn.metrics["ap"], result.ap)


def test_metrics_of_the_last_call() -> None:
    batch = medium_batch(1, difficult=0.3)
    options = Options("voc12", 0.3, 0.5, min_step=0.1)
    loss_fn = sg.MAPLoss(batch.K, **options.for_gradient(), log=False, l4=None, clip=None)
    scores, boxes, targets = batch.tensors(requires_grad=True)
    loss_fn(scores, boxes, targets).backward()
    metrics = loss_fn.metrics
    gradient = np.concatenate([s.grad.numpy().ravel() for s in scores])
    present = {int(label) for target in targets for label in target["labels"]}
    kept = sum(len(sg.nms(b, s[:, c], 0.3)[0]) for b, s in zip(boxes, scores, strict=True) for c in present)
    countable = sum(int((~t["difficult"]).sum()) for t in targets)
    assert float(metrics["kept"]) == kept
    assert float(metrics["objects"]) == countable
    assert float(metrics["nonzero"]) == pytest.approx((gradient != 0).mean())
    assert float(metrics["positive_sum"]) == pytest.approx(gradient[gradient > 0].sum())
    assert float(metrics["negative_sum"]) == pytest.approx(gradient[gradient < 0].sum())


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradient_comes_back_in_the_type_of_the_scores(dtype: torch.dtype) -> None:
    batch = medium_batch(2, ties=True)  # small integers: exact in every type
    scores, boxes, targets = batch.tensors(dtype, requires_grad=True)
    sg.MAPLoss(batch.K, min_step=0.25)(scores, boxes, targets).backward()
    reference, _, _ = batch.tensors(torch.float64, requires_grad=True)
    sg.MAPLoss(batch.K, min_step=0.25)(reference, boxes, targets).backward()
    for s, r in zip(scores, reference, strict=True):
        assert s.grad.dtype == dtype
        torch.testing.assert_close(s.grad, r.grad.to(dtype))
    assert any((s.grad != 0).any() for s in scores)


@pytest.mark.parametrize("dtype", DTYPES)
def test_boxes_may_have_any_float_type(dtype: torch.dtype) -> None:
    batch = medium_batch(3)  # integer coordinates: exact in every type
    scores, boxes, targets = batch.tensors()
    narrow = [t | {"boxes": t["boxes"].to(dtype)} for t in targets]
    loss_fn = sg.MAPLoss(batch.K)
    assert torch.equal(loss_fn(scores, [b.to(dtype) for b in boxes], narrow), loss_fn(scores, boxes, targets))


@pytest.mark.parametrize("estimator", ["mee", "sde", "radius"])
def test_two_runs_give_the_same_bits(estimator: str) -> None:
    batch = medium_batch(4, windows=300, K=8, objects=60, clusters=6, ties=True)
    runs = [loss_and_gradient(batch, estimator=estimator, radius=1.0) for _ in range(2)]
    assert runs[0][0] == runs[1][0]
    for a, b in zip(runs[0][1], runs[1][1], strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_number_of_threads_does_not_change_a_bit() -> None:
    batch = medium_batch(4, windows=300, K=8, objects=60, clusters=6)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            results.append(loss_and_gradient(batch))
    finally:
        torch.set_num_threads(before)
    assert results[0][0] == results[1][0]
    for a, b in zip(results[0][1], results[1][1], strict=True):
        np.testing.assert_array_equal(a, b)


def linear_model() -> torch.nn.Linear:
    torch.manual_seed(0)
    return torch.nn.Linear(8, 3)


def features_of(batch: Batch) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(len(s), 8, generator=generator) for s in batch.scores]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_gives_a_finite_loss_and_gradients(dtype: torch.dtype) -> None:
    batch, model = medium_batch(5), linear_model()
    _, boxes, targets = batch.tensors()
    with torch.autocast("cpu", dtype=dtype):
        scores = [model(x) for x in features_of(batch)]
        assert scores[0].dtype == dtype
        loss = sg.MAPLoss(3)(scores, boxes, targets)
    loss.backward()
    assert torch.isfinite(loss)
    assert loss.dtype in (torch.float32, torch.float64)
    assert torch.isfinite(model.weight.grad).all()
    assert (model.weight.grad != 0).any()


def test_autocast_does_not_change_the_loss_of_given_scores() -> None:
    batch = medium_batch(5)
    loss_fn = sg.MAPLoss(3)
    outside = loss_fn(*batch.tensors(torch.float32))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = loss_fn(*batch.tensors(torch.float32))
    assert torch.equal(inside, outside)


def test_a_compiled_model_learns_through_the_loss_like_an_eager_one() -> None:
    batch = medium_batch(6)
    _, boxes, targets = batch.tensors()
    gradients = []
    for compiled in (False, True):
        model = linear_model()
        run = torch.compile(model, backend="eager") if compiled else model
        sg.MAPLoss(3)([run(x) for x in features_of(batch)], boxes, targets).backward()
        gradients.append(model.weight.grad)
    assert (gradients[0] != 0).any()
    assert torch.equal(*gradients)


@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor:UserWarning"
)  # torch asks for it where a graph ends
def test_the_loss_works_inside_a_compiled_function() -> None:
    batch = medium_batch(7)
    _, boxes, targets = batch.tensors()
    loss_fn, gradients = sg.MAPLoss(3), []

    def step(model: torch.nn.Module, features: list[torch.Tensor]) -> torch.Tensor:
        return loss_fn([model(x) for x in features], boxes, targets)

    for run in (step, torch.compile(step, backend="eager")):
        model = linear_model()
        run(model, features_of(batch)).backward()
        gradients.append(model.weight.grad)
    assert torch.equal(*gradients)


def test_gradient_scales_with_the_upstream_gradient() -> None:
    batch = medium_batch(8)
    once, _, _ = batch.tensors(requires_grad=True)
    thrice, boxes, targets = batch.tensors(requires_grad=True)
    loss_fn = sg.MAPLoss(batch.K)
    loss_fn(once, boxes, targets).backward()
    (3.0 * loss_fn(thrice, boxes, targets)).backward()
    for a, b in zip(once, thrice, strict=True):
        torch.testing.assert_close(b.grad, 3.0 * a.grad)


def test_the_call_does_not_change_its_arguments() -> None:
    batch = medium_batch(9)
    scores, boxes, targets = batch.tensors(requires_grad=True)
    sg.MAPLoss(batch.K)(scores, boxes, targets).backward()
    again_scores, again_boxes, again_targets = batch.tensors()
    assert all(torch.equal(a, b) for a, b in zip(scores, again_scores, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(boxes, again_boxes, strict=True))
    assert all(torch.equal(a[k], b[k]) for a, b in zip(targets, again_targets, strict=True) for k in a)


def test_following_the_gradient_reaches_a_perfect_metric() -> None:
    batch = medium_batch(10, windows=24, objects=9)
    options = {"protocol": "voc12", "nms_threshold": None}
    scores, boxes, targets = batch.tensors(requires_grad=True)
    loss_fn = sg.MAPLoss(batch.K, l4=None, **options)
    start = sg.mean_average_precision(scores, boxes, targets, **options)
    optimiser = torch.optim.Adam(scores, lr=0.2)
    for _ in range(100):
        optimiser.zero_grad()
        loss_fn(scores, boxes, targets).backward()
        optimiser.step()
    end = sg.mean_average_precision(scores, boxes, targets, **options)
    # every object that some window reaches is found before any false positive
    best = best_possible(batch)
    assert float(start.map) < float(end.map) == pytest.approx(best, abs=1e-12)


def best_possible(batch: Batch) -> float:
    """Area mAP when the windows that can match come first: the share of objects that some window wants."""
    shares = []
    for c in range(batch.K):
        scene = scene_of(batch, c, Options("voc12", None), 0.5)
        found = sum(len({best_object(o, 0.5, True) for o in im.objects.overlaps} - {None}) for im in scene.images)
        shares.append(found / scene.P if scene.P else 0.0)
    return sum(shares) / batch.K


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, {"estimator": "radius", "radius": 3.0, "through_nms": "exact", "balance": "class"}),
        (
            {"through_nms": "paper"},
            {"through_nms": "paper", "estimator": "mee"},
        ),  # nothing else goes that way through NMS
    ],
    ids=["plain", "paper"],
)
def test_what_is_left_out_is_what_the_result_tables_recommend(given: dict[str, Any], told: dict[str, Any]) -> None:
    batch = medium_batch(12)
    (_, left_out), (_, spelt_out) = loss_and_gradient(batch, **given), loss_and_gradient(batch, **told)
    assert any(gradient.any() for gradient in left_out)
    for a, b in zip(left_out, spelt_out, strict=True):
        np.testing.assert_array_equal(a, b)


def test_paper_settings_are_those_of_the_paper() -> None:
    batch = medium_batch(11)
    options = Options("voc12", 0.3, 0.5, through_nms="paper", estimator="mee", min_step=0.1, absent_classes="zero")
    loss_fn = sg.MAPLoss.paper(batch.K, eps=EPS, clip=0.1, l4=1e-6, min_step=0.1)
    scores, boxes, targets = batch.tensors(requires_grad=True)
    loss_fn(scores, boxes, targets).backward()
    assert_close([s.grad.numpy() for s in scores], loss_gradient(batch, options, True, EPS, 0.1, 1e-6))
