"""What holds for every ranking loss, whatever the list."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stepgrad.engine.balance import balanced
from tests.losses.ranking.cases import LOSSES, Case, gradient_of

each_loss = pytest.mark.parametrize("case", LOSSES.values(), ids=LOSSES.keys())
relevances = st.lists(st.integers(0, 4), min_size=1, max_size=30)
seeds = st.integers(0, 2**32 - 1)


@each_loss
@given(relevance=relevances, seed=seeds)
@settings(max_examples=40, deadline=None)
def test_gradient_follows_a_permutation_of_documents(case: Case, relevance: list[int], seed: int) -> None:
    generator = np.random.default_rng(seed)
    scores, labels = generator.permutation(len(relevance)) / 4.0, np.array(relevance)  # distinct: index decides nothing
    shuffle = generator.permutation(len(labels))
    for estimator in ("mee", "radius"):
        loss = case.make(5, estimator=estimator, radius=0.6)
        found = gradient_of(loss, scores, labels)
        moved = gradient_of(loss, scores[shuffle], labels[shuffle])
        np.testing.assert_allclose(moved, found[shuffle], rtol=1e-11, atol=1e-13)


@each_loss
@given(relevance=relevances, seed=seeds)
@settings(max_examples=40, deadline=None)
def test_value_unchanged_by_increasing_map_of_scores(case: Case, relevance: list[int], seed: int) -> None:
    scores = torch.from_numpy(np.random.default_rng(seed).integers(-20, 20, len(relevance)) / 4.0)
    labels, loss = torch.tensor(relevance), case.make(5)
    assert loss(scores, labels) == loss(torch.exp(scores), labels) == loss(3.0 * scores - 7.0, labels)


@each_loss
@given(relevance=relevances, seed=seeds)
@settings(max_examples=40, deadline=None)
def test_balanced_pushes_of_a_query_sum_to_zero(case: Case, relevance: list[int], seed: int) -> None:
    scores = np.random.default_rng(seed).normal(size=len(relevance))
    found = gradient_of(case.make(5, balance="query"), scores, np.array(relevance))
    assert abs(found.sum()) <= 1e-12 * max(np.abs(found).sum(), 1.0)


@each_loss
@given(relevance=st.integers(0, 4), n=st.integers(1, 20), seed=seeds)
@settings(max_examples=25, deadline=None)
def test_no_gradient_where_all_relevances_are_equal(case: Case, relevance: int, n: int, seed: int) -> None:
    scores = np.random.default_rng(seed).normal(size=n)
    for estimator in ("mee", "sde", "radius"):
        found = gradient_of(case.make(5, estimator=estimator, balance="none"), scores, np.full(n, relevance))
        assert not found.any()


@each_loss
def test_following_the_gradient_from_a_random_list_improves_the_metric(case: Case) -> None:
    generator = np.random.default_rng(7)
    scores = torch.tensor(generator.normal(size=40), requires_grad=True)
    relevance = torch.tensor(generator.integers(0, 5, 40) * (generator.random(40) < 0.5))
    loss = case.make(10)
    optimiser = torch.optim.Adam([scores], lr=0.05)
    start = loss(scores, relevance).item()
    for _ in range(150):
        optimiser.zero_grad()
        loss(scores, relevance).backward()
        optimiser.step()
    assert loss(scores, relevance).item() < 0.5 * start


@each_loss
@pytest.mark.parametrize("eps", [0.01, 0.5])
def test_the_gradient_of_the_log_is_that_of_the_metric_over_its_value(case: Case, eps: float) -> None:
    if case.make(3).lowest < 0.0:
        return  # no logarithm of a metric that can be negative
    rng = np.random.default_rng(6)
    scores, labels, query = rng.normal(size=24), rng.integers(0, 3, 24), torch.arange(24) // 6
    plain, logged = case.make(3, reduction="none"), case.make(3, log=True, eps=eps, reduction="none")
    found = gradient_of(logged, scores, labels, query)
    expected = gradient_of(plain, scores, labels, query)
    value = np.nan_to_num(plain.metrics["per_query"])[query]
    assert expected.any()
    np.testing.assert_allclose(found, expected / (value + eps), rtol=1e-12)
    losses = logged(torch.tensor(scores), torch.tensor(labels), query).numpy()
    counted = np.isfinite(plain.metrics["per_query"])
    np.testing.assert_allclose(losses, np.where(counted, -np.log(value[::6] + eps), 0.0), rtol=1e-12)


@each_loss
@pytest.mark.parametrize("estimator", ["mee", "radius"])
def test_pushes_of_a_query_are_balanced_as_those_of_a_class_are(case: Case, estimator: str) -> None:
    rng = np.random.default_rng(7)
    scores, labels, query = rng.normal(size=40), rng.integers(0, 3, 40), np.arange(40) // 8
    plain, mended = (
        gradient_of(
            case.make(3, balance=balance, estimator=estimator, reduction="none"), scores, labels, torch.tensor(query)
        )
        for balance in ("none", "query")
    )
    expected = np.concatenate([balanced(plain[query == q]) for q in range(5)])
    np.testing.assert_allclose(mended, expected, rtol=1e-12, atol=1e-15)
