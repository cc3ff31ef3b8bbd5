"""What a new head ends with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stepgrad.models.fine_tuning import FineTuned
from stepgrad.models.fine_tuning.thresholds import thresholds_text
from stepgrad.number_text import per_cent


@dataclass(frozen=True)
class NewHead:
    """The result of `train_new_head`."""

    model: Any
    """The model that was passed in; it now detects the new classes."""
    tuned: FineTuned
    """The result of `finetune`: numbers of every way on held-out images, and which way was kept."""
    class_names: tuple[str, ...]
    first_label: int
    """What the model calls the first class: 1 where 0 is background."""
    whole: float
    """mAP of the model as a whole on held-out images, by its own inference: with its own score threshold, its own limit
    of detections, and all windows."""

    thresholds: dict[str, float]
    """By class, the score of the model from which F1 is best on held-out images, at the protocol's first IoU. Classes of
    which no object was found have none."""

    @property
    def names(self) -> dict[int, str]:
        """The class names by the labels that the model gives."""
        return {label: name for label, name in enumerate(self.class_names, self.first_label)}

    def passes(self, labels: Tensor, scores: Tensor) -> Tensor:
        """(N,) which of the model's detections reach the threshold of their class; none does where there is no threshold."""
        least = [self.thresholds.get(self.names.get(int(label), ""), math.inf) for label in labels]
        return scores >= torch.tensor(least, dtype=torch.float64, device=scores.device)

    def __str__(self) -> str:
        judged = self.tuned.ways[self.tuned.chosen].val[0]
        return (
            f"{self.tuned.summary}\nThe model as a whole has {per_cent(self.whole)} points of {self.tuned.protocol} on held-out "
            f"images ({per_cent(judged)} on the windows that were kept).\n"
            f"{thresholds_text(self.thresholds, self.tuned.protocol)} Another threshold may show far too much or too little."
        )
