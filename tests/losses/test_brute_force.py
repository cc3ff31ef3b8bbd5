"""Losses with every option, and AP by size, against brute force; `python -m tests.brute_force` prints the counts."""

from __future__ import annotations

from tests.brute_force import compare_options, compare_sizes
from tests.scenes import over_seeds


@over_seeds(40, 3000)
def test_a_loss_with_any_options_equals_brute_force(seed: int) -> None:
    compare_options(seed)


@over_seeds(20, 1000)
def test_ap_by_size_as_loss_as_steps_and_in_the_evaluator_equals_brute_force(seed: int) -> None:
    compare_sizes(seed)
