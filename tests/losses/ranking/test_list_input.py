"""A list with one tensor per query is those queries with their ids."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import stepgrad as sg
from stepgrad.errors import InputError
from tests.losses.ranking.cases import LOSSES

SIZES = [4, 0, 1, 6]
QUERY = torch.repeat_interleave(torch.arange(len(SIZES)), torch.tensor(SIZES))


def documents() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(len(QUERY), generator=generator, dtype=torch.float64)
    return scores, torch.randint(0, 3, (len(QUERY),), generator=generator)


@pytest.mark.parametrize("name", LOSSES)
def test_lists_have_the_loss_and_the_gradient_of_queries_with_ids(name: str) -> None:
    scores, relevance = documents()
    loss_fn = LOSSES[name].make(3)
    with_ids, in_lists = (scores.clone().requires_grad_() for _ in range(2))
    loss = loss_fn(with_ids, relevance, QUERY)
    loss.backward()
    same = loss_fn(in_lists.split(SIZES), relevance.split(SIZES))
    same.backward()
    assert same.item() == loss.item()
    assert torch.equal(in_lists.grad, with_ids.grad)
    assert loss_fn.metrics["queries"].tolist() == [0, 1, 2, 3]


def test_a_query_without_documents_keeps_its_place() -> None:
    scores, relevance = documents()
    each = sg.APLoss(reduction="none", empty="one")(scores.split(SIZES), relevance.split(SIZES))
    assert each.shape == (4,)
    assert each[1] == 0.0


def test_steps_of_lists_are_those_of_the_documents_one_after_the_other() -> None:
    scores, relevance = documents()
    steps = sg.APLoss().steps(scores.split(SIZES), relevance.split(SIZES))
    assert torch.equal(steps.up_at, sg.APLoss().steps(scores, relevance, QUERY).up_at)


def test_no_queries_at_all_are_a_zero_on_the_graph() -> None:
    loss = sg.NDCGLoss()([], [])
    loss.backward()
    assert loss.item() == 0.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([torch.zeros(3)], torch.zeros(3)), "relevance as a list of 1 tensors.* got Tensor"),
        (([torch.zeros(3)], [torch.zeros(3)] * 2), "list of 1 tensors.* got 2"),
        (([torch.zeros(3), torch.zeros(2)], [torch.zeros(3), torch.zeros(3)]), r"query 1: .* got \(2,\) and \(3,\)"),
        (([torch.zeros(2, 3)], [torch.zeros(2, 3)]), r"query 0: .*\(documents,\)"),
        (([[1.0, 2.0]], [[0, 1]]), "query 0: .* got list and list"),
        (([torch.zeros(3)], [torch.zeros(3)], torch.zeros(3, dtype=torch.int64)), "no query and no mask"),
        (([torch.zeros(3).long()], [torch.zeros(3)]), "floating-point scores"),
    ],
)
def test_a_wrong_list_is_answered_by_what_was_expected(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        sg.APLoss()(*arguments)


def test_ndcg_starts_from_the_settings_that_the_page_recommends() -> None:
    scores, relevance = documents()
    gradients = []
    for options in ({}, {"estimator": "radius", "radius": 1.0, "balance": "query"}):
        leaf = scores.clone().requires_grad_()
        sg.NDCGLoss(k=3, **options)(leaf, relevance).backward()
        gradients.append(leaf.grad)
    assert torch.equal(*gradients)
