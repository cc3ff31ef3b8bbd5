"""The network of a rescorer: from the facts of detections to one number for each, by a look at their neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stepgrad.models.rescore.facts import PAIRS


class Rows(NamedTuple):
    """The detections of some images, one after the other, as the network takes them."""

    columns: Tensor  # (M, F)
    neighbours: Tensor  # (M, J) rows
    present: Tensor  # (M, J)
    pairs: Tensor  # (M, J, P)
    own: Tensor  # (M,) the detector's logits
    labels: Tensor  # (M,)


def joined_rows(parts: Sequence[Rows]) -> Rows:
    """Several images as one; neighbours stay within their image."""
    first, shifted = 0, []
    for part in parts:
        shifted.append(part.neighbours + first)
        first += len(part.own)
    columns = {
        name: torch.cat([getattr(part, name) for part in parts]) for name in Rows._fields if name != "neighbours"
    }
    return Rows(neighbours=torch.cat(shifted), **columns)


class QualityNetwork(nn.Module):
    """One attention over the neighbours between two layers; its output is 0 until it is trained.

    Args:
        num_classes: each has an offset to the first layer.
        width: facts per detection.
        units: of each layer.
    """

    mean: Tensor
    spread: Tensor

    def __init__(self, num_classes: int, width: int, units: int = 24) -> None:
        super().__init__()
        self.inward = nn.Linear(width, units)
        self.of_class = nn.Embedding(num_classes, units)
        self.ask = nn.Linear(units, units, bias=False)
        self.answer = nn.Linear(units, units, bias=False)
        self.of_pair = nn.Linear(len(PAIRS), 1 + units)
        self.value = nn.Linear(units, units)
        self.middle = nn.Linear(2 * units, units)
        self.outward = nn.Linear(units, 1)
        nn.init.zeros_(self.of_class.weight)
        nn.init.zeros_(self.outward.weight)
        nn.init.zeros_(self.outward.bias)
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("spread", torch.ones(width))

    def standardise(self, columns: Tensor) -> None:
        """Learn the mean and the spread of facts (M, F)."""
        if len(columns):
            self.mean.copy_(columns.mean(dim=0))
            self.spread.copy_(columns.std(dim=0, unbiased=False).clamp_min(1e-3))

    def forward(self, rows: Rows) -> Tensor:
        """(M,) what is added to the detector's logits, or the logit of a quality."""
        seen = ((rows.columns - self.mean) / self.spread).clamp(-6.0, 6.0)
        hidden = F.silu(self.inward(seen) + self.of_class(rows.labels))  # (M, U)
        about = self.of_pair(rows.pairs)  # (M, J, 1 + U)
        asked = (self.ask(hidden)[:, None] * self.answer(hidden)[rows.neighbours]).sum(dim=2)
        weight = asked / hidden.shape[1] ** 0.5 + about[..., 0]
        weight = torch.where(rows.present, weight, -1e4)
        nobody = torch.zeros_like(weight[:, :1])  # a place to look where no neighbour matters
        share = torch.cat([weight, nobody], dim=1).softmax(dim=1)[:, :-1]
        around = (share[..., None] * F.silu(self.value(hidden)[rows.neighbours] + about[..., 1:])).sum(dim=1)
        return self.outward(F.silu(self.middle(torch.cat([hidden, around], dim=1))))[:, 0]
