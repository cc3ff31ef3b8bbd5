"""fc6, fc7, the class scores and, if wanted, the box regression of Fast R-CNN."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stepgrad.detector.box_regression import BoxRegression


class Head(nn.Module):
    """Scores of windows from their pooled features.

    New class scores start as the original's, N(0, 0.01) with zero biases. Where fc6 and fc7 are not loaded they start
    from He's normal distribution: the original, which always loads them, has no rule for this, and N(0, 0.01) would
    shrink the signal of small layers at each step. With `box_classes`, boxes of so many classes are moved as well.
    """

    def __init__(self, inputs: int, hidden: int, outputs: int, dropout: float, box_classes: int = 0) -> None:
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
        # last, so that all other weights are those of a head without it
        self.boxes = BoxRegression(hidden, box_classes) if box_classes else None

    def forward(self, pooled: Tensor) -> Tensor:
        """(N, inputs) pooled features to (N, outputs) activations in float32, whatever the precision in use.

        The outputs of the box regression, where there is one, are further columns.

        In half precision the last layer would give hundreds of windows the same score, and a ranking needs them apart.
        """
        hidden = self.dropout(F.relu(self.fc6(pooled)))
        hidden = self.dropout(F.relu(self.fc7(hidden)))
        with torch.autocast(hidden.device.type, enabled=False):
            hidden = hidden.to(self.scores.weight.dtype)
            scores: Tensor = self.scores(hidden)
            return scores if self.boxes is None else torch.cat([scores, self.boxes(hidden)], dim=1)
