"""Makes a process that handles images of many sizes give its memory back."""

from __future__ import annotations

import ctypes

_MMAP_THRESHOLD = -3  # mallopt's name for it
_LARGE = 4 << 20


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
