"""What a run tells whoever watches it, and where its time goes. The command line draws bars; a library call is quiet."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

Tick = Callable[[], None]
"""Called once for each unit of work that is done."""


class Progress(Protocol):
    """Receives the news of a run; the lines are those of log.jsonl."""

    def start(self, total: int, at: int) -> None:
        """Training begins, or continues, at step `at` of `total`."""
        return None

    def step(self, line: Mapping[str, Any]) -> None:
        """A step was taken; lines of kind "train"."""
        return None

    def val(self, line: Mapping[str, Any]) -> None:
        """A validation is done; lines of kind "val"."""
        return None

    def say(self, text: str) -> None:
        """Something worth a line of its own."""
        return None

    @contextmanager
    def stage(self, what: str, total: int | None = None) -> Iterator[Tick]:
        """Other long work: `with progress.stage("validating", 500) as tick: ...`."""
        yield lambda: None


class QuietProgress(Progress):
    """Says nothing."""


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
