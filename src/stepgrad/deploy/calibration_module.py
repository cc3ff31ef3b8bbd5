"""A calibration as a torch module: a lookup that ships with the model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from stepgrad.deploy.monotone import RisingMap

Floats = NDArray[np.float64]


def lookup_of(maps: Sequence[RisingMap]) -> tuple[Floats, Floats, Floats]:
    """(K, M) x and y of each class's points and (K, M) slopes after them, the last point repeated to the same length."""
    length = max((len(one.x) for one in maps), default=2)
    x, y, slopes = (np.zeros((len(maps), length)) for _ in range(3))
    for row, one in enumerate(maps):
        n = len(one.x)
        x[row], y[row] = np.inf, one.y[-1]
        x[row, :n], y[row, :n], slopes[row, : n - 1] = one.x, one.y, one.slopes
        x[row, n - 1] = np.inf  # a score of 1 lies on the last piece
    return x, y, slopes


class CalibrationModule(nn.Module):
    """Calibrated scores (N,), in double precision, of scores (N,) and labels (N,): equal to `Calibration.probabilities`."""

    x: Tensor
    y: Tensor
    slopes: Tensor

    def __init__(self, maps: Sequence[RisingMap], squash: bool) -> None:
        super().__init__()
        self.squash = squash
        for name, values in zip(("x", "y", "slopes"), lookup_of(maps), strict=True):
            self.register_buffer(name, torch.from_numpy(values))

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        known = scores.double()
        if self.squash:
            known = 0.5 + 0.5 * known / (1.0 + known.abs())
        labels = labels.long()
        piece = ((known[:, None] >= self.x[labels]).sum(dim=1) - 1).clamp_min(0)  # below 0: on the first piece
        line = self.y[labels, piece] + (known - self.x[labels, piece]) * self.slopes[labels, piece]
        return torch.minimum(line, self.y[labels, piece + 1])
