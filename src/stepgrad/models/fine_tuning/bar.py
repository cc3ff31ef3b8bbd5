"""Progress of a call that takes minutes, on stderr: a bar on a terminal where rich is installed, else plain lines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from stepgrad.progress_lines import PlainStage, first_line

Watch = Callable[[str, int, int], object]
"""Told the work at hand, how much of it is done and all of it."""


@contextmanager
def bar(shown: bool) -> Iterator[Watch]:
    """A function to tell how far the work is; it shows nothing unless `shown`."""
    if not shown:
        yield lambda what, done, total: None
    elif find_spec("rich") is None or not sys.stderr.isatty():
        yield lines(lambda text: print(text, file=sys.stderr, flush=True))
    else:
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task("", total=None)
            yield lambda what, done, total: progress.update(task, description=what, completed=done, total=total)


def lines(say: Callable[[str], object]) -> Watch:
    """Says in lines what it is told: each new piece of work, and now and then how far it is."""
    stage: PlainStage | None = None

    def watch(what: str, done: int, total: int) -> None:
        nonlocal stage
        if stage is None or stage.what != what:
            say(first_line(what, total))
            stage = PlainStage(what, say)
        stage.show(done, total)

    return watch


def ticker(watch: Watch, what: str, total: int) -> Callable[[], None]:
    """A function that tells `watch` of one more each time it is called."""
    done = 0

    def tick() -> None:
        nonlocal done
        done += 1
        watch(what, done, total)

    return tick
