"""A bar for a call that takes minutes: on a terminal, where rich is installed; else nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from stepgrad.fine_tuning.ways import Watch


@contextmanager
def bar(shown: bool) -> Iterator[Watch]:
    """A function that is told the work at hand, what is done of it and all of it."""
    if not shown or find_spec("rich") is None:
        yield lambda what, done, total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=None)

        def watch(what: str, done: int, total: int) -> None:
            progress.update(task, description=what, completed=done, total=total)

        yield watch
