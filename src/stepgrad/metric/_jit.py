"""The one way kernels are compiled: cached on disk, without the interpreter lock, and with a word about the wait."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

logger = logging.getLogger("stepgrad")
kernel = numba.njit(cache=True, nogil=True, error_model="numpy")

A = TypeVar("A")
B = TypeVar("B")


@intrinsic
def lowest_bit(typingctx: Any, word: Any) -> Any:
    """Index of the lowest set bit of a non-zero uint64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), codegen


_told = threading.Event()
_SECONDS_BEFORE_TELLING = 1.0


def _tell() -> None:
    if not _told.is_set():
        _told.set()
        logger.warning(
            "stepgrad is compiling its kernels for this machine: about a minute, once; later runs use the cache."
        )


@contextmanager
def explain_wait() -> Iterator[None]:
    """Say why the first call takes long, if it does (a warm cache loads well within the second)."""
    if _told.is_set():
        yield
        return
    timer = threading.Timer(_SECONDS_BEFORE_TELLING, _tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        _told.set()


_pool: ThreadPoolExecutor | None = None
_pool_key: tuple[int, int] = (0, 0)
_pool_lock = threading.Lock()


def run_threads(work: Callable[[A], B], items: Iterable[A], threads: int) -> list[B]:
    """[work(x) for x in items], on `threads` threads (kernels release the interpreter lock), results in order.

    A pool belongs to one process: after a fork the child makes its own.
    """
    items = list(items)
    if threads <= 1 or len(items) <= 1:
        return [work(item) for item in items]
    global _pool, _pool_key
    with _pool_lock:
        if _pool is None or _pool_key != (os.getpid(), threads):
            _pool = ThreadPoolExecutor(threads, thread_name_prefix="stepgrad")
            _pool_key = (os.getpid(), threads)
        pool = _pool
    return list(pool.map(work, items))
