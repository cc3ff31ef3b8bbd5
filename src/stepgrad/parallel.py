"""A pool of threads for work that releases the interpreter lock, as kernels do."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")

_pool: ThreadPoolExecutor | None = None
_pool_key: tuple[int, int] = (0, 0)
_pool_lock = threading.Lock()


def run_threads(work: Callable[[A], B], items: Iterable[A], threads: int) -> list[B]:
    """[work(x) for x in items], on `threads` threads, results in order.

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
