"""The first call says that it compiles, and only if it does."""

import logging
import time
from collections.abc import Callable

import numba
import pytest
from numba.extending import overload

from stepgrad.engine import jit as _jit
from tests.patience import PATIENCE


@pytest.fixture(autouse=True)
def _fresh_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_jit, "_notice", _jit._CompilationNotice())
    monkeypatch.setattr(_jit, "_SECONDS_BEFORE_TELLING", 0.001)


def test_a_long_compilation_is_explained_once(caplog: pytest.LogCaptureFixture) -> None:
    def one_more(x: int) -> int:
        return x + 1

    @overload(one_more)
    def type_one_more(x: int) -> Callable[[int], int]:
        """Runs while what calls `one_more` is compiled, and takes until the word has come."""
        end = time.monotonic() + PATIENCE
        while not caplog.records and time.monotonic() < end:
            time.sleep(0.01)
        return one_more

    with caplog.at_level(logging.WARNING, "stepgrad"):
        for _ in range(2):
            with _jit.explain_wait():
                assert numba.njit(lambda x: one_more(x))(1) == 2
    assert [record.message.startswith("stepgrad is compiling") for record in caplog.records] == [True]


def test_work_that_takes_long_without_compiling_is_not(caplog: pytest.LogCaptureFixture) -> None:
    ready = numba.njit(lambda x: x + 1)
    ready(1)
    with caplog.at_level(logging.WARNING, "stepgrad"), _jit.explain_wait():
        time.sleep(0.05)
        ready(2)
    assert caplog.records == []


def test_a_short_compilation_is_not(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(_jit, "_SECONDS_BEFORE_TELLING", PATIENCE)
    with caplog.at_level(logging.WARNING, "stepgrad"), _jit.explain_wait():
        numba.njit(lambda x: x + 1)(1)
    assert caplog.records == []
