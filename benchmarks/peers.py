"""Other people's losses on the same scores. Every peer is optional; one that is absent is listed, not dropped.

None of them includes NMS or reports the metric itself, so these rows compare cost, not usefulness.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks.scenes import Scene, relevance

Step = Callable[[], object]


@dataclass(frozen=True)
class Peer:
    """One peer on one input; `run` is None when its package is missing."""

    name: str
    input: str
    run: Step | None
    note: str = ""


def _peer(name: str, package: str | None, shape: str, build: Callable[[], Step], note: str = "") -> Peer:
    if package is not None and importlib.util.find_spec(package) is None:
        return Peer(name, shape, None, f"not installed ({package})")
    return Peer(name, shape, build(), note)


def detection_peers(scene: Scene) -> list[Peer]:
    """On the windows of the detection benchmark, as far as each peer can take them."""
    scores, positive = torch.cat(scene.scores), relevance(scene)
    shape = f"{scores.shape[0]:,} x {scores.shape[1]}"
    fast, smooth = _equal_classes(scores, positive, 50), _equal_classes(scores, positive, 10)
    return [
        _peer("softmax cross-entropy", None, shape, lambda: _cross_entropy(scores, positive)),
        _peer("torchsort soft AP", "torchsort", shape, lambda: _soft_ap(scores.T, positive.T), "no NMS"),
        _peer("LibAUC APLoss, class by class", "libauc", shape, lambda: _libauc(scores, positive), "no NMS"),
        _peer(
            "pytorch-metric-learning FastAPLoss",
            "pytorch_metric_learning",
            f"{len(fast[0]):,} embeddings",
            lambda: _metric_learning("FastAPLoss", *fast),
            "N x N x 11 numbers: the full input does not fit",
        ),
        _peer(
            "pytorch-metric-learning SmoothAPLoss",
            "pytorch_metric_learning",
            f"{len(smooth[0]):,} embeddings",
            lambda: _metric_learning("SmoothAPLoss", *smooth),
            "N x N x N numbers, equally many of each class: the full input does not fit",
        ),
    ]


def ranking_peers(scores: Tensor, positive: Tensor) -> list[Peer]:
    """On one long list: scores and positive are (N,)."""
    shape = f"{len(scores):,}"
    short = slice(0, 10_000)
    pairs = f"{int(positive.sum()) * len(scores) * 4 / 1e9:.1f} GB"
    return [
        _peer("torchsort.soft_rank", "torchsort", shape, lambda: _soft_rank(scores[None])),
        _peer("torchsort soft AP", "torchsort", shape, lambda: _soft_ap(scores[None], positive[None])),
        _peer(
            "LibAUC APLoss",
            "libauc",
            "10,000",
            lambda: _libauc(scores[short, None], positive[short, None]),
            f"pairs every positive with every score; the full list would take {pairs} per intermediate",
        ),
    ]


def _cross_entropy(scores: Tensor, positive: Tensor) -> Step:
    background = torch.zeros(len(scores), 1)
    logits = torch.cat([scores, background], dim=1).requires_grad_()
    labels = torch.where(positive.any(dim=1), positive.int().argmax(dim=1), scores.shape[1])
    return lambda: torch.autograd.grad(cross_entropy(logits, labels), logits)


def _soft_rank(rows: Tensor) -> Step:
    from torchsort import soft_rank

    leaf = rows.contiguous().clone().requires_grad_()
    return lambda: torch.autograd.grad(soft_rank(-leaf).square().sum(), leaf)


def _soft_ap(rows: Tensor, positive: Tensor) -> Step:
    """1 - AP with every rank replaced by its soft rank; rows and positive are (lists, N)."""
    from torchsort import soft_rank

    leaf = rows.contiguous().clone().requires_grad_()

    def step() -> object:
        among_all = soft_rank(-leaf)
        precisions = [
            (soft_rank(-row[hit][None])[0] / ranks[hit]).mean()
            for row, ranks, hit in zip(leaf, among_all, positive, strict=True)
        ]
        return torch.autograd.grad(1 - torch.stack(precisions).mean(), leaf)

    return step


def _libauc(scores: Tensor, positive: Tensor) -> Step:
    """One APLoss per column, summed."""
    from libauc.losses import APLoss

    columns = scores.shape[1]
    losses = [APLoss(data_len=len(scores), device=torch.device("cpu")) for _ in range(columns)]
    leaf, labels = scores.clone().requires_grad_(), positive.long()
    index = torch.arange(len(scores))

    def step() -> object:
        parts = [loss(leaf[:, k].sigmoid(), labels[:, k], index) for k, loss in enumerate(losses)]
        return torch.autograd.grad(torch.stack(parts).sum(), leaf)

    return step


def _equal_classes(scores: Tensor, positive: Tensor, each: int) -> tuple[Tensor, Tensor]:
    """Score rows taken as embeddings, equally many of every class, grouped by class."""
    rows = [positive[:, k].nonzero()[:each, 0] for k in range(positive.shape[1])]
    size = min(len(r) for r in rows)
    chosen = torch.cat([r[:size] for r in rows])
    return scores[chosen], torch.arange(positive.shape[1]).repeat_interleave(size)


def _metric_learning(name: str, embeddings: Tensor, labels: Tensor) -> Step:
    from pytorch_metric_learning import losses

    loss = getattr(losses, name)()
    leaf = embeddings.clone().requires_grad_()
    return lambda: torch.autograd.grad(loss(leaf, labels), leaf)
