"""The comparison of rankers reads its data, picks settings without the test queries, and its common losses are right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.ranking import dense_approx_ndcg, promises, render
from experiments import ranking, ranking_table
from experiments.ranking_data import Queries, read_svmlight, standardised
from experiments.ranking_losses import approx_ndcg, list_net, normalised
from experiments.results import save_runs
from stepgrad.losses.ranking.metrics import ndcg


def made_queries(count: int, seed: int) -> Queries:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(count, 12, 3, generator=generator)
    relevance = (features[..., 0] > 0.8).float() * 2.0
    mask = torch.arange(12) < torch.randint(6, 13, (count, 1), generator=generator)
    return Queries(features * mask[..., None], relevance * mask, mask)


def test_svmlight_is_read(tmp_path: Path) -> None:
    file = tmp_path / "made.txt"
    file.write_text("2 qid:1 1:3 3:0.5\n0 qid:1 2:1 # remark\n1 qid:8 1:-1 2:2 3:4\n")
    labels, queries, features = read_svmlight(file)
    assert labels.tolist() == [2, 0, 1]
    assert queries.tolist() == [1, 1, 8]
    assert features.tolist() == [[3, 0, 0.5], [0, 1, 0], [-1, 2, 4]]


def test_approx_ndcg_of_far_apart_scores_is_ndcg() -> None:
    queries = made_queries(5, seed=0)
    scores = torch.randn(5, 12, generator=torch.Generator().manual_seed(1))
    rows = zip(scores, queries.relevance, queries.mask, strict=True)
    expected = np.nanmean([ndcg(s[m].numpy(), r[m].numpy()) for s, r, m in rows])
    found = approx_ndcg(scores, queries.relevance, queries.mask, temperature=1e-5)
    assert found.item() == pytest.approx(1.0 - expected, abs=1e-3)
    first = int(queries.relevance.any(1).nonzero()[0])
    value = ndcg(scores[first].numpy(), queries.relevance[first].numpy())
    dense = dense_approx_ndcg(1e5 * scores[first], queries.relevance[first])
    assert dense.item() == pytest.approx(1.0 - value, abs=1e-3)


def test_list_net_is_least_where_scores_are_the_target() -> None:
    relevance, mask = torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([[True, True, False]])
    right, wrong = torch.log(torch.tensor([[1.0, 3.0, 9.0]])), torch.zeros(1, 3)
    assert list_net(right, relevance, mask) < list_net(wrong, relevance, mask)
    share = torch.tensor([0.25, 0.75])
    assert list_net(right, relevance, mask).item() == pytest.approx(-(share * share.log()).sum().item(), rel=1e-5)


def test_normalised_loss_does_not_feel_scale_and_shift() -> None:
    queries = made_queries(4, seed=2)
    scores = torch.randn(4, 12, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    loss = normalised(approx_ndcg)
    moved = loss(5.0 * scores - 3.0, queries.relevance.double(), queries.mask)
    expected = loss(scores, queries.relevance.double(), queries.mask)
    assert moved.item() == pytest.approx(expected.item(), rel=1e-5)  # 1e-6 is added to the variance


def test_every_method_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "EPOCHS", (1, 10))
    trainer = ranking.Trainer(made_queries(16, seed=4), made_queries(8, seed=5))
    one_each = {(arm.method, arm.warm): arm for arm in ranking.arms()}
    for arm in one_each.values():
        found = trainer.run(arm, rate=1e-2, seed=0)
        assert np.nanmean(found[10]) > 0.6, arm.name  # 0.5 for an untrained one


def test_features_are_scaled_by_the_training_documents() -> None:
    train, other = standardised(made_queries(30, seed=6), made_queries(3, seed=7))
    assert train.features[train.mask].mean(0).abs().max() < 0.05
    assert not other.features[~other.mask].any()


def test_table_picks_the_best_held_out_settings(tmp_path: Path) -> None:
    file = tmp_path / "ranking.jsonl"
    for method, arm, held_out in (("NDCGLoss", "a", 0.5), ("NDCGLoss", "b", 0.6), ("ListNet", "c", 0.55)):
        save_runs(file, "choose", {"method": method, "arm": arm, "rate": 0.1, "held_out": {"5": 0.1, "9": held_out}})
    for method, value in (("NDCGLoss", 0.5), ("ListNet", 0.25)):
        for seed in range(2):
            save_runs(file, "final", {"method": method, "seed": seed, "ndcg": [value, None, value + 0.1 * seed]})
    page = ranking_table.render(file, tmp_path / "ranking.md")
    assert "| NDCGLoss | b, rate 0.1, 9 epochs | 0.6000 | 0.5250 (0.0354) |" in page
    assert "+0.2500 (p = " in page


def test_benchmark_says_which_promises_are_kept() -> None:
    fast, slow = {"median": 0.01}, {"median": 0.06}
    results = {
        "command": "c",
        "machine": {},
        "long": {"numpy.argsort, stable": fast, "NDCGLoss mee": slow},
        "many": {"torch.sort, stable": fast, "NDCGLoss radius": {"median": 0.05}},
        "dense": {"NDCGLoss": fast, "ApproxNDCG, all pairs": {"median": 2.0}},
        "memory": {"20000": 100.0, "200000": 100.0, "2000000": 100.0},
    }
    assert [kept for _, _, kept in promises(results)] == [False, True, True, True]
    assert "**no**" in render(results)
