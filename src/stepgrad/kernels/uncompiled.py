"""What kernels call that only compiled code has, for NUMBA_DISABLE_JIT=1: debuggers, coverage and mutation runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import numpy as np

F = TypeVar("F", bound=Callable[..., Any])


def as_python(function: F) -> F:
    """A kernel as it stands; like compiled ones it divides by zero and lets words overflow without a warning."""

    @wraps(function)
    def silent(*arguments: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*arguments)

    return silent  # type: ignore[return-value]


def lowest_bit(word: Any) -> int:
    """Index of the lowest set bit of a non-zero uint64.

    >>> lowest_bit(0b101000)
    3
    """
    return (int(word) & -int(word)).bit_length() - 1


def by_reference(owned: Any) -> Any:
    """Python passes by reference anyway."""
    return owned


def keep_alive(owned: Any) -> None:
    """Python counts references by itself."""
