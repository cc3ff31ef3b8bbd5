"""The comparison of rankers reads its data, picks settings without the test queries, and its common losses are right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from experiments import ranking, ranking_table
from experiments.ranking_data import Queries, read_split
from experiments.ranking_losses import approx_ndcg, list_net
from experiments.records import load_runs
from stepgrad.losses.ranking.metrics import ndcg


def made_queries(count: int, seed: int) -> Queries:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(count, 12, 3, generator=generator)
    relevance = (features[..., 0] > 0.8).float() * 2.0
    mask = torch.arange(12) < torch.randint(6, 13, (count, 1), generator=generator)
    return Queries(features * mask[..., None], relevance * mask, mask)


def test_svmlight_is_read_into_padded_queries(tmp_path: Path) -> None:
    file = tmp_path / "ltr/mslr-msn1-5k/msn1.fold1.train.5k.txt"
    file.parent.mkdir(parents=True)
    file.write_text("2 qid:1 1:3 3:0.5\n0 qid:1 2:1 # remark\n1 qid:8 1:-1 2:2 3:4\n")
    queries = read_split(tmp_path, "train")
    assert queries.relevance.tolist() == [[2, 0], [1, 0]]
    assert queries.mask.tolist() == [[True, True], [True, False]]
    assert queries.features.tolist() == [[[3, 0, 0.5], [0, 1, 0]], [[-1, 2, 4], [0, 0, 0]]]


def test_approx_ndcg_of_far_apart_scores_is_ndcg() -> None:
    queries = made_queries(5, seed=0)
    scores = torch.randn(5, 12, generator=torch.Generator().manual_seed(1))
    rows = zip(scores, queries.relevance, queries.mask, strict=True)
    expected = np.nanmean([ndcg(s[m].numpy(), r[m].numpy()) for s, r, m in rows])
    found = approx_ndcg(scores, queries.relevance, queries.mask, temperature=1e-5)
    assert found.item() == pytest.approx(1.0 - expected, abs=1e-3)


def test_list_net_is_the_entropy_of_its_target_where_scores_are_the_target() -> None:
    relevance, mask = torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([[True, True, False]])
    share = torch.tensor([0.25, 0.75])
    found = list_net(torch.log(torch.tensor([[1.0, 3.0, 9.0]])), relevance, mask)
    assert found.item() == pytest.approx(-(share * share.log()).sum().item(), rel=1e-5)


def test_every_method_learns_and_the_best_on_held_out_queries_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_each = list({(arm.method, arm.warm): arm for arm in ranking.arms()}.values())
    for name, value in (("EPOCHS", (1, 10)), ("RATES", (1e-2,)), ("SEEDS", 2), ("LEAVES", ()), ("FOLDS", 2)):
        monkeypatch.setattr(ranking, name, value)
    monkeypatch.setattr(ranking, "arms", lambda: one_each)
    monkeypatch.setattr(
        ranking, "read_split", lambda _, split: made_queries(*{"train": (32, 4), "test": (8, 5)}[split])
    )
    ranking.main(["--data", str(tmp_path), "--results", str(tmp_path)])
    file = tmp_path / "ranking.jsonl"
    for run in load_runs(file, "choose"):
        assert run["held_out"]["10"] > 0.6, run["arm"]  # 0.5 for an untrained one
    assert len(load_runs(file, "final")) == 2 * len({arm.method for arm in one_each})
    assert "| NDCGLoss |" in ranking_table.page(file)
