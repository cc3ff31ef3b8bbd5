"""The losses an MLP ranker is trained with here, all on padded (queries, documents) scores, and the common ones' formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import stepgrad as sg

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]  # scores, relevance, mask (True: a document)
CUTOFF = 10


def approx_ndcg(scores: Tensor, relevance: Tensor, mask: Tensor, temperature: float = 1.0) -> Tensor:
    """1 - NDCG with ranks smoothed by sigmoids over all pairs (Qin, Liu & Li 2010). O(n^2) time and memory."""
    pairs = (scores[:, None, :] - scores[:, :, None]) / temperature  # (B, n, n): how far j is above i
    above = torch.sigmoid(pairs).masked_fill(~mask[:, None, :], 0.0)
    rank = 0.5 + above.sum(-1)  # a document's own sigmoid is 1/2
    gain = (torch.exp2(relevance) - 1.0).masked_fill(~mask, 0.0)
    best = gain.sort(descending=True, dim=1).values
    places = torch.arange(1, scores.shape[1] + 1, device=scores.device)
    ideal = (best / torch.log2(1.0 + places)).sum(1)
    return _mean_of(1.0 - (gain / torch.log2(1.0 + rank)).sum(1) / ideal.clamp(min=1e-9), ideal > 0)


def list_net(scores: Tensor, relevance: Tensor, mask: Tensor, target: str = "gain") -> Tensor:
    """Cross-entropy of softmax(scores) with a distribution over the documents (Cao et al. 2007).

    Target "gain": proportional to 2^relevance - 1; "softmax": softmax of the relevance.
    """
    logs = torch.log_softmax(scores.masked_fill(~mask, -torch.inf), dim=1).masked_fill(~mask, 0.0)
    gain = (torch.exp2(relevance) - 1.0).masked_fill(~mask, 0.0)
    if target == "softmax":
        share = torch.softmax(relevance.masked_fill(~mask, -torch.inf), dim=1)
    else:
        share = gain / gain.sum(1, keepdim=True).clamp(min=1e-9)
    return _mean_of(-(share * logs).sum(1), gain.sum(1) > 0)


def step_ndcg(**options: Any) -> Loss:
    """NDCGLoss at the cut-off that is reported, or at k=None for the whole list."""
    loss_fn = sg.NDCGLoss(**{"k": CUTOFF, "estimator": "mee", "balance": "none", **options})
    return lambda scores, relevance, mask: loss_fn(scores, relevance, mask=mask)


def normalised(loss: Loss) -> Loss:
    """The loss of scores with mean 0 and variance 1 within each query, which take the scale of scores out of the game."""

    def of_normalised(scores: Tensor, relevance: Tensor, mask: Tensor) -> Tensor:
        count = mask.sum(1, keepdim=True).clamp(min=1)
        centred = (scores - (scores * mask).sum(1, keepdim=True) / count) * mask
        spread = (centred.square().sum(1, keepdim=True) / count + 1e-6).sqrt()
        return loss(centred / spread, relevance, mask)

    return of_normalised


def _mean_of(losses: Tensor, counted: Tensor) -> Tensor:
    return torch.where(counted, losses, 0.0).sum() / counted.sum().clamp(min=1)
