"""The pseudogradient of any step function (Henderson & Ferrari 2016, Sec. 4.3): nearest steps, then an estimator."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from stepgrad.errors import ConfigError, InputError, one_of
from stepgrad.plain_tensors import narrowed, refuse_unreadable
from stepgrad.steps.estimators import Method, Steps, radius_difference
from stepgrad.steps.evaluate import Floats, Function
from stepgrad.steps.search import Bracketing, Entries, Limits, walk_candidates

SEARCH_OPTIONS = ["candidates", "oracle", "search_range", "tolerance", "value_tolerance", "growth", "budget"]


class SearchIncompleteWarning(UserWarning):
    """The evaluation budget ran out before every nearest step was found."""


@dataclass(frozen=True)
class NearestSteps(Steps):
    """The nearest steps of each output of f in each coordinate of x; float64, arrays or tensors as x is.

    `value` has the shape of f(x), everything else that shape followed by the shape of x. up_at = +inf and down_at = -inf
    where no step was found; the value beyond is then the present one. Where `up_unresolved` or `down_unresolved` is
    set, the budget ran out first, and whether there is a step is not known.
    """

    up_unresolved: Any
    down_unresolved: Any
    evaluations: int

    @property
    def up_found(self) -> Any:
        """Where there is a step above."""
        return self.up_at < np.inf

    @property
    def down_found(self) -> Any:
        """Where there is a step below."""
        return self.down_at > -np.inf

    @property
    def complete(self) -> bool:
        """Whether the search ended before the budget did."""
        return not (bool(self.up_unresolved.any()) or bool(self.down_unresolved.any()))


@dataclass(frozen=True)
class Pseudogradient:
    """What `pseudogradient(..., full=True)` returns."""

    gradient: Any
    value: Any
    steps: NearestSteps | None  # None for the radius estimator, which looks for none
    evaluations: int


def find_steps(
    f: Callable[..., Any],
    x: Any,
    *,
    vectorized: bool = False,
    candidates: Any = None,
    oracle: Callable[[Any], Sequence[Any]] | None = None,
    search_range: float = 1e3,
    tolerance: float = 1e-9,
    value_tolerance: float = 1e-12,
    growth: float = 2.0,
    budget: int | None = None,
) -> NearestSteps:
    """The nearest step of f above and below x in each coordinate, the others held fixed.

    A step is where the value changes over more than the tolerance. A value that f has at one point only is ignored,
    unless that point is x, which then has a step on either side at distance zero. Steps closer together than
    the tolerance count as one.

    Args:
        f: a piecewise-constant function of an array like x (always float64; a tensor if x is one), returning a number or
            an array of them. Each output has its own nearest steps.
        x: where; of any shape.
        vectorized: f takes points stacked along a new first dimension, (B, ...), and returns (B,) or (B, ...).
        candidates: every place at which f can step: the same numbers for all coordinates, or a list with one array per coordinate
            (of flattened x). Exact: the value is read between candidates, whose places are returned as they are.
        oracle: oracle(x) gives (up_at, up_value, down_at, down_value) itself, +-inf for none.
        search_range: without candidates or an oracle, how far to look on either side.
        tolerance: how closely to locate a step, in units of max(1, |x|). The end of the bracket that is nearer to x is returned,
            so a step within the tolerance of x is reported at x.
        value_tolerance: changes of f up to this, in units of max(1, |f|), are rounding noise.
        growth: the search looks at distances t, growth t, growth^2 t, ...: a step at distance d is always found if
            f differs from f(x) for (growth - 1) d beyond it. Narrower plateaus may be missed; candidates never are.
        budget: the largest number of evaluations of f. The search stops before the round that would exceed it.

    >>> steps = find_steps(lambda s: float(s[0] > s[1]), np.array([0.0, 2.0]), candidates=[[2.0], [0.0]])
    >>> steps.value.item(), steps.up_at.tolist(), steps.up_value.tolist(), steps.down_at.tolist()
    (0.0, [2.0, inf], [1.0, 0.0], [-inf, 0.0])
    """
    limits = Limits(search_range, tolerance, value_tolerance, growth)
    if candidates is not None and oracle is not None:
        raise ConfigError("Expected candidates= or oracle= but got both; either one names the steps.")
    function = Function(f, x, vectorized, budget)
    if oracle is not None:
        entries = _ask_oracle(function, oracle)
    elif candidates is not None:
        entries = walk_candidates(function, _per_coordinate(candidates, function), limits)
    else:
        entries = Bracketing(function, limits).run()
    return _collect(function, entries)


def pseudogradient(
    f: Callable[..., Any],
    x: Any,
    estimator: str = "mee",
    *,
    radius: float = 1.0,
    min_step: float = 0.0,
    vectorized: bool = False,
    full: bool = False,
    **search: Any,
) -> Any:
    """The pseudogradient of a piecewise-constant f at x; for outputs of shape S the pseudo-Jacobian, S + x.shape.

    Args:
        f: the function, as for `find_steps`.
        x: where, as for `find_steps`.
        estimator: "mee" and "sde" use the nearest steps; "radius" is (f(x + radius) - f(x - radius)) / (2 radius) per coordinate.
        radius: for the radius estimator, in units of x.
        min_step: lower bound on the distance to a step, as for `sde` and `mee`.
        vectorized: as for `find_steps`.
        full: return a `Pseudogradient`, which also has the steps found, and where the budget ran out. Without it, a
            search that runs out of budget warns, and unknown steps contribute nothing.
        search: candidates, oracle, search_range, tolerance, value_tolerance, growth and budget of `find_steps`.

    >>> x = np.array([0.25, 3.0])
    >>> pseudogradient(lambda v: np.round(v).sum(), x).round(6).tolist()           # stairs as wide as high climb by one
    [1.0, 1.0]
    >>> pseudogradient(np.round, x, estimator="sde", candidates=np.arange(-9.5, 10)).tolist()      # a pseudo-Jacobian
    [[2.6666666666666665, 0.0], [0.0, 2.0]]
    """
    method = Method(estimator, radius, min_step)
    check_search_options(search)
    if estimator == "radius":
        result = _by_radius(f, x, method.radius, vectorized, search.get("budget"))
    else:
        result = _by_steps(x, method, find_steps(f, x, vectorized=vectorized, **search))
    if full:
        return result
    warn_if_incomplete(result.steps)
    return result.gradient


def check_search_options(given: dict[str, Any]) -> None:
    """Raise ConfigError for an option that no search has."""
    for name in given:
        one_of("search options", name, SEARCH_OPTIONS)


def _by_steps(x: Any, method: Method, steps: NearestSteps) -> Pseudogradient:
    value = _array(steps.value)
    up_at, up_value, down_at, down_value = map(_array, (steps.up_at, steps.up_value, steps.down_at, steps.down_value))
    lifted = value.reshape((*value.shape, *[1] * (up_at.ndim - value.ndim)))  # one value for all coordinates
    gradient = method.slope(_array(x), Steps(lifted, up_at, up_value, down_at, down_value))
    return Pseudogradient(_like(gradient, x), steps.value, steps, steps.evaluations)


def _by_radius(f: Callable[..., Any], x: Any, radius: float, vectorized: bool, budget: int | None) -> Pseudogradient:
    function = Function(f, x, vectorized, None)
    n = len(function.x)
    if budget is not None and budget < 1 + 2 * n:
        raise ConfigError(f"Expected a budget of at least {1 + 2 * n} for {n} coordinates but got {budget!r}.")
    everyone = np.tile(np.arange(n), 2)
    shifts = np.repeat([radius, -radius], n)
    raised, lowered = function.moved(everyone, function.x[everyone] + shifts).reshape(2, n, -1)
    gradient = function.restore(radius_difference(raised, lowered, radius).T)
    value = function.restore(function.value, value=True)
    return Pseudogradient(_like(_array(gradient), x), value, None, function.evaluations)


def _array(value: Any) -> Floats:
    plain = value.detach().cpu().double().numpy() if isinstance(value, torch.Tensor) else value
    return np.asarray(plain, dtype=np.float64)


def _like(gradient: Floats, x: Any) -> Any:
    """A tensor in the dtype and on the device of x if x is one."""
    if not isinstance(x, torch.Tensor):
        return gradient
    return narrowed(torch.from_numpy(np.array(gradient)), x.dtype).to(x.device)


def _collect(function: Function, entries: Entries) -> NearestSteps:
    m, n = len(function.value), len(function.x)
    (up_at, down_at), (up_value, down_value), (up_open, down_open) = (
        a.reshape(2, m, n) for a in (entries.at, entries.value, entries.open)
    )
    return NearestSteps(
        value=function.restore(function.value, value=True),
        up_at=function.restore(up_at),
        up_value=function.restore(up_value),
        down_at=function.restore(down_at + 0.0),  # no -0.0
        down_value=function.restore(down_value),
        up_unresolved=function.restore(up_open),
        down_unresolved=function.restore(down_open),
        evaluations=function.evaluations,
    )


def _per_coordinate(candidates: Any, function: Function) -> list[Floats]:
    """One array of finite locations per coordinate; infinities are padding."""
    n = len(function.x)
    refuse_unreadable(candidates)
    try:
        alike = isinstance(candidates, (int, float)) or _dimensions(candidates) == 1
        arrays = [_array(candidates).reshape(-1)] * n if alike else [_array(c).reshape(-1) for c in candidates]
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"Expected candidates to be numbers or arrays of them but got {candidates!r}.") from error
    if len(arrays) != n:
        raise InputError(
            f"Expected candidates to be numbers for all coordinates or a list of {n} arrays but got {len(arrays)}."
        )
    for i, array in enumerate(arrays):
        if np.isnan(array).any():
            raise InputError(f"Expected candidates to be numbers but {function.name(i)} has a nan among them.")
    return [array[np.isfinite(array)] for array in arrays]


def _dimensions(candidates: Any) -> int:
    """1 for a list or array of plain numbers, 2 for a list of lists, of which some may be empty."""
    if hasattr(candidates, "ndim"):
        return int(candidates.ndim)
    return 1 if all(np.ndim(c) == 0 for c in candidates) else 2


def _ask_oracle(function: Function, oracle: Callable[[Any], Sequence[Any]]) -> Entries:
    answers = [_array(a) for a in oracle(function.argument(function.x.reshape(function.shape)))]
    expected = (*(function.out_shape or ()), *function.shape)
    if len(answers) != 4 or any(a.shape != expected for a in answers):
        raise InputError(
            f"Expected oracle to return up_at, up_value, down_at and down_value of shape {expected} but got "
            f"{[a.shape for a in answers]}."
        )
    up_at, up_value, down_at, down_value = (a.reshape(len(function.value), len(function.x)) for a in answers)
    entries = Entries.of(function)
    entries.at[:] = np.stack([up_at, down_at]).ravel()
    entries.value[:] = np.stack([up_value, down_value]).ravel()
    entries.open[:] = False
    behind = entries.sign * (entries.at - function.x[entries.coordinate])
    bad = np.flatnonzero(~(behind >= 0.0) | np.isnan(entries.value))
    if len(bad):
        e = int(bad[0])
        side = "above" if entries.sign[e] > 0 else "below"
        raise InputError(
            f"Expected oracle to give steps on the right side of x, but the one {side} {function.x[entries.coordinate[e]]:g} "
            f"in {function.name(int(entries.coordinate[e]))} is at {entries.at[e]:g} with value {entries.value[e]:g}."
        )
    return entries


def warn_if_incomplete(steps: NearestSteps | None) -> None:
    """Say that the budget ran out, at the line that called the library's function."""
    if steps is None or steps.complete:
        return
    unknown = int(steps.up_unresolved.sum()) + int(steps.down_unresolved.sum())
    warnings.warn(
        f"The budget ran out after {steps.evaluations} evaluations with {unknown} nearest steps unknown; they contribute "
        "nothing. Raise budget=, or call pseudogradient with full=True to see which.",
        SearchIncompleteWarning,
        stacklevel=3,
    )
