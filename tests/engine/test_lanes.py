"""Rows of numbers: each operation does to a row what NumPy does to it, wherever in memory the row begins."""

from __future__ import annotations

import numpy as np
import pytest

from stepgrad.engine.jit import kernel
from stepgrad.engine.lanes import LANES, larger, load, look_up, minus, no_counts, no_numbers, plus, ratio, store, times


@kernel
def combined(small, whole, table, counts, numbers):
    """Every operation once."""
    a, b = load(small, 1), load(whole, 2)
    store(minus(plus(no_counts(), b), a), counts, 1)
    best = larger(ratio(a, b), look_up(table, a))
    store(plus(no_numbers(), times(best, minus(best, ratio(b, b)))), numbers, 1)


@pytest.mark.parametrize("offset", [0, 1])
def test_rows_are_combined_number_by_number(offset: int) -> None:
    rng = np.random.default_rng(offset)

    def placed(values: np.ndarray) -> np.ndarray:
        """The values in memory that begins `offset` numbers behind an aligned place."""
        room = np.zeros(values.size + offset, dtype=values.dtype)
        room[offset:] = values.reshape(-1)
        return room[offset:].reshape(values.shape)

    small = placed(rng.integers(0, 5, (3, LANES), dtype=np.uint8))
    whole = placed(rng.integers(1, 1000, (4, LANES), dtype=np.int32))
    table = placed(rng.random((5, LANES)))
    counts, numbers = placed(np.zeros((2, LANES), dtype=np.int32)), placed(np.zeros((2, LANES)))
    combined(small, whole, table, counts, numbers)
    a, b = small[1].astype(np.int64), whole[2].astype(np.int64)
    best = np.maximum(a / b, table[a, np.arange(LANES)])
    assert counts.tolist() == [[0] * LANES, (b - a).tolist()]
    assert numbers.tolist() == [[0.0] * LANES, (best * (best - 1.0)).tolist()]


@kernel
def larger_of(table, found):
    """The larger of two counts' ratios, the first of which may be nothing of nothing."""
    nothing = no_counts()
    store(larger(ratio(nothing, nothing), look_up(table, nothing)), found, 0)


def test_nothing_of_nothing_is_never_the_larger() -> None:
    table, found = np.full((1, LANES), -1.0), np.zeros((1, LANES))
    larger_of(table, found)
    assert found.tolist() == table.tolist()
