"""Where the time of a run goes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Times:
    """Seconds by part of the work, in the order in which they first came.

    >>> times = Times()
    >>> with times.of("windows"):
    ...     pass
    >>> list(times.seconds)
    ['windows']
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def of(self, part: str) -> Iterator[None]:
        """Count the time of a block."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[part] = self.seconds.get(part, 0.0) + time.monotonic() - began
