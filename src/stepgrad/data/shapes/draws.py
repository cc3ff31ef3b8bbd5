"""Random numbers that are the same on every machine and with every NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")


class Draws:
    """A stream of draws named by a key of whole numbers.

    Only raw PCG64 words are used, whose sequence NumPy promises to keep; its distributions may change.

    >>> Draws(0, 1).integer(0, 100) == Draws(0, 1).integer(0, 100)
    True
    """

    def __init__(self, *key: int) -> None:
        self._bits = np.random.PCG64(np.random.SeedSequence(key))

    def unit(self) -> float:
        """Uniform in [0, 1)."""
        return (int(self._bits.random_raw()) >> 11) * 2.0**-53

    def uniform(self, low: float, high: float) -> float:
        """Uniform in [low, high)."""
        return low + (high - low) * self.unit()

    def integer(self, low: int, high: int) -> int:
        """Uniform in low .. high - 1."""
        return low + int(self._bits.random_raw()) % (high - low)

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self.unit() < probability

    def choice(self, options: Sequence[T]) -> T:
        """One of the options, each equally likely."""
        return options[self.integer(0, len(options))]

    def direction(self) -> tuple[float, float]:
        """A cosine and a sine of a random angle, by arithmetic alone: sin and cos differ between machines."""
        t = self.uniform(-1.0, 1.0)
        cosine, sine = (1.0 - t * t) / (1.0 + t * t), 2.0 * t / (1.0 + t * t)  # angles within a quarter turn of 0
        return self.choice([(cosine, sine), (-cosine, sine), (sine, cosine), (sine, -cosine)])

    def colour(self) -> NDArray[np.int32]:
        """(3,) values from 0 to 255."""
        return np.array([self.integer(0, 256) for _ in range(3)], dtype=np.int32)

    def bytes(self, *shape: int) -> NDArray[np.uint8]:
        """Values from 0 to 255, many at a time."""
        count = int(np.prod(shape))
        words = self._bits.random_raw(-(-count // 8)).astype("<u8")
        return words.view(np.uint8)[:count].reshape(shape)

    def units(self, *shape: int) -> NDArray[np.float64]:
        """Uniform in [0, 1), many at a time."""
        words = self._bits.random_raw(int(np.prod(shape)))
        return ((words >> np.uint64(11)).astype(np.float64) * 2.0**-53).reshape(shape)
