"""Train a linear ranker for NDCG@10 itself: python examples/train_ranker.py

Queries have 20 to 60 documents with ten features. Two features show the relevance. A third is large noise that depends on
the query only. It cannot change any order within a query, but it hurts a model that predicts the relevance of each document.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import stepgrad as sg


def make_queries(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Features (n, 10), relevance 0 to 4 (n,) and query ids (n,), of all queries one after the other."""
    sizes = torch.randint(20, 61, (count,), generator=generator)
    query = torch.repeat_interleave(torch.arange(count), sizes)
    features = torch.randn(len(query), 10, generator=generator)
    quality = features[:, 0] + 0.5 * features[:, 1] + 0.5 * torch.randn(len(query), generator=generator)
    features[:, 2] = 5.0 * torch.randn(count, generator=generator)[query]
    relevance = torch.bucketize(quality, torch.tensor([0.5, 1.2, 1.8, 2.4]))
    return features, relevance, query


def train(epochs: int = 40, seed: int = 0) -> tuple[float, float]:
    """NDCG@10 on unseen queries before and after training."""
    generator = torch.Generator().manual_seed(seed)
    features, relevance, query = make_queries(100, generator)
    unseen = make_queries(100, generator)
    ranker = nn.Linear(10, 1)
    nn.init.normal_(ranker.weight, std=0.1, generator=generator)
    loss_fn = sg.NDCGLoss(k=10, radius=0.5)
    judge = sg.NDCGLoss(k=10)
    optimiser = torch.optim.Adam(ranker.parameters(), lr=0.02)

    def judged() -> float:
        with torch.no_grad():
            judge(ranker(unseen[0])[:, 0], *unseen[1:])
        return float(judge.metrics["ndcg"])

    before = judged()
    for epoch in range(epochs):
        optimiser.zero_grad()
        loss = loss_fn(ranker(features)[:, 0], relevance, query)  # 1 - NDCG@10, exactly
        loss.backward()
        optimiser.step()
        if epoch % 10 == 0:
            print(f"epoch {epoch:3}: NDCG@10 {loss_fn.metrics['ndcg']:.3f} on the training queries")
    return before, judged()


if __name__ == "__main__":
    before, after = train()
    print(f"unseen queries: NDCG@10 {before:.3f} before, {after:.3f} after")
