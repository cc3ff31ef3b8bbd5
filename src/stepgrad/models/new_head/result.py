"""What a new head ends with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stepgrad.fine_tuning import FineTuned
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

    @property
    def names(self) -> dict[int, str]:
        """The class names by the labels that the model gives."""
        return {label: name for label, name in enumerate(self.class_names, self.first_label)}

    def __str__(self) -> str:
        judged = self.tuned.ways[self.tuned.chosen].val[0]
        return (
            f"{self.tuned}\nThe model as a whole has {per_cent(self.whole)} points of {self.tuned.protocol} on held-out images "
            f"({per_cent(judged)} on the windows that were kept)."
        )
