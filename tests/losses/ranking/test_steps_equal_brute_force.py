"""Steps, pseudogradients and values of every ranking loss against the plain metric, evaluated between all breakpoints."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import stepgrad as sg
from tests.losses.ranking.cases import LOSSES, Case, List, gradient_of, random_list
from tests.oracles.ranking import all_nearest_steps, radius_slope

each_loss = pytest.mark.parametrize("case", LOSSES.values(), ids=LOSSES.keys())
CLOSE = {"rtol": 1e-11, "atol": 1e-12}


def lists_with_a_meaning(case: Case, count: int, seed: int) -> list[List]:
    generator, found = np.random.default_rng(seed), []
    while len(found) < count:
        made = random_list(generator)
        if np.isfinite(case.plain(*made)):
            found.append(made)
    return found


@each_loss
def test_steps_equal_brute_force(case: Case) -> None:
    for scores, relevance, k in lists_with_a_meaning(case, 500, seed=1):
        metric = case.of(relevance, k)
        found = case.make(k).steps(torch.tensor(scores), torch.tensor(relevance))
        mine = np.stack([found.up_at, found.up_value, found.down_at, found.down_value])
        np.testing.assert_allclose(mine, all_nearest_steps(metric, scores), **CLOSE)
        np.testing.assert_allclose(found.value.numpy(), [metric(scores)], **CLOSE)


@each_loss
def test_loss_is_one_minus_metric(case: Case) -> None:
    for scores, relevance, k in lists_with_a_meaning(case, 50, seed=2):
        loss = case.make(k)
        value = loss(torch.tensor(scores), torch.tensor(relevance))
        assert float(value) == pytest.approx(1.0 - case.plain(scores, relevance, k), abs=1e-12)
        assert loss.metrics[loss.name] == pytest.approx(1.0 - float(value), abs=1e-12)


@each_loss
@pytest.mark.parametrize("estimator", ["mee", "sde"])
def test_gradient_equals_general_pseudogradient(case: Case, estimator: str) -> None:
    for scores, relevance, k in lists_with_a_meaning(case, 25, seed=3):
        found = gradient_of(case.make(k, estimator=estimator, balance="none", min_step=0.25), scores, relevance)
        general = sg.pseudogradient(
            case.of(relevance, k),
            scores,
            estimator=estimator,
            min_step=0.25,
            vectorized=True,
            candidates=np.unique(scores),
            value_tolerance=1e-12,
        )
        np.testing.assert_allclose(-found, general, **CLOSE)


@each_loss
@pytest.mark.parametrize("radius", [0.5, 0.7, 1.0])  # on a grid of halves, two of them land on other scores
def test_radius_gradient_equals_definition(case: Case, radius: float) -> None:
    for scores, relevance, k in lists_with_a_meaning(case, 100, seed=4):
        found = gradient_of(case.make(k, estimator="radius", radius=radius, balance="none"), scores, relevance)
        np.testing.assert_allclose(-found, radius_slope(case.of(relevance, k), scores, radius), **CLOSE)


@each_loss
@pytest.mark.parametrize("estimator", ["mee", "radius"])
@pytest.mark.parametrize("log", [False, True])
def test_queries_do_not_feel_each_other(case: Case, estimator: str, log: bool) -> None:
    log = log and case is not LOSSES["spearman"]  # rho can be negative: no logarithm
    generator = np.random.default_rng(5)
    lists = [random_list(generator) for _ in range(30)]
    loss = case.make(4, estimator=estimator, reduction="none", log=log)
    alone = [gradient_of(loss, s, r) for s, r, _ in lists]
    values = [float(loss(torch.tensor(s), torch.tensor(r))[0]) for s, r, _ in lists]
    scores, relevance = (np.concatenate(column) for column in list(zip(*lists, strict=True))[:2])
    ids = np.repeat(np.arange(30) * 7 - 5, [len(s) for s, _, _ in lists])
    order = _keeping_each_query_in_order(generator.permutation(len(ids)), ids)
    together = gradient_of(loss, scores[order], relevance[order], torch.tensor(ids[order]))
    np.testing.assert_allclose(together, np.concatenate(alone)[order], **CLOSE)
    found = loss(torch.tensor(scores[order]), torch.tensor(relevance[order]), torch.tensor(ids[order]))
    np.testing.assert_allclose(found.numpy(), values, **CLOSE)
    assert loss.metrics["queries"].tolist() == sorted(set(ids.tolist()))


def _keeping_each_query_in_order(order: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """The queries mixed as in `order`, but each query's own documents as they were, for index decides ties."""
    mixed = order.copy()
    for query in np.unique(ids):
        mixed[ids[order] == query] = np.flatnonzero(ids == query)
    return mixed


@each_loss
def test_padded_rows_equal_single_queries(case: Case) -> None:
    generator = np.random.default_rng(6)
    lists = [random_list(generator) for _ in range(20)]
    scores, relevance, mask = np.full((20, 9), np.nan), np.full((20, 9), -1.0), np.zeros((20, 9), dtype=bool)
    loss = case.make(3, reduction="none")
    expected, values = np.zeros((20, 9)), []
    for row, (s, r, _) in enumerate(lists):
        where = np.sort(generator.permutation(9)[: len(s)])  # real documents anywhere; the rest is never looked at
        scores[row, where], relevance[row, where], mask[row, where] = s, r, True
        expected[row, where] = gradient_of(loss, s, r)
        values.append(float(loss(torch.tensor(s), torch.tensor(r))[0]))
    found = gradient_of(loss, scores, relevance, mask=torch.tensor(mask))
    np.testing.assert_allclose(found, expected, **CLOSE)
    np.testing.assert_allclose(
        loss(torch.tensor(scores), torch.tensor(relevance), mask=torch.tensor(mask)).numpy(), values, **CLOSE
    )


def test_tied_group_of_the_same_mean_gain_is_no_step() -> None:
    # discounts 1 at rank 1, 1/2 at rank 3 and 1/3 at rank 7: gains 0, 0, 4, 4, 4, 4 have the weighted mean 1
    scores, relevance = torch.tensor([2.0] * 6 + [1.0]), torch.tensor([0.0, 0.0, 4.0, 4.0, 4.0, 4.0, 1.0])
    steps = sg.NDCGLoss(gains="linear").steps(scores, relevance)
    assert steps.up_at[-1] == float("inf")
    assert sg.NDCGLoss(gains="exponential").steps(scores, relevance).up_at[-1] == 2.0
