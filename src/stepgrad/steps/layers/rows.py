"""Top-k masks and ranks of rows: their steps are where two numbers trade places. Of equal numbers the earlier ranks higher."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from stepgrad.errors import whole_number
from stepgrad.steps.estimators import Method, Steps
from stepgrad.steps.layers.base import FourTensors, StepLayer

_TINY = torch.finfo(torch.float64).tiny
_PAIRS_AT_ONCE = 1 << 22


def inverse_distance(distance: Tensor, min_step: float) -> Tensor:
    """1 / distance, bounded below by min_step; 0 for a zero distance without a bound."""
    bounded = distance.clamp(min=min_step)
    return torch.where(bounded > 0, 1.0 / bounded.clamp(min=_TINY), 0.0)


def ranks_above(place: Tensor, i: Tensor, other: Tensor, j: Tensor) -> Tensor:
    """Whether number i, were it at `place`, ranks above number j at `other`."""
    return (place > other) | ((place == other) & (i < j))


def by_rank(rows: Tensor) -> Tensor:
    """(R, n) indices, largest number first."""
    return rows.sort(dim=1, descending=True, stable=True).indices


def top_k_mask(rows: Tensor, k: int) -> Tensor:
    """1 for the k largest of each row, else 0."""
    return torch.zeros_like(rows).scatter_(1, by_rank(rows)[:, :k], 1.0)


def pull_back_top_k(rows: Tensor, outer: Tensor, k: int, method: Method) -> Tensor:
    """A number inside trades places with the first outside, at that one's value; one outside with the last inside.

    Every column of the Jacobian has this one step, on one side, so that MEE and SDE agree.
    """
    n = rows.shape[1]
    if k >= n:
        return torch.zeros_like(rows)
    order = by_rank(rows)
    inside = torch.zeros_like(rows, dtype=torch.bool).scatter_(1, order[:, :k], True)
    rival = torch.where(inside, order[:, k, None], order[:, k - 1, None])
    there, rise = rows.gather(1, rival), outer - outer.gather(1, rival)
    if method.estimator != "radius":
        return 0.5 * rise * inverse_distance((rows - there).abs(), method.min_step)
    radius = method.radius
    i = torch.arange(n, device=rows.device)
    falls = inside & ~ranks_above(rows - radius, i, there, rival)
    climbs = ~inside & ranks_above(rows + radius, i, there, rival)
    return rise * (falls | climbs) / (2.0 * radius)


def ranks(rows: Tensor) -> Tensor:
    """1 for the largest of each row, n for the smallest."""
    count = torch.arange(1.0, rows.shape[1] + 1, dtype=rows.dtype, device=rows.device)
    return torch.empty_like(rows).scatter_(1, by_rank(rows), count.expand_as(rows))


def own_rank_steps(rows: Tensor) -> FourTensors:
    """The nearest steps of each number's own rank, at the nearest number on either side; equal numbers are passed at once."""
    order = by_rank(rows)
    ordered = rows.gather(1, order)  # decreasing
    n = rows.shape[1]
    place = torch.arange(n, device=rows.device).expand_as(order)
    keys = (-ordered).contiguous()
    first = torch.searchsorted(keys, keys)  # the first and the last place with the same number
    last = torch.searchsorted(keys, keys, right=True) - 1
    up = torch.where(first < place, first, first.gather(1, (first - 1).clamp(min=0)))  # the place taken just beyond
    down = torch.where(last > place, last, last.gather(1, (last + 1).clamp(max=n - 1)))
    up_at = torch.where(up < place, ordered.gather(1, up), torch.inf)
    down_at = torch.where(down > place, ordered.gather(1, down), -torch.inf)
    back = torch.empty_like(order).scatter_(1, order, place)
    steps = (up_at, (up + 1).to(rows.dtype), down_at, (down + 1).to(rows.dtype))
    return tuple(part.gather(1, back) for part in steps)  # type: ignore[return-value]  # four of them


def pull_back_ranks(rows: Tensor, outer: Tensor, method: Method) -> Tensor:
    """Moving number i past number j changes the ranks of both: O(n^2) time, memory in pieces.

    The rank of j has that one step in x_i, on one side. The rank of i itself has steps on both sides.
    """
    if method.estimator == "radius":
        return _over_pairs(rows, outer, partial(_crossings, radius=method.radius))
    own_rank = method.slope(rows, Steps(ranks(rows), *own_rank_steps(rows)))
    return own_rank * outer + _over_pairs(rows, outer, partial(_inverse_distances, min_step=method.min_step))


def _over_pairs(rows: Tensor, outer: Tensor, weigh: Callable[..., Tensor]) -> Tensor:
    """Column i of the result from its pairs with all j: `weigh` gets some columns at a time."""
    R, n = rows.shape
    gradient = torch.zeros_like(rows)
    at_once = max(1, _PAIRS_AT_ONCE // max(1, R * n))
    index = torch.arange(n, device=rows.device)
    for start in range(0, n, at_once):
        i = index[start : start + at_once]
        gradient[:, i] = weigh(rows, outer, rows[:, i, None], outer[:, i, None], index, i[:, None])
    return gradient


def _inverse_distances(
    rows: Tensor, outer: Tensor, x: Tensor, own: Tensor, j: Tensor, i: Tensor, min_step: float
) -> Tensor:
    weight = inverse_distance((x - rows[:, None, :]).abs(), min_step).masked_fill(i == j, 0.0)
    return 0.5 * (weight @ outer[:, :, None]).squeeze(2)


def _crossings(rows: Tensor, outer: Tensor, x: Tensor, own: Tensor, j: Tensor, i: Tensor, radius: float) -> Tensor:
    others = rows[:, None, :]
    crossed = ranks_above(x + radius, i, others, j) & ~ranks_above(x - radius, i, others, j) & (i != j)
    return ((outer[:, None, :] - own) * crossed).sum(dim=2) / (2.0 * radius)


class TopKMask(StepLayer):
    """1 for the k largest numbers of each row, else 0; of equal numbers the earlier is the larger. O(n log n).

    If k is n or more, all are 1, and nothing can change.

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

    The value takes O(n log n). The gradient takes O(n^2) time (each number is a step of the rank of every other number, at its
    own distance) and linear memory.

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
