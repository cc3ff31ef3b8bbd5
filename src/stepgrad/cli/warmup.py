"""`stepgrad warmup`: compile all kernels ahead, for images of containers and for continuous integration."""

from __future__ import annotations

import time

from stepgrad.cli.terminal import Terminal, safe_text
from stepgrad.errors import ConfigError
from stepgrad.number_text import counted
from stepgrad.progress import RichProgress


def warmup() -> int:
    """Compile everything in advance, so that no first call has to wait: for container images and CI.

    All kernels of the losses, the evaluator and the rankings are compiled, and kept on disk for this version of stepgrad, this
    version of numba and this type of CPU. Run the command while you build a container image, or before the tests in CI. Kernels
    that are already compiled are not compiled again.

    Returns:
        0.
    """
    from stepgrad.engine.cache import find_folder  # brings numba, which the help does not wait for
    from stepgrad.losses.warmup import CALLS, warm_up

    console = Terminal()
    folder, complaint = find_folder()
    if folder is None:
        raise ConfigError(f"No kernels were compiled: {complaint}")
    began = time.monotonic()
    with RichProgress(Terminal(stderr=True)) as progress, progress.stage("compiling", len(CALLS)) as tick:
        compiled = warm_up(tick=tick)
    if not compiled:
        console.print(f"All kernels are already compiled, in {safe_text(folder)}", soft_wrap=True)
        return 0
    seconds = time.monotonic() - began
    console.print(
        f"Compiled {counted(compiled, 'kernel')} in {seconds:.0f} s, kept in {safe_text(folder)}", soft_wrap=True
    )
    return 0
