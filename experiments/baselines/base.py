"""What all baselines share: windows become one list per class, each list has a loss, and the mean of these is the loss.

None of them knows NMS: every window of the batch stands in the list of every class, and every window on an object is a
positive. That is how these losses were published, and what sets them apart from `MAPLoss`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from experiments.baselines.windows import LEFT_OUT, NEGATIVE, POSITIVE, window_labels
from stepgrad.engine.jit import explain_wait
from stepgrad.errors import ConfigError, NonFiniteError, one_of, positive_number, real_number, whole_number
from stepgrad.losses.objective import loss_precision, product
from stepgrad.metric.batch import Target, make_batch
from stepgrad.plain_tensors import narrowed
from stepgrad.steps.autograd import attach

Places = tuple[NDArray[np.int64], NDArray[np.int64]]  # of a list's positives and negatives among the N * K scores


class ListLoss(NamedTuple):
    """The loss of one list and its gradient by the scores of its positives and negatives."""

    value: Tensor  # ()
    positives: Tensor  # (positives,)
    negatives: Tensor  # (negatives,)


class RankingBaseline(nn.Module):
    """Base class: a subclass computes the loss of one list.

    Args:
        num_classes: columns of the scores (without background).
        match_threshold: a window is positive for a class if its IoU with an object of that class is at least this.
        grey_zone: windows with an IoU from here up to `match_threshold` are left out; None: they are negative.
        absent_classes: the loss is the mean over the classes that have a positive window ("skip"), or over all classes, with
            0 for those that have none ("zero").

    Called like `MAPLoss`: lists per image of (N, K) scores, (N, 4) or (N, K, 4) boxes and target dicts. Windows on a
    difficult object are left out. After each call, `metrics` holds "positives" and "negatives" (windows in the lists, all
    classes), "left_out", and "map": the mean over the same classes of the average precision of the *windows*, without NMS;
    a negative wins a tie. It is not the detector's mAP.
    """

    def __init__(
        self,
        num_classes: int,
        match_threshold: float = 0.5,
        grey_zone: float | None = None,
        absent_classes: str = "skip",
    ) -> None:
        super().__init__()
        one_of("absent_classes", absent_classes, ["zero", "skip"])
        self.num_classes = whole_number("num_classes", num_classes, least=1)
        if not 0.0 < real_number("match_threshold", match_threshold) <= 1.0:
            raise ConfigError(f"Expected match_threshold in (0, 1] but got {match_threshold!r}.")
        if grey_zone is not None and not 0.0 < grey_zone < match_threshold:
            raise ConfigError(
                f"Expected grey_zone to be None or between 0 and match_threshold={match_threshold} but got {grey_zone!r}."
            )
        self.absent_classes = absent_classes
        self.match_threshold = match_threshold
        self.grey_zone = grey_zone
        self.metrics: dict[str, Any] = {}

    def of_list(self, positives: Tensor, negatives: Tensor) -> ListLoss:
        """The loss of one list by the scores of its windows; there is at least one of each kind."""
        raise NotImplementedError

    def forward(self, scores: Sequence[Tensor], boxes: Sequence[Tensor], targets: Sequence[Target]) -> Tensor:
        """The loss of a batch: lists per image of (N, K) scores, (N, 4) or (N, K, 4) boxes, and target dicts."""
        batch = make_batch(scores, boxes, targets, self.num_classes)
        labels = window_labels(batch, self.match_threshold, self.grey_zone)
        flat = torch.cat(list(scores)) if len(scores) else torch.zeros(0, self.num_classes, requires_grad=True)
        with torch.no_grad(), explain_wait():
            value, gradient = self._mean_over_lists(flat.detach().to(loss_precision(flat.dtype)), labels)
        if torch.is_grad_enabled() and flat.requires_grad:
            return attach(flat, value, product, narrowed(gradient, flat.dtype))
        return value

    def _lists(self, labels: NDArray[np.int8]) -> Iterator[Places]:
        """One list per class."""
        for c in range(labels.shape[1]):
            column = labels[:, c]
            yield (
                np.flatnonzero(column == POSITIVE) * labels.shape[1] + c,
                np.flatnonzero(column == NEGATIVE) * labels.shape[1] + c,
            )

    def _mean_over_lists(self, scores: Tensor, labels: NDArray[np.int8]) -> tuple[Tensor, Tensor]:
        """The loss, its gradient (N, K), and `metrics`."""
        flat = scores.reshape(-1)
        gradient = torch.zeros_like(flat)
        value, precision = flat.new_zeros(()), flat.new_zeros(())
        lists = list(self._lists(labels))
        present = [places for places in lists if len(places[0])]
        for places in present:
            above, below = (torch.from_numpy(p).to(flat.device) for p in places)
            of_list = self._of_any_list(flat[above], flat[below])
            value = value + of_list.value
            gradient[above] = of_list.positives
            gradient[below] = of_list.negatives
            precision = precision + average_precision(flat[above], flat[below])
        counted = max(len(present) if self.absent_classes == "skip" else len(lists), 1)
        self._check_finite(value, flat)
        self.metrics = {
            "map": float(precision) / counted,
            "positives": sum(len(p) for p, _ in present),
            "negatives": sum(len(n) for _, n in present),
            "left_out": int((labels == LEFT_OUT).sum()),
        }
        return value / counted, (gradient / counted).reshape(scores.shape)

    def _of_any_list(self, positives: Tensor, negatives: Tensor) -> ListLoss:
        """Without negatives there is nothing to gain."""
        if len(negatives):
            return self.of_list(positives, negatives)
        return ListLoss(positives.new_zeros(()), torch.zeros_like(positives), torch.zeros_like(negatives))

    def _check_finite(self, value: Tensor, scores: Tensor) -> None:
        if not math.isfinite(float(value)):
            raise NonFiniteError(
                f"Expected a finite loss but {type(self).__name__} is {float(value)}: the largest score is "
                f"{float(scores.abs().max()):g}; look for a diverged model."
            )

    def extra_repr(self) -> str:
        own = [f"{name}={getattr(self, name)!r}" for name in self.options()]
        return ", ".join([str(self.num_classes), f"match_threshold={self.match_threshold}", *own])

    def options(self) -> list[str]:
        """The names of the subclass's own options."""
        return []


def average_precision(positives: Tensor, negatives: Tensor) -> Tensor:
    """AP of a list: the mean over the positives of (positives down to it) / (windows down to it); a negative wins a tie.

    >>> float(average_precision(torch.tensor([0.9, 0.1]), torch.tensor([0.5, 0.0])))   # (1/1 + 2/3) / 2
    0.8333333730697632
    """
    descending = positives.sort(descending=True).values
    above = len(negatives) - torch.searchsorted(negatives.sort().values, descending)
    rank = torch.arange(1, len(positives) + 1, device=positives.device, dtype=positives.dtype)
    return (rank / (rank + above)).mean()


def check_positive(**options: float) -> None:
    """Raise ConfigError unless every option is a finite number > 0."""
    for name, number in options.items():
        positive_number(name, number)


def row_chunks(rows: int, columns: int, most: int = 1_000_000) -> Iterator[slice]:
    """Slices of the rows of a matrix such that no part has more than about `most` entries.

    >>> list(row_chunks(5, 10, most=20))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 6, None)]
    """
    height = max(most // max(columns, 1), 1)
    for start in range(0, rows, height):
        yield slice(start, start + height)
