"""Which shifts have tables, and how much room there is for them."""

from __future__ import annotations

import numpy as np
import pytest

from stepgrad.kernels.edited_ap import _table, new_lift
from stepgrad.kernels.matching import FALSE_POSITIVE, TRUE_POSITIVE
from stepgrad.kernels.overlaps import spatial_slots
from tests.kernels.lists import lists_of


@pytest.mark.parametrize(("a", "c", "kept"), [(2, 24, True), (-2, -24, True), (3, 0, False), (0, -25, False)])
def test_tables_are_kept_for_the_common_shifts(a: int, c: int, kept: bool) -> None:
    roles = np.full(120, TRUE_POSITIVE, dtype=np.int8)
    roles[:40] = FALSE_POSITIVE
    ranked = lists_of(roles, np.arange(90))
    lift = new_lift(ranked)
    assert _table(ranked, lift, 0, a, c) == (0 if kept else -1)
    assert _table(ranked, lift, 0, a, c) == (0 if kept else -1)  # made once
    if kept:
        k = np.arange(1, 81)
        expected = np.where((k + a > 0) & (k + a <= 89), (k + a) / (ranked.rank[0, 1:81] + c), 0.0)
        assert np.array_equal(lift.precision[0, 0, 1:], expected)


@pytest.mark.parametrize("T", [0, 1, 48, 49, 63, 64, 130])
def test_there_is_room_for_every_jump_and_none_where_lists_are_short(T: int) -> None:
    lift = new_lift(lists_of(np.full((2, T), TRUE_POSITIVE), np.arange(T + 1)))
    _, tables, levels, columns = lift.jump.shape
    assert tables == (48 if T > 48 else 0)
    assert levels == max(1, T.bit_length())
    assert columns == T + 1
    assert lift.precision.shape == lift.high.shape == lift.low.shape == (2, tables, T + 1)


def test_windows_of_one_word_keep_their_order() -> None:
    boxes = np.random.default_rng(1).uniform(0, 9, size=(64, 4))
    slots = spatial_slots(boxes, np.array([0, 64]), lambda keys: np.arange(len(keys), dtype=np.int32)[::-1])
    assert slots.window_of.tolist() == list(range(64))
