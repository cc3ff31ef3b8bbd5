"""`weight="auto"`: the weight of MAPLoss that makes its gradient a fixed share of the stock classification loss's.

How long mAP's gradient is depends on the detector, the batch and how far training has come; so does the stock loss's. A
number that suits one detector is ten times too large for the next. RS-Loss (Oksuz et al. 2021) balances its tasks by ratios
of running values too, and needs no tuning.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from stepgrad.errors import ConfigError, LikelyMistakeWarning, positive_number, real_number
from stepgrad.processes import Channel, is_alone

SHARE = 1.0  # mAP pulls as hard at the scores as the stock classification loss
MEMORY = 0.95  # of the running means: about the last twenty batches
UNKNOWN = 1.0  # the weight before anything was measured
_LARGEST = 1e6  # beyond it there is no gradient of mAP to speak of, and the loss's value would overflow before it helps
_HALF_PRECISION_SCALE = 2.0**8  # keeps the gradients of a mean over thousands of windows above float16's least number
_PATIENCE = 1800.0  # seconds to wait for other processes, as torch.distributed itself does


def _all(logits: Tensor) -> Tensor:
    return logits


@dataclass(frozen=True)
class StockLoss:
    """A model's own classification loss of a batch, as it enters the sum of losses, and where both gradients are measured."""

    value: Tensor | None  # None: the model has none
    logits: Sequence[Tensor]  # class logits that the stock loss, or mAP, is a function of
    ranked: Callable[[Tensor], Tensor] = _all  # the part of them that mAP ranks


class AutoWeight:
    """share * (mean length of the stock classification loss's gradient) / (mean length of mAP's gradient).

    A length is the L2 norm of a loss's gradient in the class logits of one training batch, all windows, classes and images
    as one vector; of mAP at weight 1, of the stock loss with the coefficient it has in the sum of losses. The means are
    exponential, over about the last `1 / (1 - memory)` batches, the present one included. Both start empty at the same batch,
    so their ratio is right from the first batch on. A batch in which either length is zero or not finite is not counted. With
    several processes a length is that of all their batches together, so that the weight is the same everywhere.

    Args:
        share: length of mAP's gradient, relative to that of the stock classification loss.
        memory: factor by which a batch counts less with each batch after it, in [0, 1).

    The state is two numbers that are in no checkpoint: a resumed run measures them again, from its first batch on.

    >>> auto = AutoWeight(share=0.5)
    >>> auto.value                      # nothing measured yet
    1.0
    >>> auto.update(stock_length=3.0, map_length=6.0)
    0.25
    >>> auto.update(stock_length=3.0, map_length=0.0)    # nothing to find in this batch
    0.25
    """

    def __init__(self, share: float = SHARE, memory: float = MEMORY) -> None:
        self.share = positive_number("share", share)
        self.memory = real_number("memory", memory)
        if not 0.0 <= self.memory < 1.0:
            raise ConfigError(f"Expected memory to be in [0, 1) but got {memory!r}.")
        self._stock_length = 0.0
        self._map_length = 0.0
        self._warned = False

    @property
    def value(self) -> float:
        """The weight as of the last batch."""
        if self._map_length <= 0.0:
            return UNKNOWN
        return min(self.share * self._stock_length / self._map_length, _LARGEST)

    def update(self, stock_length: float, map_length: float) -> float:
        """Take the lengths of one batch into the means; returns the weight."""
        if all(math.isfinite(length) and length > 0.0 for length in (stock_length, map_length)):
            self._stock_length += (1.0 - self.memory) * (stock_length - self._stock_length)
            self._map_length += (1.0 - self.memory) * (map_length - self._map_length)
        return self.value

    def look_at(self, stock: StockLoss, map_loss: Tensor, group: dist.ProcessGroup | None = None) -> float:
        """Measure both gradients of a batch; returns the weight. Every process of the group must call it."""
        stock_length = _length(stock.value, stock)
        if stock_length is None:
            self._warn()
        both = [stock_length or 0.0, _length(map_loss, stock) or 0.0]
        return self.update(*_of_all_processes(both, group))

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                'weight="auto" cannot follow the model\'s own classification loss back to its class logits, for example '
                f"because both come from one compiled graph; the weight stays {self.value:g}. Give weight a number instead.",
                LikelyMistakeWarning,
                stacklevel=2,
            )

    def __repr__(self) -> str:
        return f"AutoWeight(share={self.share:g}, now {self.value:.3g})"


def weight_of(weight: Any) -> float | AutoWeight:
    """What was given as `weight`: "auto", an AutoWeight or a number > 0."""
    if isinstance(weight, AutoWeight):
        return weight
    if isinstance(weight, str):
        if weight == "auto":
            return AutoWeight()
        raise ConfigError(f"Expected weight to be 'auto' or a finite number > 0 but got {weight!r}.")
    return positive_number("weight", weight, " or 'auto'")


def _length(loss: Tensor | None, stock: StockLoss) -> float | None:
    """Norm of the loss's gradient in the ranked logits; None where no gradient comes that far.

    Only the small graph between logits and loss is gone through, and it is kept for the backward pass of the training.
    """
    logits = [part for part in stock.logits if part.requires_grad]
    if loss is None or not loss.requires_grad or not logits:
        return None
    scale = _HALF_PRECISION_SCALE if any(part.dtype == torch.float16 for part in logits) else 1.0
    outer = torch.full_like(loss, scale)
    gradients = torch.autograd.grad(loss, logits, outer, retain_graph=True, allow_unused=True)
    norms = [_norm(stock.ranked(gradient)) for gradient in gradients if gradient is not None]
    return float(torch.stack(norms).norm()) / scale if norms else None


def _norm(gradient: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(gradient, dtype=torch.promote_types(gradient.dtype, torch.float32))
    return norm


def _of_all_processes(lengths: Sequence[float], group: dist.ProcessGroup | None) -> list[float]:
    if is_alone(group):
        return list(lengths)
    squares = torch.tensor([length**2 for length in lengths], dtype=torch.float64)
    Channel(group, _PATIENCE).add_up(squares, "agreeing on the weight of mAP")
    return [float(length) for length in squares.sqrt()]
