"""A loss that is started early is the loss of the call itself."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch

import stepgrad as sg
from stepgrad.errors import InputError, LikelyMistakeWarning
from stepgrad.losses.started import beside
from tests.accelerators.test_losses import LOSSES, K, assert_same, scene

ALONE = [name for name in LOSSES if name != "several processes"]


def results(loss_fn: Any, given: Any, started: bool) -> list[Any]:
    scores, boxes, targets = given
    leaves = [s.detach().requires_grad_() for s in scores]
    loss = loss_fn.start(leaves, boxes, targets).finish() if started else loss_fn(leaves, boxes, targets)
    gradients = torch.autograd.grad(loss, leaves)
    reported = [torch.as_tensor(v) for v in loss_fn.metrics.values() if not isinstance(v, str)]
    return [loss.detach(), *gradients, *reported]


@pytest.mark.parametrize("name", ALONE)
def test_it_is_the_loss_of_the_call_itself(name: str) -> None:
    given = scene(21).tensors(torch.float32)
    assert_same(results(LOSSES[name](), given, True), results(LOSSES[name](), given, False))


@pytest.mark.parametrize("threads", [1, 2])
def test_the_thread_takes_as_many_threads_as_the_caller_would(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        started = sg.MAPLoss(K).start(*scene(22).tensors(torch.float32, requires_grad=True))
        assert started.threads == threads
        started.finish()
    finally:
        torch.set_num_threads(before)


def test_several_may_be_on_their_way_and_end_in_any_order() -> None:
    scenes = [scene(seed).tensors(torch.float32, requires_grad=True) for seed in (23, 24, 25)]
    losses = [sg.MAPLoss(K) for _ in scenes]
    started = [loss_fn.start(*given) for loss_fn, given in zip(losses, scenes, strict=True)]
    found = {i: started[i].finish() for i in (2, 0, 1)}
    for i, given in enumerate(scenes):
        assert float(found[i].detach()) == float(sg.MAPLoss(K)(*given).detach())
        assert losses[i].metrics["map"] == float(sg.mean_average_precision(*given).map)


def test_padded_batches_and_overlaps_can_be_started() -> None:
    random = np.random.default_rng(26)
    scores = torch.tensor(random.normal(size=(2, 9, K)), dtype=torch.float32)
    low = torch.tensor(random.integers(0, 20, (2, 9, 2))).float()
    boxes, mask = torch.cat([low, low + 9], dim=2), torch.arange(9) < torch.tensor([[9], [5]])
    targets = [{"boxes": b[:2], "labels": torch.tensor([0, 1])} for b in boxes]
    both = []
    for started in (False, True):
        leaf, loss_fn = scores.clone().requires_grad_(), sg.MAPLoss(K)
        call = leaf, boxes, targets, mask
        loss = loss_fn.start(*call).finish() if started else loss_fn(*call)
        both.append([loss.detach(), *torch.autograd.grad(loss, leaf)])
    assert_same(*both)


def test_bad_input_is_an_error_and_likely_mistakes_are_told() -> None:
    scores, boxes, targets = scene(27).tensors(torch.float32, requires_grad=True)
    with pytest.raises(InputError, match="expected scores of shape"):
        sg.MAPLoss(K + 1).start(scores, boxes, targets).finish()
    tiny = [b / 1000 for b in boxes]
    with pytest.warns(LikelyMistakeWarning):
        expected = sg.MAPLoss(K)(scores, tiny, targets)
    with pytest.warns(LikelyMistakeWarning):
        assert torch.equal(sg.MAPLoss(K).start(scores, tiny, targets).finish(), expected)


def test_without_a_graph_there_is_a_value_only() -> None:
    scores, boxes, targets = scene(28).tensors(torch.float32, requires_grad=True)
    with torch.no_grad():
        loss = sg.MAPLoss(K).start(scores, boxes, targets).finish()
    assert not loss.requires_grad
    assert float(loss) == float(sg.MAPLoss(K)(scores, boxes, targets).detach())


def test_work_beside_runs_on_another_thread_and_its_errors_come_back() -> None:
    assert beside(threading.get_ident).result() != threading.get_ident()

    def fail() -> None:
        raise KeyError("gone")

    with pytest.raises(KeyError, match="gone"):
        beside(fail).result()
