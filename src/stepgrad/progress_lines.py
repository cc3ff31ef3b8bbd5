"""Progress where there is no terminal for a bar: a line when work begins, and one now and then that tells how far it is."""

from __future__ import annotations

import time
from collections.abc import Callable

STAGE_PAUSE = 30.0
"""Seconds between two lines."""


def first_line(what: str, total: int | None) -> str:
    """
    >>> first_line("detecting", 7)
    'detecting: 7 ...'
    """
    return f"{what} ..." if total is None else f"{what}: {total} ..."


class PlainStage:
    """Says now and then how far a stage is."""

    def __init__(self, what: str, say: Callable[[str], object]) -> None:
        self.what = what
        self.say = say
        self.began = self.printed = time.monotonic()

    def show(self, done: int, total: int | None) -> None:
        """So much is done."""
        now = time.monotonic()
        if now - self.printed < STAGE_PAUSE:
            return
        self.printed = now
        if total is None:
            self.say(f"{self.what}: {done}")
        else:
            left = (now - self.began) / done * (total - done)
            self.say(f"{self.what}: {done}/{total}, {clock(left)} left")


def clock(seconds: float) -> str:
    """Hours, minutes and seconds.

    >>> clock(346.2)
    '0:05:46'
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
