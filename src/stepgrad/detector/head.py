"""fc6, fc7 and the class scores of Fast R-CNN, without box regression."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Head(nn.Module):
    """Scores of windows from their pooled features.

    New class scores start as the original's, N(0, 0.01) with zero biases. Where fc6 and fc7 are not loaded they start
    from He's normal distribution: the original, which always loads them, has no rule for this, and N(0, 0.01) would
    shrink the signal of small layers at each step.
    """

    def __init__(self, inputs: int, hidden: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.fc6 = nn.Linear(inputs, hidden)
        self.fc7 = nn.Linear(hidden, hidden)
        self.scores = nn.Linear(hidden, outputs)
        self.dropout = nn.Dropout(dropout)
        for layer in (self.fc6, self.fc7):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
        nn.init.normal_(self.scores.weight, std=0.01)
        nn.init.zeros_(self.scores.bias)

    def forward(self, pooled: Tensor) -> Tensor:
        """(N, inputs) pooled features to (N, outputs) activations in float32, whatever the precision in use.

        In half precision the last layer would give hundreds of windows the same score, and a ranking needs them apart.
        """
        hidden = self.dropout(F.relu(self.fc6(pooled)))
        hidden = self.dropout(F.relu(self.fc7(hidden)))
        with torch.autocast(hidden.device.type, enabled=False):
            return self.scores(hidden.to(self.scores.weight.dtype))
