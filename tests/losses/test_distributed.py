"""DistributedMAPLoss on several gloo processes equals MAPLoss on the joined batch in one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import stepgrad as sg
from stepgrad.errors import ConfigError
from stepgrad.losses.distributed import DistributedMAPLoss, average_gradients
from tests.detector.training.rank_jobs import CASES, WAYS, Case, all_jobs, seeded
from tests.detector.training.ranks import run_ranks_once
from tests.detector.training.windows import CLASSES, made_windows, small_model

Ranks = list[dict[str, Any]]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    return run_ranks_once(all_jobs, 3, tmp_path_factory)


def in_one_process(case: Case) -> tuple[Tensor, list[Tensor | None], dict[str, Any]]:
    scores, boxes, targets = case.joined()
    leaves = [s.clone().requires_grad_(case.gradients) for s in scores]
    loss_fn = sg.MAPLoss(case.K, **case.options)
    loss = loss_fn(leaves, boxes, targets)
    if case.gradients:
        loss.backward()
    return loss.detach(), [s.grad for s in leaves], loss_fn.metrics


def assert_same_as_one_process(name: str, ranks: Ranks) -> None:
    loss, gradients, metrics = in_one_process(CASES[name])
    found = [g for rank in ranks for g in rank["gradients"]]
    assert len(found) == len(gradients)
    for mine, expected in zip(found, gradients, strict=True):
        assert (mine is None) == (expected is None)
        if mine is not None and expected is not None:
            torch.testing.assert_close(mine, expected, rtol=0, atol=0)
    for rank in ranks:
        torch.testing.assert_close(rank["loss"].double(), loss.double(), rtol=rounding_of_l4(CASES[name], loss), atol=0)
        assert rank["metrics"].keys() == metrics.keys()
        for key in ("map", "kept", "objects", "nonzero"):
            assert rank["metrics"][key] == metrics[key]
        torch.testing.assert_close(rank["metrics"]["ap"], metrics["ap"], rtol=0, atol=0, equal_nan=True)
        for key in ("positive_sum", "negative_sum"):
            assert rank["metrics"][key] == pytest.approx(metrics[key], rel=1e-12)


def rounding_of_l4(case: Case, loss: Tensor) -> float:
    """As many roundings as there are scores: s^4 is added up in another order, and every s^4 is positive."""
    scores = sum(s.numel() for s in case.joined()[0])
    return scores * torch.finfo(loss.dtype).eps if case.options.get("l4") else 0.0


@pytest.mark.parametrize("name", CASES)
def test_two_processes_give_the_joined_batch_bit_for_bit(name: str, ranks: Ranks) -> None:
    assert_same_as_one_process(name, [rank["two"][name] for rank in ranks[:2]])


@pytest.mark.parametrize("name", CASES)
def test_three_processes_the_second_without_images_give_it_too(name: str, ranks: Ranks) -> None:
    assert_same_as_one_process(name, [rank["three"][name] for rank in ranks])


def test_the_cases_are_not_trivial() -> None:
    for name in ("plain", "half", "boxes per class", "L4 and clip", "no NMS", "first rank empty"):
        _, gradients, metrics = in_one_process(CASES[name])
        assert 0 < metrics["map"] < 1
        assert any(g is not None and (g != 0).any() for g in gradients)


@pytest.mark.parametrize("way", [f"{way} {cut}" for way, cut in WAYS])
def test_twenty_steps_on_uneven_shards_train_like_one_process(way: str, ranks: Ranks) -> None:
    losses, parameters = train_in_one_process(chunks=way.startswith("chunks"), steps=20)
    for rank in ranks[:2]:
        found_losses, found = rank["training"][way]
        assert found_losses == pytest.approx(losses, abs=1e-10)
        for name, expected in parameters.items():
            torch.testing.assert_close(found[name], expected, rtol=1e-10, atol=1e-10)
    assert losses[-1] < losses[0] - 0.1


def train_in_one_process(chunks: bool, steps: int) -> tuple[list[float], dict[str, Tensor]]:
    """The reference: MAPLoss over all images in one graph."""
    windows = made_windows(7, dtype=torch.float64)
    model = small_model(0.4 if chunks else 0.0).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loss_fn, losses = sg.MAPLoss(CLASSES, l4=1e-4), []
    for step in range(steps):
        optimizer.zero_grad()
        scores = [seeded(model, f, 1000 * step + i) for i, f in enumerate(windows.features)]
        loss = loss_fn(scores, windows.boxes, windows.targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model.state_dict()


def test_bad_input_on_one_process_is_told_to_all(ranks: Ranks) -> None:
    (kind_0, text_0), (kind_1, text_1) = (rank["errors"]["nan on rank 1"] for rank in ranks[:2])
    assert (kind_0, kind_1) == ("RankError", "NonFiniteError")
    assert "scores[0, 0] is nan" in text_1
    assert text_0.startswith("Another process refused its part of the batch. rank 1: ")
    assert "scores[0, 0] is nan" in text_0


@pytest.mark.parametrize(
    ("what", "text"),
    [("dtypes", "rank 0: torch.float32, rank 1: torch.float64"), ("settings", "the same settings")],
)
def test_parts_that_do_not_fit_are_refused_on_all(what: str, text: str, ranks: Ranks) -> None:
    for rank in ranks[:2]:
        kind, message = rank["errors"][what]
        assert kind == "InputError"
        assert text in message


def test_a_refusal_leaves_the_processes_in_step(ranks: Ranks) -> None:
    assert [rank["errors"]["fine again"] for rank in ranks[:2]] == [("", "")] * 2


def test_missing_gradients_count_as_zero_unless_missing_everywhere(ranks: Ranks) -> None:
    for rank in ranks[:2]:
        both, one, none, double = rank["partial gradients"]
        assert both.tolist() == [1.5, 3.0]
        assert one.tolist() == [2.0, 4.0]
        assert none is None
        assert double.tolist() == [1.0, 1.0]
        assert double.dtype == torch.float64


def test_each_score_and_each_gradient_travels_once(ranks: Ranks) -> None:
    a, b = (rank["two"]["plain"] for rank in ranks[:2])
    K, classes = 3, (2, 1)
    numbers = a["windows"] * (K - classes[0]) + b["windows"] * classes[0]  # scores sent by rank 0, gradients sent by it
    boxes = a["windows"] * 4
    rest = a["traffic"].sent - 4 * (numbers + boxes)
    assert 0 < rest < 1500  # announcements, objects and AP
    assert a["traffic"].sent == b["traffic"].received
    assert a["traffic"].exchanges == 6  # announcements, and twice the sizes of what follows


def test_a_killed_process_ends_the_others_with_a_message(ranks: Ranks) -> None:
    assert "killed" not in ranks[1]
    kind, message = ranks[0]["killed"]
    assert kind == "RankError"
    assert "rank 0 of 2: announcing the batch failed" in message
    assert "stepgrad train --resume" in message


def test_a_process_that_comes_too_late_ends_the_others_with_a_message(ranks: Ranks) -> None:
    kind, message = ranks[0]["late"]
    assert kind == "RankError"
    assert "allow more than timeout=2 seconds" in message


def test_without_a_process_group_it_is_the_plain_loss() -> None:
    case = Case()
    loss, gradients, _ = in_one_process(case)
    scores, boxes, targets = case.joined()
    leaves = [s.clone().requires_grad_() for s in scores]
    found = DistributedMAPLoss(case.K)(leaves, boxes, targets)
    found.backward()
    assert torch.equal(found, loss)
    assert all(torch.equal(s.grad, g) for s, g in zip(leaves, gradients, strict=True))
    before = [s.grad.clone() for s in leaves]
    average_gradients(leaves)
    assert all(torch.equal(s.grad, g) for s, g in zip(leaves, before, strict=True))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gradients": "mean"}, "'averaged' or 'summed' but got 'mean'"),
        ({"timeout": 0}, "seconds > 0 but got 0"),
        ({"timeout": float("nan")}, "seconds > 0 but got nan"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DistributedMAPLoss(3, **options)
