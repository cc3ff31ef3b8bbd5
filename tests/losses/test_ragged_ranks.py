"""Candidates spread over processes have the loss, metrics and gradients of all of them in one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import stepgrad as sg
from stepgrad.errors import InputError, NonFiniteError
from stepgrad.losses.distributed import DistributedMAPLoss
from stepgrad.losses.ragged import ScoredPairs, ragged_map_loss
from stepgrad.processes import RankError
from tests.losses.test_ragged import K, scene
from tests.losses.threads_as_ranks import threads

IMAGES = 5
OPTIONS = [
    {"radius": 0.7, "balance": "class+scale", "clip": 0.05, "l4": 1e-3},
    {"protocol": "coco", "nms_threshold": None, "absent_classes": "skip"},
]
Shard = tuple[ScoredPairs, list[dict[str, Tensor]]]


def shard(seed: int, first: int, end: int, dtype: torch.dtype = torch.float64) -> Shard:
    """Some images of a scene, about half of their pairs candidates, in an order of no meaning."""
    scores, boxes, targets = scene(seed, IMAGES)
    g = torch.Generator().manual_seed(seed)
    taken = [torch.rand(s.shape, generator=g) < 0.5 for s in scores]
    ranges = range(first, end)
    none = torch.zeros(0, dtype=torch.long)
    pairs = ScoredPairs(
        torch.cat(
            [torch.zeros(0, dtype=dtype), *(scores[i][taken[i]].detach().to(dtype) for i in ranges)]
        ).requires_grad_(),
        torch.cat([torch.zeros(0, 4).double(), *(boxes[i][taken[i]] for i in ranges)]),
        torch.cat([none, *(torch.full((int(taken[i].sum()),), i - first) for i in ranges)]),
        torch.cat([none, *(torch.where(taken[i])[1] for i in ranges)]),
    )
    targets[1]["iscrowd"] = torch.tensor([True, False, False, False])
    return pairs, targets[first:end]


def loss_of(loss_fn: Any, pairs: ScoredPairs, targets: list[dict[str, Tensor]]) -> tuple[float, Tensor, dict[str, Any]]:
    loss = ragged_map_loss(loss_fn, pairs, targets)
    (gradient,) = torch.autograd.grad(loss, pairs.scores)
    return loss.item(), gradient, loss_fn.metrics


@pytest.mark.parametrize("options", OPTIONS, ids=["voc12", "coco"])
@pytest.mark.parametrize("cuts", [(0, 2, 5), (0, 3, 3, 5)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_processes_give_the_joined_list(
    options: dict[str, Any], cuts: tuple[int, ...], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    value, gradient, metrics = loss_of(sg.MAPLoss(K, **options), *shard(0, 0, IMAGES, dtype))

    def work(rank: int) -> tuple[float, Tensor, dict[str, Any]]:
        loss_fn = DistributedMAPLoss(K, gradients="summed", **options)
        return loss_of(loss_fn, *shard(0, cuts[rank], cuts[rank + 1], dtype))

    found = threads(len(cuts) - 1, monkeypatch).run(work)
    assert torch.equal(torch.cat([own for _, own, _ in found]), gradient)
    for own_value, _, own_metrics in found:
        assert own_value == pytest.approx(value, rel=1e-6)  # the sum of scores^4 is added up in another order
        assert own_metrics["map"] == metrics["map"]
        np.testing.assert_array_equal(own_metrics["ap"], metrics["ap"])
        assert {k: own_metrics[k] for k in ("kept", "objects", "candidates", "nonzero")} == {
            k: metrics[k] for k in ("kept", "objects", "candidates", "nonzero")
        }


def given_shard(first: int, end: int) -> Shard:
    """The same with overlaps and neighbours given, none of which is that of the boxes."""
    pairs, targets = shard(5, first, end)
    counts = [int((pairs.images == i).sum()) for i in range(end - first)]
    drawn = [torch.Generator().manual_seed(first + i) for i in range(end - first)]
    overlaps = [torch.rand(n, 4, generator=g, dtype=torch.float64) for n, g in zip(counts, drawn, strict=True)]
    near = [(torch.rand(n, n, generator=g) < 0.1).triu(1).nonzero() for n, g in zip(counts, drawn, strict=True)]
    return replace(pairs, overlaps=overlaps, neighbours=near), targets


def test_processes_give_the_joined_list_of_given_overlaps_and_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, targets = given_shard(0, IMAGES)
    value, gradient, metrics = loss_of(sg.MAPLoss(K), whole, targets)
    by_boxes = loss_of(sg.MAPLoss(K), replace(whole, neighbours=None), targets)
    assert by_boxes[2]["kept"] != metrics["kept"]
    cuts = (0, 2, IMAGES)
    found = threads(2, monkeypatch).run(
        lambda rank: loss_of(DistributedMAPLoss(K, gradients="summed"), *given_shard(cuts[rank], cuts[rank + 1]))
    )
    assert torch.equal(torch.cat([own for _, own, _ in found]), gradient)
    assert [own[0] for own in found] == [value] * 2


def test_gradients_to_be_averaged_are_as_many_times_as_large(monkeypatch: pytest.MonkeyPatch) -> None:
    _, gradient, _ = loss_of(sg.MAPLoss(K), *shard(1, 0, IMAGES))
    found = threads(2, monkeypatch).run(
        lambda rank: loss_of(DistributedMAPLoss(K), *shard(1, 2 * rank, (2, IMAGES)[rank]))
    )
    assert torch.equal(torch.cat([own for _, own, _ in found]), 2 * gradient)


METRICS: list[dict[str, Any]] = [
    {"metric": "cost@threshold=0.25,miss=3"},  # which classes without objects have, too
    {"metric": "miss_rate"},
    {"metric": "f1", "class_weights": [1.0 + c for c in range(K)]},
    {"metric": "ap@area=0:200", "protocol": "coco", "match_threshold": 0.5},
]


@pytest.mark.parametrize("options", METRICS, ids=lambda o: o["metric"])
def test_processes_give_the_joined_list_of_other_metrics(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def part(first: int, end: int) -> Shard:
        pairs, targets = shard(3, first, end)
        grid = torch.tensor([30.0, 60.0, 90.0, 120.0])
        areas = [(first + i + 1) * grid for i in range(len(targets))]  # not the boxes'
        return pairs, [{**target, "area": area} for target, area in zip(targets, areas, strict=True)]

    value, gradient, metrics = loss_of(sg.DetectionLoss(K, **options), *part(0, IMAGES))
    assert gradient.any()

    def work(rank: int) -> tuple[float, Tensor, dict[str, Any]]:
        cuts = (0, 2, IMAGES)
        loss_fn = sg.DistributedDetectionLoss(K, gradients="summed", **options)
        return loss_of(loss_fn, *part(cuts[rank], cuts[rank + 1]))

    found = threads(2, monkeypatch).run(work)
    assert torch.equal(torch.cat([own for _, own, _ in found]), gradient)
    for own_value, _, own_metrics in found:
        assert own_value == value
        np.testing.assert_array_equal(own_metrics["by_class"], metrics["by_class"])


def test_alone_it_is_the_loss_of_its_own_candidates() -> None:
    expected, found = (loss_of(kind(K), *shard(2, 0, IMAGES)) for kind in (sg.MAPLoss, DistributedMAPLoss))
    assert found[0] == expected[0]
    assert torch.equal(found[1], expected[1])


def test_bad_candidates_on_one_process_end_the_call_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(rank: int) -> type[Exception] | None:
        pairs, targets = shard(0, 2 * rank, 2 * rank + 2)
        if rank == 1:
            pairs.scores.data[0] = torch.nan
        try:
            ragged_map_loss(DistributedMAPLoss(K), pairs, targets)
        except Exception as error:
            return type(error)
        return None

    assert threads(2, monkeypatch).run(work) == [RankError, NonFiniteError]


def test_settings_that_differ_are_refused_by_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(rank: int) -> str:
        with pytest.raises(InputError, match="same settings") as caught:
            ragged_map_loss(DistributedMAPLoss(K, radius=1.0 + rank), *shard(0, 2 * rank, 2 * rank + 2))
        return str(caught.value)

    first, second = threads(2, monkeypatch).run(work)
    assert first == second
