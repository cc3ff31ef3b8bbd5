"""The new last class layer as it is trained: on cached features of windows, one linear layer for each of its slots.

A slot is a part of the layer with weights of its own: an anchor of a place, a level of the pyramid, or both. A detector
without such parts has one slot. A row of cached features is (slot, quality, features): quality is what a frozen branch
adds to the score of all classes, such as FCOS's centre-ness.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FIRST = 2  # columns before the features: slot and quality
LIKELY_NOTHING = 3.0
"""Logit by which a window shows nothing, at first."""
_LEAST_SPREAD = 1e-3


class ClassLayer(nn.Module):
    """Features of windows to outputs (N, K), or (N, K + 1) with background.

    Features are standardised here and not in the cache, so that the cache holds what the model sees; `folded` moves it
    into the weights.

    Args:
        slots: parts with weights of their own.
        width: features of a window.
        outputs: columns, background included.
        background: None, "first" or "last".
        quality: None, "mean": the score is the geometric mean of the class's and the quality's probability; "sum":
            the quality is added to the logits.
    """

    mean: Tensor
    spread: Tensor

    def __init__(
        self, slots: int, width: int, outputs: int, background: str | None = None, quality: str | None = None
    ) -> None:
        super().__init__()
        self.quality = quality
        self.weight = nn.Parameter(torch.empty(slots, outputs, width))
        self.bias = nn.Parameter(torch.zeros(slots, outputs))
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("spread", torch.ones(width))
        nn.init.normal_(self.weight, std=0.01)
        with torch.no_grad():
            if background is None:
                self.bias.fill_(-LIKELY_NOTHING)
            else:
                self.bias[:, 0 if background == "first" else -1] = LIKELY_NOTHING

    def standardise_like(self, features: Iterable[Tensor]) -> None:
        """From now on, take out the mean and the spread of the columns of these cached features."""
        count, total, squares = 0, torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
        for rows in features:
            values = rows[:, FIRST:].double()
            count, total, squares = count + len(values), total + values.sum(0), squares + values.square().sum(0)
        mean = total / max(count, 1)
        spread = (squares / max(count, 1) - mean.square()).clamp(min=0).sqrt() + _LEAST_SPREAD
        self.mean.copy_(mean)
        self.spread.copy_(spread)

    def forward(self, rows: Tensor) -> Tensor:
        slot, quality, features = rows[:, 0].long(), rows[:, 1:FIRST], (rows[:, FIRST:] - self.mean) / self.spread
        logits = self._linear(slot, features)
        if self.quality == "mean":
            return logit_of_mean(logits, quality)
        return logits + quality if self.quality == "sum" else logits

    def _linear(self, slot: Tensor, features: Tensor) -> Tensor:
        """(N, outputs), each row by the weights of its slot."""
        if len(self.weight) == 1:
            return F.linear(features, self.weight[0], self.bias[0])
        order = slot.argsort(stable=True)
        parts = features[order].split(torch.bincount(slot, minlength=len(self.weight)).tolist())
        logits = torch.cat([F.linear(p, w, b) for p, w, b in zip(parts, self.weight, self.bias, strict=True)])
        return logits[order.argsort()]

    @torch.no_grad()
    def folded(self) -> tuple[Tensor, Tensor]:
        """(slots, outputs, width) weights and (slots, outputs) biases for features as they are."""
        weight = self.weight.double() / self.spread.double()
        return weight, self.bias.double() - weight @ self.mean.double()


def logit_of_mean(logits: Tensor, quality: Tensor) -> Tensor:
    """The logit of the geometric mean of two probabilities that are given as logits.

    >>> logit_of_mean(torch.tensor([[0.5]]), torch.tensor([[0.5]]))
    tensor([[0.5000]])
    """
    log_score = 0.5 * (F.logsigmoid(logits) + F.logsigmoid(quality))
    # log(1 - exp(x)) for x < 0, without loss near 0
    return log_score - torch.log(-torch.expm1(log_score.clamp(max=-torch.finfo(logits.dtype).tiny)))
