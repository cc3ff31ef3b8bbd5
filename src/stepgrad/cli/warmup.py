"""`stepgrad warmup`: compile all kernels ahead, for images of containers and for continuous integration."""

from __future__ import annotations

import time

from stepgrad.cli.progress import RichProgress
from stepgrad.cli.terminal import Terminal, safe_text
from stepgrad.errors import ConfigError


def warmup(workers: int | None = None) -> int:
    """Compile all kernels of the losses, the evaluator and the rankings now, so that no first call has to wait.

    Kernels are kept on disk for this version of stepgrad, this version of numba and this type of CPU. Run the command while
    you build a container image, or before the tests in CI. Kernels that are already compiled are not compiled again.

    Args:
        workers: Number of processes that compile; by default one per core.

    Returns:
        0.
    """
    if workers is not None and workers < 1:
        raise ConfigError(f"Expected --workers to be at least 1 but got {workers}.")
    from stepgrad.kernels.cache import find_folder  # brings numba, which the help does not wait for
    from stepgrad.kernels.warmup import compile_together, missing_uses, usual_workers

    console = Terminal()
    folder, complaint = find_folder()
    if folder is None:
        raise ConfigError(f"No kernels were compiled: {complaint}")
    missing = missing_uses()
    if not missing:
        console.print(f"All kernels are already compiled, in {safe_text(folder)}", soft_wrap=True)
        return 0
    began = time.monotonic()
    with RichProgress(Terminal(stderr=True)) as progress, progress.stage("compiling", len(missing)) as tick:
        compile_together(missing, usual_workers() if workers is None else workers - 1, tick)
    seconds = time.monotonic() - began
    console.print(f"Compiled {len(missing)} kernels in {seconds:.0f} s, kept in {safe_text(folder)}", soft_wrap=True)
    return 0
