"""Work on threads, and Ctrl-C held back for the length of a call that it must not interrupt.

Python handles a signal on its main thread, whenever Python code runs there. While numba hands arguments to a kernel and takes
its result, it calls a little Python code, and does not look whether that raised: a KeyboardInterrupt there becomes a
SystemError or a segmentation fault. Threads other than the main one never handle signals.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

A = TypeVar("A")
B = TypeVar("B")
R = TypeVar("R")

main_thread = threading.main_thread().ident
"""The thread that handles signals."""
_pool: ThreadPoolExecutor | None = None
_pool_key: tuple[int, int] = (0, 0)
_pool_lock = threading.Lock()
_here = threading.local()


def run_threads(work: Callable[[A], B], items: Iterable[A], threads: int) -> list[B]:
    """[work(x) for x in items], on `threads` threads, results in order.

    After a Ctrl-C no further item is begun. Work that calls this does its own items itself: if it waited for a thread of the
    pool, it could wait for ever.
    """
    items = list(items)
    if threads <= 1 or len(items) <= 1 or getattr(_here, "is_of_pool", False):
        return [work(item) for item in items]
    # A Ctrl-C while the pool starts a thread would leave it a thread that it does not know of.
    return list(without_interrupt(_pool_of(threads).map, work, items))


def _pool_of(threads: int) -> ThreadPoolExecutor:
    """The pool of this process: after a fork the child makes its own."""
    global _pool, _pool_key
    with _pool_lock:
        if _pool is None or _pool_key != (os.getpid(), threads):
            _pool = ThreadPoolExecutor(threads, "stepgrad", _note_pool_thread)
            _pool_key = (os.getpid(), threads)
        return _pool


def _note_pool_thread() -> None:
    _here.is_of_pool = True


def _note_main_thread() -> None:
    """After a fork the only thread of the child is its main one."""
    global main_thread
    main_thread = threading.get_ident()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_main_thread)


class _HeldBack:
    """A handler that notes interrupts, for the handler in whose place it is."""

    def __init__(self) -> None:
        self.arrived: list[tuple[int, Any]] = []

    def __call__(self, *interrupt: Any) -> None:
        self.arrived.append(interrupt)


def without_interrupt(work: Callable[..., R], *arguments: Any, **named: Any) -> R:
    """work(*arguments, **named); a Ctrl-C that comes meanwhile takes effect at its end.

    The handler is exchanged rather than the signal blocked: a blocked signal reaches another thread of the process, and Python
    then handles it on the main thread all the same.
    """
    handler = _handler()
    if not callable(handler):  # another thread, or a Ctrl-C that raises nothing
        return work(*arguments, **named)
    noted = _HeldBack()
    try:
        signal.signal(signal.SIGINT, noted)
        return work(*arguments, **named)
    finally:
        signal.signal(signal.SIGINT, handler)  # notes what has come but was not handled yet, then exchanges
        if noted.arrived:
            handler(*noted.arrived[-1])


def held() -> bool:
    """Whether this thread is inside `without_interrupt`, and a Ctrl-C would wait."""
    return isinstance(_handler(), _HeldBack)


def _handler() -> Any:
    """What a Ctrl-C calls on this thread; None on every thread but the main one."""
    return signal.getsignal(signal.SIGINT) if threading.get_ident() == main_thread else None
