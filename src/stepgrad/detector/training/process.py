"""The process of a run: Ctrl-C asks it to stop at the next step, a second one at once; memory it frees goes back."""

from __future__ import annotations

import ctypes
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from stepgrad.errors import StepgradError

_MMAP_THRESHOLD = -3  # mallopt's name for it
_LARGE = 4 << 20


class RunInterrupted(StepgradError):
    """The run was asked to stop; its checkpoint is saved, and the message says how to continue."""


class Stop(Exception):
    """Leaves work that may be cut short, such as a validation."""


class Interrupts:
    """While in use, SIGINT and SIGTERM are noted in `asked` instead of ending the process."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():  # others may not set handlers
            self._before = {number: signal.signal(number, self._note) for number in self.SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._restore()

    def agree(self, timeout: float) -> None:
        """What one process was asked, all were."""
        from stepgrad.processes import sum_over_processes  # torch, for which `stepgrad --help` does not wait

        self.asked = sum_over_processes([float(self.asked)], timeout)[0] > 0

    def check(self) -> None:
        """Raise Stop if asked to."""
        if self.asked:
            raise Stop

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}


def return_large_blocks() -> bool:
    """Have the C library return blocks of 4 MB and more to the system as soon as they are freed; False if it is not glibc.

    Its default learns from what is freed and soon keeps blocks of up to 32 MB for reuse. Activations of images of all
    sizes, with small results kept between them, leave so many gaps that a pass over some thousand images took 15 GB.
    """
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018 - only glibc has it, and knows the option by this number
        return bool(library.mallopt(_MMAP_THRESHOLD, _LARGE))
    except (AttributeError, OSError, TypeError):
        return False
