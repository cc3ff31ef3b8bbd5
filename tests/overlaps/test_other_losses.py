"""Overlaps in ragged lists and over several processes: what the one loss gives for the whole batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import stepgrad as sg
from stepgrad.losses.ragged import ScoredPairs, ragged_map_loss
from tests.losses.threads_as_ranks import threads
from tests.overlaps.tables import any_tables
from tests.scenes import Batch, over_seeds, random_batch


def batch_of(seed: int) -> Batch:
    rng = np.random.default_rng([seed, 80])
    return any_tables(rng, random_batch(rng, windows=24, images=4, K=3, objects=8, ties=bool(rng.integers(2))))


def whole(batch: Batch, near: bool = True) -> tuple[float, list[Any]]:
    scores, boxes, targets = batch.tensors(requires_grad=True)
    given = {"overlaps": batch.overlaps, **({"neighbours": batch.likeness} if near else {})}
    loss = sg.MAPLoss(3, "coco")(scores, boxes, targets, **given)
    loss.backward()
    return loss.item(), [s.grad.tolist() for s in scores if s.grad is not None]


@over_seeds(4, 40)
def test_all_pairs_as_ragged_lists_are_the_batch(seed: int) -> None:
    batch = batch_of(seed)
    scores, boxes, targets = batch.tensors(requires_grad=True)
    K = 3
    flat = torch.cat([s.reshape(-1) for s in scores])
    pairs = ScoredPairs(
        scores=flat,
        boxes=torch.cat([b.repeat_interleave(K, 0) for b in boxes]),
        images=torch.cat([torch.full((K * len(s),), i) for i, s in enumerate(scores)]),
        classes=torch.cat([torch.arange(K).repeat(len(s)) for s in scores]),
        overlaps=[torch.tensor(table).repeat_interleave(K, 0) for table in batch.overlaps or []],
    )
    loss = ragged_map_loss(sg.MAPLoss(3, "coco"), pairs, targets)
    loss.backward()
    expected = whole(batch, near=False)
    assert loss.item() == expected[0]
    assert [s.grad.tolist() for s in scores if s.grad is not None] == expected[1]


@pytest.mark.parametrize("ragged", [False, True])
@over_seeds(3, 20)
def test_two_processes_give_the_joined_batch(seed: int, ragged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = batch_of(seed)
    parts = [slice(0, 1), slice(1, 4)] if seed % 2 else [slice(0, 4), slice(4, 4)]

    def one(rank: int) -> tuple[float, list[Any]]:
        part = replace(batch, **{name: getattr(batch, name)[parts[rank]] for name in ("scores", "boxes", "targets")})
        scores, boxes, targets = part.tensors(requires_grad=True)
        tables = (batch.overlaps or [])[parts[rank]]
        loss_fn = sg.DistributedMAPLoss(3, "coco", gradients="summed")
        if ragged:
            flat = torch.cat([torch.zeros(0, dtype=torch.float64), *(s.reshape(-1) for s in scores)])
            images = [torch.full((s.numel(),), i) for i, s in enumerate(scores)]
            classes = [torch.arange(3).repeat(len(s)) for s in scores]
            none = torch.zeros(0, dtype=torch.long)
            pairs = ScoredPairs(
                flat,
                torch.cat([torch.zeros(0, 4), *(b.repeat_interleave(3, 0) for b in boxes)]),
                torch.cat([none, *images]),
                torch.cat([none, *classes]),
                [torch.tensor(table).repeat_interleave(3, 0) for table in tables],
            )
            loss = loss_fn.of_pairs(pairs, targets)
        else:
            loss = loss_fn(scores, boxes, targets, overlaps=tables, neighbours=(batch.likeness or [])[parts[rank]])
        if scores:
            loss.backward()
        return loss.item(), [s.grad.tolist() for s in scores if s.grad is not None]

    found = threads(2, monkeypatch).run(one)
    expected = whole(batch, near=not ragged)
    assert [value for value, _ in found] == [expected[0]] * 2
    assert found[0][1] + found[1][1] == expected[1]


def test_processes_of_which_one_gives_boxes_and_one_overlaps_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = batch_of(0)

    def one(rank: int) -> Any:
        scores, boxes, targets = batch.tensors()
        return sg.DistributedMAPLoss(3)(scores, boxes, targets, **({"overlaps": batch.overlaps} if rank else {}))

    errors = threads(2, monkeypatch).run(one)  # whoever is first ends the other's waiting
    assert all(isinstance(error, Exception) for error in errors)
    assert any("the same settings" in str(error) for error in errors)
