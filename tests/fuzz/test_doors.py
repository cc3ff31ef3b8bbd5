"""Wrong tensors, and things that are none, get an answer or a StepgradError from every function that takes tensors."""

from __future__ import annotations

import sys

import pytest

from tests.fuzz.campaign import again, run_many
from tests.fuzz.doors import DOORS

CI = 40
"""Cases of each door in the suite."""
NIGHTLY = 20_000

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="cases are limited in time and memory by Unix means")


def _check(name: str, numbers: range) -> None:
    count = run_many(DOORS[name], numbers)
    first = [f"{again(name, number)}\n{report}" for number, report in list(count.escapes.items())[:3]]
    assert not first, f"{len(count.escapes)} of {len(numbers)} cases escaped, first:\n" + "\n".join(first)


@pytest.mark.parametrize("name", DOORS)
def test_wrong_arguments_get_an_answer_or_a_stepgrad_error(name: str) -> None:
    _check(name, range(CI))


@pytest.mark.nightly
@pytest.mark.parametrize("name", DOORS)
def test_wrong_arguments_get_an_answer_or_a_stepgrad_error_at_full_size(name: str) -> None:
    _check(name, range(CI, CI + NIGHTLY))
