"""Piecewise-constant layers that pass pseudogradients: what they compute is exact, what they send back is a step's slope."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from stepgrad.errors import ConfigError, InputError, whole_number
from stepgrad.layers.base import ElementwiseLayer, FourTensors, StepLayer, check_numbers
from stepgrad.layers.nms import keep_mask, mask_steps, neighbours, pull_back_mask
from stepgrad.layers.rows import pull_back_ranks, pull_back_top_k, ranks, top_k_mask
from stepgrad.metric.batch import make_batch
from stepgrad.metric.mean_ap import check_nms_threshold
from stepgrad.plain_tensors import narrowed, refuse_unreadable
from stepgrad.steps.autograd import attach, once


class Staircase(ElementwiseLayer):
    """Any step function of one variable, applied to each number: levels[k] from locations[k - 1] up to locations[k].

    At a location the upper level holds.

    >>> stairs = Staircase(locations=[0.0, 1.0], levels=[-1.0, 0.0, 1.0])
    >>> x = torch.tensor([-2.0, 0.0, 0.25, 1.0], requires_grad=True)
    >>> y = stairs(x)
    >>> y.sum().backward()
    >>> y.tolist(), x.grad.tolist()
    ([-1.0, 0.0, 0.0, 1.0], [0.25, 1.0, 1.0, 0.0])
    """

    locations: Tensor
    levels: Tensor

    def __init__(
        self,
        locations: Sequence[float] | Tensor,
        levels: Sequence[float] | Tensor,
        estimator: str = "mee",
        radius: float = 1.0,
        min_step: float = 0.0,
    ) -> None:
        super().__init__(estimator, radius, min_step)
        at, level = (torch.as_tensor(a, dtype=torch.float64).reshape(-1) for a in (locations, levels))
        if len(level) != len(at) + 1 or not bool(at.isfinite().all() & level.isfinite().all()):
            raise ConfigError(
                f"Expected finite locations and one more level than locations but got {at.tolist()} and {level.tolist()}."
            )
        if bool((at.diff() <= 0).any()):
            raise ConfigError(f"Expected increasing locations but got {at.tolist()}.")
        real = level.diff() != 0  # between equal levels there is no step
        self.register_buffer("locations", at[real])
        self.register_buffer("levels", torch.cat([level[:1], level[1:][real]]))

    def _index(self, x: Tensor) -> Tensor:
        return torch.searchsorted(self.locations, x.contiguous(), right=True)

    def values(self, x: Tensor) -> Tensor:
        return self.levels.double()[self._index(x)]

    def steps(self, x: Tensor) -> FourTensors:
        k, last = self._index(x), len(self.levels) - 1
        end = self.locations.new_full((1,), torch.inf)
        walls = torch.cat([-end, self.locations, end]).double()  # walls[k] <= x < walls[k + 1]
        levels = self.levels.double()
        return walls[k + 1], levels[(k + 1).clamp(max=last)], walls[k], levels[(k - 1).clamp(min=0)]


class Threshold(Staircase):
    """1 where x reaches the threshold (x >= at), else 0.

    >>> x = torch.tensor([0.0, 0.75], requires_grad=True)
    >>> y = Threshold(at=0.5)(x)
    >>> y.sum().backward()
    >>> y.tolist(), x.grad.tolist()
    ([0.0, 1.0], [1.0, 2.0])
    """

    def __init__(self, at: float = 0.0, estimator: str = "mee", radius: float = 1.0, min_step: float = 0.0) -> None:
        super().__init__([at], [0.0, 1.0], estimator, radius, min_step)


class Sign(Staircase):
    """-1, 0 or 1. Zero, on the step itself, has one on either side at distance zero, to which `min_step` gives a length.

    >>> x = torch.tensor([-0.5, 0.0, 4.0], requires_grad=True)
    >>> y = Sign(min_step=0.5)(x)
    >>> y.sum().backward()
    >>> y.tolist(), x.grad.tolist()
    ([-1.0, 0.0, 1.0], [2.0, 2.0, 0.25])
    """

    def __init__(self, estimator: str = "mee", radius: float = 1.0, min_step: float = 0.0) -> None:
        super().__init__([0.0], [-1.0, 1.0], estimator, radius, min_step)

    def values(self, x: Tensor) -> Tensor:
        return x.sign()

    def steps(self, x: Tensor) -> FourTensors:
        up_at, up_value, down_at, down_value = super().steps(x)
        return torch.where(x == 0, x, up_at), up_value, down_at, down_value


class UniformQuantizer(ElementwiseLayer):
    """The nearest multiple of `step` between `low` and `high`; halfway the even one, as torch.round does.

    Between steps on both sides MEE is exactly 1, the straight-through estimator; beyond the range it decays.

    >>> x = torch.tensor([0.3, 0.6, 3.0], requires_grad=True)
    >>> y = UniformQuantizer(step=0.5, low=0.0, high=1.0)(x)
    >>> y.sum().backward()
    >>> y.tolist(), x.grad.tolist()
    ([0.5, 0.5, 1.0], [1.0, 1.0, 0.1111111119389534])
    """

    def __init__(
        self,
        step: float,
        low: float = -math.inf,
        high: float = math.inf,
        estimator: str = "mee",
        radius: float = 1.0,
        min_step: float = 0.0,
    ) -> None:
        super().__init__(estimator, radius, min_step)
        if not (math.isfinite(step) and step > 0.0):
            raise ConfigError(f"Expected step to be a finite number > 0 but got {step!r}.")
        if not low <= high:
            raise ConfigError(f"Expected low <= high but got {low!r} and {high!r}.")
        self.step = float(step)
        self.least, self.most = (a if math.isinf(a) else float(round(a / step)) for a in (low, high))

    def _index(self, x: Tensor) -> Tensor:
        return (x / self.step).round().clamp(self.least, self.most)

    def values(self, x: Tensor) -> Tensor:
        return self._index(x) * self.step

    def steps(self, x: Tensor) -> FourTensors:
        k = self._index(x)
        up_at = torch.where(k < self.most, torch.maximum(x, (k + 0.5) * self.step), torch.inf)
        down_at = torch.where(k > self.least, torch.minimum(x, (k - 0.5) * self.step), -torch.inf)
        up, down = (k + 1).clamp(max=self.most), (k - 1).clamp(min=self.least)
        return up_at, up * self.step, down_at, down * self.step

    def extra_repr(self) -> str:
        return f"step={self.step:g}, {super().extra_repr()}"


class Round(UniformQuantizer):
    """The nearest integer, halfway the even one."""

    def __init__(self, estimator: str = "mee", radius: float = 1.0, min_step: float = 0.0) -> None:
        super().__init__(1.0, estimator=estimator, radius=radius, min_step=min_step)


class TopKMask(StepLayer):
    """1 for the k largest numbers of each row, else 0; of equal numbers the earlier is the larger. O(n log n).

    If k is n or more, all are in, and nothing can change.

    >>> x = torch.tensor([3.0, 1.0, 2.0, 0.0], requires_grad=True)
    >>> y = TopKMask(2)(x)
    >>> (y * torch.tensor([0.0, 1.0, 0.0, 0.0])).sum().backward()       # to get the second one in ...
    >>> y.tolist(), x.grad.tolist()                                     # ... raise it, and lower those that are
    ([1.0, 0.0, 1.0, 0.0], [-0.25, 0.5, -0.5, 0.0])
    """

    def __init__(self, k: int, estimator: str = "mee", radius: float = 1.0, min_step: float = 0.0) -> None:
        super().__init__(estimator, radius, min_step)
        self.k = whole_number("k", k, least=1)

    def values(self, rows: Tensor) -> Tensor:
        return top_k_mask(rows, self.k)

    def pull_back(self, rows: Tensor, outer: Tensor) -> Tensor:
        return pull_back_top_k(rows, outer, self.k, self.method)

    def extra_repr(self) -> str:
        return f"k={self.k}, {super().extra_repr()}"


class ArgmaxOneHot(TopKMask):
    """1 for the largest number of each row (the first of several), else 0. O(n log n)."""

    def __init__(self, estimator: str = "mee", radius: float = 1.0, min_step: float = 0.0) -> None:
        super().__init__(1, estimator, radius, min_step)


class Ranks(StepLayer):
    """The rank of each number in its row, 1 for the largest (`descending`) or the smallest; of equal numbers the earlier first.

    The value takes O(n log n). The gradient takes O(n^2) time (each number is a step of every other one's rank, at a
    distance of its own) and linear memory.

    >>> x = torch.tensor([3.0, 1.0, 2.0], requires_grad=True)
    >>> y = Ranks()(x)
    >>> y[1].backward()
    >>> y.tolist(), x.grad.tolist()
    ([1.0, 3.0, 2.0], [0.25, -0.5, 0.5])
    """

    def __init__(
        self, descending: bool = True, estimator: str = "mee", radius: float = 1.0, min_step: float = 0.0
    ) -> None:
        super().__init__(estimator, radius, min_step)
        self.sign = 1.0 if descending else -1.0

    def values(self, rows: Tensor) -> Tensor:
        return ranks(self.sign * rows)

    def pull_back(self, rows: Tensor, outer: Tensor) -> Tensor:
        return self.sign * pull_back_ranks(self.sign * rows, outer, self.method)


class NMSLayer(StepLayer):
    """Which windows greedy NMS keeps, 1 or 0, as a function of their scores: (N,) or, for K classes, (N, K).

    Exact through every cascade: a score moved past a rival may change the fate of windows it does not touch. Windows as for
    `nms`: suppressed by a kept, higher one with IoU > threshold, equal scores ranked by index. Boxes get no gradient.
    The gradient takes O(N * overlapping pairs / 64) time and N^2 / 8 bytes, on the CPU.

    >>> boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0], [4.0, 0.0, 14.0, 10.0], [8.0, 0.0, 18.0, 10.0]])   # a chain
    >>> scores = torch.tensor([3.0, 2.0, 1.0], requires_grad=True)
    >>> keep = NMSLayer(threshold=0.3)(scores, boxes)
    >>> keep[2].backward()                         # the first holds the second down for the third
    >>> keep.tolist(), scores.grad.tolist()
    ([1.0, 0.0, 1.0], [0.5, -0.5, 0.0])
    """

    def __init__(
        self, threshold: float = 0.3, estimator: str = "mee", radius: float = 1.0, min_step: float = 0.0
    ) -> None:
        super().__init__(estimator, radius, min_step)
        plain_threshold = check_nms_threshold(threshold)
        if plain_threshold is None:
            raise ConfigError("Expected a threshold in [0, 1] but got None; without NMS every window is kept.")
        self.threshold = plain_threshold

    def forward(self, scores: Tensor, boxes: Tensor) -> Tensor:  # type: ignore[override]  # windows come with boxes
        """The keep mask, in the shape and dtype of the scores."""
        check_numbers(scores, 1)
        if not isinstance(boxes, Tensor):
            raise InputError(f"Expected boxes to be a tensor but got {type(boxes).__name__}.")
        refuse_unreadable(boxes)
        if scores.ndim > 2 or boxes.shape != (len(scores), 4):
            raise InputError(
                f"Expected scores (N,) or (N, K) and boxes (N, 4) but got {tuple(scores.shape)} and {tuple(boxes.shape)}."
            )
        if scores.numel() == 0:
            return attach(scores, torch.zeros_like(scores).detach(), torch.clone)
        nothing = {"boxes": boxes[:0], "labels": torch.zeros(0, dtype=torch.long)}
        columns = scores.detach().reshape(len(scores), -1)
        batch = make_batch([columns], [boxes.detach()], [nothing])
        numbers = batch.scores.astype("float64")
        close = neighbours(batch.boxes, self.threshold)
        kept = torch.stack([torch.from_numpy(keep_mask(column, close)) for column in numbers.T], dim=1)

        def pull_back(outer: Tensor) -> Tensor:
            refuse_unreadable(outer)
            pushes = outer.detach().cpu().double().reshape(numbers.shape).numpy()
            found = [
                pull_back_mask(s, mask_steps(s, close), g, self.method)
                for s, g in zip(numbers.T, pushes.T, strict=True)
            ]
            gradient = torch.stack([torch.from_numpy(column) for column in found], dim=1)
            return narrowed(gradient, scores.dtype).to(scores.device).reshape(scores.shape)

        return attach(scores, kept.to(scores.device, scores.dtype).reshape(scores.shape), once(pull_back))

    def extra_repr(self) -> str:
        return f"threshold={self.threshold:g}, {super().extra_repr()}"
