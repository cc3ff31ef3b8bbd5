"""Damaged files and wrong arguments get an answer or a StepgradError, in time, and change nothing around them."""

from __future__ import annotations

import sys

import pytest

from tests.fuzz.campaign import SUBJECTS, again, run_many
from tests.fuzz.doors import DOORS

CI = {"reader": 60, "door": 40}
"""Cases of each in the suite."""
SLOW = ("config", "run-best", "run-last", "checkpoints", "weights")
"""Readers whose cases take a tenth of a second each, and get a third of the cases."""
NIGHTLY = 20_000

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="cases are limited in time and memory by Unix means")


def _cases(name: str) -> int:
    return CI["door" if name in DOORS else "reader"] // (3 if name in SLOW else 1)


def _check(name: str, numbers: range) -> None:
    count = run_many(SUBJECTS[name], numbers)
    first = [f"{again(name, number)}\n{report}" for number, report in list(count.escapes.items())[:3]]
    assert not first, f"{len(count.escapes)} of {len(numbers)} cases escaped, first:\n" + "\n".join(first)


@pytest.mark.parametrize("name", SUBJECTS)
def test_damage_gets_an_answer_or_a_stepgrad_error(name: str) -> None:
    _check(name, range(_cases(name)))


@pytest.mark.nightly
@pytest.mark.parametrize("name", SUBJECTS)
def test_damage_gets_an_answer_or_a_stepgrad_error_at_full_size(name: str) -> None:
    _check(name, range(_cases(name), _cases(name) + NIGHTLY))
