"""Calling somebody else's function: one row or many, arrays or tensors, every answer checked and counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from stepgrad.errors import ConfigError, InputError, NonFiniteError
from stepgrad.plain_tensors import refuse_unreadable

Floats = NDArray[np.float64]
_NUMBERS_AT_ONCE = 1 << 22  # a vectorised call never gets more input than this: 32 MB


class OutOfBudget(Exception):
    """The next round of evaluations does not fit into the budget. Caught inside the package."""


class Function:
    """f around one point: `value` is f(x), flat (m,); `moved` evaluates f with single coordinates of x replaced."""

    def __init__(self, f: Callable[..., Any], x: Any, vectorized: bool, budget: int | None) -> None:
        if not callable(f):
            raise InputError(f"Expected f to be a function but got {type(f).__name__}.")
        if budget is not None and budget < 1:
            raise ConfigError(f"Expected budget to be at least 1 (for f(x) itself) but got {budget!r}.")
        refuse_unreadable(x)
        self.f = f
        self.vectorized = vectorized
        self.budget = budget
        self.like = x.detach() if isinstance(x, torch.Tensor) else None
        self.x, self.shape = _checked_point(x)
        self.evaluations = 0
        self.out_shape: tuple[int, ...] | None = None
        self.value: Floats = self._call(self.x[None])[0]
        self._refuse_non_finite(self.value[None], None, None)

    def moved(self, coordinate: NDArray[np.int64], position: Floats) -> Floats:
        """f at x with coordinate[b] set to position[b], for each b: (B, m)."""
        if self.budget is not None and self.evaluations + len(position) > self.budget:
            raise OutOfBudget
        out = np.empty((len(position), len(self.value)))
        at_once = max(1, _NUMBERS_AT_ONCE // max(1, len(self.x)))
        for start in range(0, len(position), at_once):
            part = slice(start, start + at_once)
            rows = np.repeat(self.x[None], len(position[part]), axis=0)
            rows[np.arange(len(rows)), coordinate[part]] = position[part]
            out[part] = self._call(rows)
            self._refuse_non_finite(out[part], coordinate[part], position[part])
        return out

    def restore(self, flat: NDArray[Any], value: bool = False) -> Any:
        """Flat (m, n) numbers in the shapes of f and x, or a `value` (m,) in that of f; tensors if x is one."""
        outputs = self.out_shape or ()
        shaped = flat.reshape(outputs if value else (*outputs, *self.shape))
        return shaped if self.like is None else torch.from_numpy(np.array(shaped)).to(self.like.device)

    def name(self, i: int) -> str:
        """Coordinate i as the caller writes it."""
        index = tuple(int(k) for k in np.unravel_index(i, self.shape)) if self.shape else (0,)
        return f"coordinate {index[0] if len(index) == 1 else index}"

    def _call(self, rows: Floats) -> Floats:
        self.evaluations += len(rows)
        with torch.no_grad():
            if self.vectorized:
                given = self.f(self.argument(rows.reshape(len(rows), *self.shape)))
                return self._numbers(given, len(rows))
            return np.concatenate([self._numbers(self.f(self.argument(row.reshape(self.shape))), None) for row in rows])

    def argument(self, point: Floats) -> Any:
        """A copy that f may keep or overwrite: an array, or a float64 tensor on the device of x."""
        copy = np.array(point)
        return copy if self.like is None else torch.from_numpy(copy).to(self.like.device)

    def _numbers(self, returned: Any, rows: int | None) -> Floats:
        """What f returned as float64 (rows, m); `rows` None for a call with a single point."""
        array = _plain(returned)
        if array.dtype.kind not in "biuf":
            raise InputError(f"Expected f to return real numbers but got {type(returned).__name__} of {array.dtype}.")
        if rows is not None and array.shape[:1] != (rows,):
            raise InputError(
                f"Expected f to return {rows} rows for {rows} points (vectorized=True) but got shape {array.shape}; "
                "a function of one point needs vectorized=False."
            )
        shape = array.shape if rows is None else array.shape[1:]
        if self.out_shape is None:
            self.out_shape = shape
        if shape != self.out_shape:
            raise InputError(f"Expected f to return shape {self.out_shape} everywhere but got {shape}.")
        return array.astype(np.float64).reshape(rows or 1, -1)

    def _refuse_non_finite(self, out: Floats, coordinate: NDArray[np.int64] | None, position: Floats | None) -> None:
        bad = np.argwhere(~np.isfinite(out))
        if not len(bad):
            return
        row, output = bad[0]
        where = "at x itself"
        if coordinate is not None and position is not None:
            i = int(coordinate[row])
            where = f"with {self.name(i)} set to {position[row]:.17g} (it is {self.x[i]:.17g} in x)"
        of = f" in output {output}" if self.out_shape else ""
        raise NonFiniteError(
            f"Expected f to return finite numbers but got {out[row, output]}{of} {where}; "
            "keep the search away with search_range=, or define f there."
        )


def _plain(value: Any) -> NDArray[Any]:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        return (value.double() if value.is_floating_point() else value).numpy()  # NumPy has no bfloat16
    return np.asarray(value)


def _checked_point(x: Any) -> tuple[Floats, tuple[int, ...]]:
    """x flat in float64, and its shape."""
    refuse_unreadable(x)
    if isinstance(x, torch.Tensor):
        if not x.is_floating_point():
            raise InputError(f"Expected x to hold floating-point numbers but got {x.dtype}; call x.float() first.")
        x = x.detach().cpu().to(torch.float64).numpy()
    array = np.asarray(x)
    if array.dtype.kind not in "iuf":
        raise InputError(f"Expected x to be an array or tensor of real numbers but got {array.dtype}.")
    point = np.array(array, dtype=np.float64)
    bad = np.argwhere(~np.isfinite(point))
    if len(bad):
        index = tuple(int(k) for k in bad[0])
        raise NonFiniteError(f"Expected x to be finite but got {point[index]} at index {index}.")
    return point.reshape(-1), point.shape
