"""Losses of scores on another device give the CPU's numbers, to the last bit, and gradients where the scores are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import stepgrad as sg
from stepgrad.losses.ragged import ScoredPairs, ragged_map_loss
from tests.overlaps.tables import any_tables
from tests.scenes import Batch, random_batch

K = 3
CPU = torch.device("cpu")
Place = torch.device


def scene(seed: int, **options: Any) -> Batch:
    return random_batch(np.random.default_rng(seed), windows=40, images=3, K=K, objects=9, difficult=0.2, **options)


def on(place: Place, given: Any) -> Any:
    """The same with every tensor there; leaves that want a gradient are new leaves."""
    if isinstance(given, Tensor):
        return given.detach().to(place).requires_grad_(given.requires_grad)
    if isinstance(given, dict):
        return {key: on(place, value) for key, value in given.items()}
    return [on(place, each) for each in given]


def numbers(loss_fn: Any, place: Place, scores: Any, *rest: Any, **more: Any) -> list[Any]:
    """Loss, gradients and metrics of one call with everything on a device."""
    scores, rest, more = on(place, scores), on(place, rest), on(place, more)
    loss = loss_fn(scores, *rest, **more)
    leaves = scores if isinstance(scores, list) else [scores]
    gradients = torch.autograd.grad(loss.sum(), leaves, allow_unused=True)
    assert loss.device == leaves[0].device
    assert [(g.device, g.dtype) for g in gradients] == [(s.device, s.dtype) for s in leaves]
    reported = [v for v in getattr(loss_fn, "metrics", {}).values() if not isinstance(v, str)]
    return [loss.detach().cpu(), *(g.cpu() for g in gradients), *map(torch.as_tensor, reported)]


def assert_same(found: list[Any], expected: list[Any]) -> None:
    assert [(f.dtype, f.shape) for f in found] == [(e.dtype, e.shape) for e in expected]
    for f, e in zip(found, expected, strict=True):
        np.testing.assert_array_equal(f.double().numpy(), e.double().numpy())


LOSSES: dict[str, Callable[[], Any]] = {
    "voc12": lambda: sg.MAPLoss(K),
    "coco": lambda: sg.MAPLoss(K, "coco", nms_threshold=0.6),
    "mee": lambda: sg.MAPLoss(K, estimator="mee"),
    "sde, no nms": lambda: sg.MAPLoss(K, estimator="sde", nms_threshold=None),
    "floor": lambda: sg.MAPLoss(K, score_floor=-1.0, clip=0.01, balance="class+scale"),
    "paper without l4": lambda: sg.MAPLoss.paper(K, l4=None),
    "recall": lambda: sg.DetectionLoss(K, "recall@precision=0.9"),
    "f1": lambda: sg.DetectionLoss(K, "f1", class_weights=[1.0, 2.0, 3.0]),
    "cost": lambda: sg.DetectionLoss(K, sg.metrics.Cost(threshold=0.0, false_alarm=1, miss=3)),
    "size": lambda: sg.DetectionLoss(K, sg.metrics.AP(area=(0.0, 60.0)), "coco"),
    "worst": lambda: sg.DetectionLoss(K, "ap", classes="worst"),
    "own": lambda: sg.DetectionLoss(K, lambda hits, objects: hits[:5].sum() / 5),
    "several processes": lambda: sg.DistributedMAPLoss(K),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", LOSSES)
def test_detection_losses_are_the_cpus(device: Place, name: str, dtype: torch.dtype) -> None:
    given = scene(1).tensors(dtype, requires_grad=True)
    assert_same(numbers(LOSSES[name](), device, *given), numbers(LOSSES[name](), CPU, *given))


@pytest.mark.parametrize("options", [{"per_class_boxes": True}, {"ties": True, "crowd": 0.3}])
def test_boxes_by_class_and_crowds_are_the_cpus(device: Place, options: dict[str, Any]) -> None:
    given = scene(2, **options).tensors(torch.float32, requires_grad=True)
    assert_same(numbers(sg.MAPLoss(K), device, *given), numbers(sg.MAPLoss(K), CPU, *given))


def test_windows_there_and_objects_here_go_together(device: Place) -> None:
    scores, boxes, targets = scene(3).tensors(torch.float32, requires_grad=True)
    there = [on(device, scores), on(device, boxes)]
    gradients = torch.autograd.grad(sg.MAPLoss(K)(*there, targets), there[0])
    assert_same([g.cpu() for g in gradients], numbers(sg.MAPLoss(K), CPU, scores, boxes, targets)[1:4])


@pytest.mark.parametrize("mask_there", [True, False])
def test_padded_batches_are_the_cpus(device: Place, mask_there: bool) -> None:
    random = np.random.default_rng(4)
    batch = random_batch(random, windows=12, images=1, K=K, objects=5)
    scores = torch.tensor(random.normal(size=(2, 12, K)), dtype=torch.float32, requires_grad=True)
    boxes = torch.tensor(np.stack([batch.boxes[0]] * 2))
    targets = [batch.tensors()[2][0]] * 2
    mask = torch.arange(12) < torch.tensor([[12], [7]])
    mask = mask.to(device) if mask_there else mask
    found = on(device, scores)
    gradient = torch.autograd.grad(sg.MAPLoss(K)(found, on(device, boxes), targets, mask), found)[0]
    assert_same([gradient.cpu()], [numbers(sg.MAPLoss(K), CPU, scores, boxes, targets, mask.cpu())[1]])


def test_l4_is_the_cpus_but_for_the_order_of_its_sum(device: Place) -> None:
    given = scene(5).tensors(torch.float64, requires_grad=True)
    for floor in (None, -2.0):
        found, expected = (numbers(sg.MAPLoss(K, l4=1e-3, score_floor=floor), place, *given) for place in (device, CPU))
        terms = sum(s.numel() for s in given[0])
        bound = terms * 2.0**-52 * (float(expected[0]) + 1e-3 * sum(float(s.detach().pow(4).sum()) for s in given[0]))
        assert abs(float(found[0]) - float(expected[0])) <= bound
        for f, e in zip(found[1:4], expected[1:4], strict=True):
            torch.testing.assert_close(f, e, rtol=8 * 2.0**-52, atol=1e-15)


@pytest.mark.parametrize("with_boxes", [True, False])
def test_overlaps_and_neighbours_in_place_of_boxes_are_the_cpus(device: Place, with_boxes: bool) -> None:
    batch = any_tables(np.random.default_rng(6), scene(6))
    scores, boxes, targets = batch.tensors(torch.float32, requires_grad=True)
    more = {"overlaps": list(map(torch.tensor, batch.overlaps)), "neighbours": list(map(torch.tensor, batch.likeness))}
    given = (scores, boxes if with_boxes else None, targets)
    results = []
    for place in (device, CPU):
        own = [None if part is None else on(place, part) for part in given]
        loss = sg.MAPLoss(K)(*own, **on(place, more))
        results.append([loss.detach().cpu(), *(g.cpu() for g in torch.autograd.grad(loss, own[0]))])
    assert_same(*results)


def test_masks_and_poses_are_the_cpus(device: Place) -> None:
    random = torch.Generator().manual_seed(7)
    masks = torch.rand(8, 12, 12, generator=random) < 0.5
    poses = torch.cat([30 * torch.rand(8, 5, 2, generator=random), torch.ones(8, 5, 1)], dim=2)
    scores = [torch.randn(8, 1, generator=random, requires_grad=True)]
    corners = torch.tensor([[0.0, 0.0, 30.0, 30.0]]).repeat(3, 1)
    target = {"boxes": corners, "labels": torch.zeros(3, dtype=torch.long)}
    for overlap, key, shapes in (
        (sg.overlaps.Masks(), "masks", masks),
        (sg.overlaps.Keypoints([0.1] * 5), "keypoints", poses),
    ):
        loss_fn = sg.MAPLoss(1, overlap=overlap, match_threshold=0.3)
        targets, more = [target | {key: shapes[:3]}], {key: [shapes]}
        results = []
        for place in (device, CPU):
            own = on(place, scores)
            loss = loss_fn(own, None, on(place, targets), **on(place, more))
            results.append([loss.detach().cpu(), torch.autograd.grad(loss, own)[0].cpu()])
        assert_same(*results)
        assert overlap(on(device, shapes), on(device, targets[0])).equal(overlap(shapes, targets[0]))


def test_ragged_lists_are_the_cpus(device: Place) -> None:
    random = np.random.default_rng(8)
    batch = random_batch(random, windows=60, images=1, K=K, objects=8)
    _, (boxes,), targets = batch.tensors()
    classes, images = torch.tensor(random.integers(K, size=60)), torch.zeros(60, dtype=torch.long)
    scores = torch.tensor(random.normal(size=60), dtype=torch.float32, requires_grad=True)

    def loss_fn(scores: Tensor, *rest: Any) -> Tensor:
        return ragged_map_loss(sg.MAPLoss(K), ScoredPairs(scores, *rest[:3]), rest[3])

    given = (scores, boxes, images, classes, targets)
    assert_same(numbers(loss_fn, device, *given), numbers(loss_fn, CPU, *given))


def test_functions_of_a_batch_are_the_cpus(device: Place) -> None:
    given = scene(9).tensors(torch.float32)
    for function in (sg.mean_average_precision, sg.map_pseudogradient, sg.map_steps):
        there, here = function(*on(device, given)), function(*given)
        if function is sg.map_pseudogradient:
            assert {t.device.type for t in there} == {device.type}
            assert_same([t.cpu() for t in there], here)
        elif function is sg.map_steps:
            for name in ("up_at", "up_value", "down_at", "down_value"):
                assert_same([t.cpu() for t in getattr(there, name)], getattr(here, name))
        else:
            assert (there.map, there.ap.tolist()) == (here.map, here.ap.tolist())
    boxes, scores = given[1][0], given[0][0][:, 0]
    for found, expected in zip(sg.nms(*on(device, [boxes, scores]), 0.3), sg.nms(boxes, scores, 0.3), strict=True):
        assert found.device.type == device.type
        assert found.cpu().equal(expected)


def test_a_large_batch_in_chunks_is_the_cpus(device: Place) -> None:
    _, boxes, targets = scene(10).tensors()
    gradients = []
    for place in (device, CPU):
        rows = [torch.linspace(-1, 1, len(b) * 2).reshape(-1, 2).double().to(place) for b in boxes]
        weight = torch.tensor([[0.5, -0.25, 1.0], [0.125, 1.0, -0.5]], dtype=torch.float64).to(place).requires_grad_()
        there = on(place, boxes)
        sg.large_batch(
            lambda i, rows=rows, w=weight: [rows[i] @ w], range(3), lambda s, b=there: sg.MAPLoss(K)(s, b, targets)
        )
        assert weight.grad is not None
        gradients.append(weight.grad.cpu())
    # a sum of products of each row, in an order that is the device's own
    torch.testing.assert_close(*gradients, rtol=0, atol=sum(map(len, boxes)) * 2.0**-50)


RANKING: list[Any] = [
    sg.APLoss(),
    sg.APLoss(log=True, balance="query", reduction="none"),
    sg.NDCGLoss(),
    sg.ranking.AUCLoss(estimator="radius"),
    sg.ranking.MRRLoss(),
    sg.ranking.PrecisionAtKLoss(3),
    sg.ranking.RecallAtKLoss(3, reduction="sum"),
    sg.ranking.SpearmanLoss(),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("loss_fn", RANKING, ids=lambda loss_fn: type(loss_fn).__name__)
def test_ranking_losses_are_the_cpus(device: Place, loss_fn: Any, dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(11)
    scores = torch.randn(4, 8, generator=random).to(dtype).requires_grad_()
    relevance = torch.randint(0, 3, (4, 8), generator=random)
    mask = torch.arange(8) < torch.tensor([[8], [5], [8], [3]])
    query = torch.arange(4).repeat_interleave(8)
    forms: list[tuple[Any, ...]] = [
        (scores, relevance),
        (scores, relevance, None, mask),
        (scores.detach().flatten().requires_grad_(), relevance.flatten(), query),
        ([row.detach().requires_grad_() for row in scores], list(relevance)),
    ]
    for form in forms:
        for reduce in (True,) if loss_fn.reduction != "none" else (False,):
            assert_same(ranked(loss_fn, device, form, reduce), ranked(loss_fn, CPU, form, reduce))


def ranked(loss_fn: Any, place: Place, form: tuple[Any, ...], whole: bool) -> list[Any]:
    """The losses and the gradients, exactly those of `sum` and `none`, in which nothing is added up in an order of its own."""
    scores, *rest = (None if part is None else on(place, part) for part in form)
    losses = loss_fn(scores, *rest)
    leaves = scores if isinstance(scores, list) else [scores]
    gradients = torch.autograd.grad(losses.sum(), leaves)
    assert losses.device == leaves[0].device
    shown = [losses.detach().cpu()] if not whole else []  # a sum is as long as the order of its terms
    return [*shown, *(g.cpu() for g in gradients), torch.as_tensor(loss_fn.metrics["per_query"])]
