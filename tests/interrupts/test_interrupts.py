"""Ctrl-C at any moment of a call: KeyboardInterrupt, and the next call is right."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from stepgrad.threads import held, without_interrupt
from tests.interrupts.__main__ import outcomes
from tests.interrupts.subjects import SUBJECTS

pytestmark = pytest.mark.skipif(os.name == "nt", reason="os.kill ends the process there")
QUICK = ("MAPLoss, MEE, 1 class, 2 threads", "nms", "ranking losses")


@pytest.mark.parametrize("name", QUICK)
def test_an_interrupted_call_raises_keyboard_interrupt_and_the_next_is_right(name: str) -> None:
    assert outcomes(name, count=20, seed=0) == {"KeyboardInterrupt": 20}


@pytest.mark.nightly
@pytest.mark.parametrize("name", SUBJECTS)
def test_interrupts_of_every_call(name: str) -> None:
    assert outcomes(name, count=100, seed=1) == {"KeyboardInterrupt": 100}


@pytest.fixture(autouse=True)
def python_handles_ctrl_c() -> Iterator[None]:
    """A shell lets processes in the background ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_waits_for_the_end_of_the_call_and_then_raises() -> None:
    done: list[str] = []

    def work() -> None:
        assert held()
        os.kill(os.getpid(), signal.SIGINT)
        done.append("all of it")

    with pytest.raises(KeyboardInterrupt):
        without_interrupt(work)
    assert done == ["all of it"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_error_of_the_call_comes_out_and_the_handler_is_back() -> None:
    def work() -> None:
        raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        without_interrupt(work)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_users_own_handler_is_called_once_the_call_is_done() -> None:
    seen: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    result = without_interrupt(lambda: (os.kill(os.getpid(), signal.SIGINT), list(seen))[1])
    assert (result, seen) == ([], [signal.SIGINT])
