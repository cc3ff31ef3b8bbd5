"""Damaged and hostile files of every kind get an answer or a StepgradError, in time, and change nothing around them."""

from __future__ import annotations

import sys

import pytest

from tests.fuzz.campaign import again, run_many
from tests.fuzz.readers import READERS

CI = 60
"""Cases of each reader in the suite."""
SLOW = ("config", "run-best", "run-last", "checkpoints", "weights")
"""Readers whose cases take a tenth of a second each, and get a third of the cases."""
NIGHTLY = 20_000

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="cases are limited in time and memory by Unix means")


def _check(name: str, numbers: range) -> None:
    count = run_many(READERS[name], numbers)
    first = [f"{again(name, number)}\n{report}" for number, report in list(count.escapes.items())[:3]]
    assert not first, f"{len(count.escapes)} of {len(numbers)} cases escaped, first:\n" + "\n".join(first)


@pytest.mark.parametrize("name", READERS)
def test_damaged_files_get_an_answer_or_a_stepgrad_error(name: str) -> None:
    _check(name, range(CI // 3 if name in SLOW else CI))


@pytest.mark.nightly
@pytest.mark.parametrize("name", READERS)
def test_damaged_files_get_an_answer_or_a_stepgrad_error_at_full_size(name: str) -> None:
    _check(name, range(CI, CI + NIGHTLY))
