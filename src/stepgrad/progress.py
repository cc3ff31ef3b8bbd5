"""Progress of long work: bars on a terminal; where there is none, a line when work begins, and one now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import count
from types import TracebackType
from typing import TYPE_CHECKING, Any

from stepgrad.names import visible
from stepgrad.number_text import counted, metric_text, per_cent

if TYPE_CHECKING:  # without rich, calls of the library have lines
    from rich.console import Console, Group
    from rich.progress import TaskID

STAGE_PAUSE = 30.0
"""Least seconds between two lines of a stage."""
STEP_PAUSE = 10.0
"""Least seconds between two lines of training steps."""
MEMORY = 300.0
"""Seconds of past steps from which the time left is guessed."""

Watch = Callable[[str, int, int], object]
"""Told the work at hand, how much of it is done and all of it."""
DoneOfTotal = Callable[[int, int | None], None]


@contextmanager
def bar(shown: bool) -> Iterator[Watch]:
    """A function to tell how far a call of the library is, on stderr; it shows nothing unless `shown`."""
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
    done = count(1)

    def tick() -> None:
        watch(what, next(done), total)

    return tick


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


def first_line(what: str, total: int | None) -> str:
    """
    >>> first_line("detecting", 7)
    'detecting: 7 ...'
    """
    return f"{what} ..." if total is None else f"{what}: {total} ..."


def clock(seconds: float) -> str:
    """Hours, minutes and seconds.

    >>> clock(346.2)
    '0:05:46'
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


class RichProgress:
    """Shows the progress of a command or a run; `with RichProgress() as progress: train(config, out, progress=progress)`.

    A bar has the time left, and the numbers of the last step below.
    """

    def __init__(self, console: Console | None = None) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self.console = console or Console()
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
            speed_estimate_period=MEMORY,
            expand=True,
        )
        self._news = ""
        self._live = Live(console=self.console, get_renderable=self._render, refresh_per_second=10, transient=True)
        self._task: TaskID | None = None
        self._total = 0
        self._began = self._printed = time.monotonic()
        self._first = 0
        self._validated: list[Mapping[str, Any]] = []

    def _render(self) -> Group:
        from rich.console import Group
        from rich.text import Text

        return Group(*self._bars.get_renderables(), *([Text(self._news, style="dim")] if self._news else []))

    def __enter__(self) -> RichProgress:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._live.stop()

    def start(self, total: int, at: int) -> None:
        """Training begins, or continues, at step `at`."""
        self._total = total
        self._first = at
        self._validated = []
        self._began = self._printed = time.monotonic()
        if self._task is not None:  # of a run before this one
            self._bars.remove_task(self._task)
        self._task = self._bars.add_task("training", total=total, completed=at)

    def step(self, line: Mapping[str, Any]) -> None:
        """Move the bar; without one, print a line now and then."""
        self._news = describe_step(line, self._validated)
        if self._task is not None:
            self._bars.update(self._task, completed=line["step"], description=str(line.get("phase", "training")))
        now = time.monotonic()
        if not self.console.is_terminal and (now - self._printed >= STEP_PAUSE or line["step"] == self._total):
            self._printed = now
            left = (now - self._began) / max(line["step"] - self._first, 1) * (self._total - line["step"])
            self.say(f"step {line['step']}/{self._total}, {clock(left)} left: {self._news}")

    def val(self, line: Mapping[str, Any]) -> None:
        """Print the result above the bar, where it stays."""
        first, earlier = first_map(line), [first_map(val) for val in self._validated]
        best = line.get("best", first > max(earlier, default=-1.0))
        if line.get("map"):
            self._validated.append(line)
        shown = ", ".join(f"{name} {per_cent(value)}" for name, value in (line.get("map") or {}).items())
        shown += "".join(f", {name} {metric_text(name, value)}" for name, value in (line.get("metrics") or {}).items())
        images = counted(line["images"], "image") if "images" in line else "? images"
        text = f"step {line['step']} ({line.get('phase', 'start')}): validation mAP {shown} on {images}"
        self.say(text + (", the best so far" if best and len(self._validated) > 1 else ""))

    def say(self, text: str) -> None:
        """Print a line, in which markup and control characters of names are seen, not obeyed."""
        from rich.text import Text

        self.console.print(Text(visible(text)), soft_wrap=True)

    @contextmanager
    def stage(self, what: str, total: int | None = None) -> Iterator[Any]:
        """A bar of its own for other long work, which calls what it is given after each unit."""
        if not self.console.is_terminal and self._task is None:  # validations while training have a line of their own
            self.say(first_line(what, total))
        units = count(1)
        with self.counted(what, total) as show:
            yield lambda: show(next(units), total)

    @contextmanager
    def counted(self, what: str, total: int | None = None) -> Iterator[DoneOfTotal]:
        """The same for work that tells how much is done, and of how much; without a terminal, a line now and then."""
        task = self._bars.add_task(visible(what), total=total)
        plain = None if self.console.is_terminal else PlainStage(what, self.say)

        def show(done: int, total: int | None) -> None:
            self._bars.update(task, completed=done, total=total)
            if plain:
                plain.show(done, total)

        try:
            yield show
        finally:
            self._bars.remove_task(task)


def describe_step(line: Mapping[str, Any], validated: Sequence[Mapping[str, Any]]) -> str:
    """The numbers of a step, and of the validations before it, that tell whether training goes well.

    >>> validated = [{"map": {"voc12": 0.3}}, {"map": {"voc12": 0.25}}]
    >>> describe_step({"loss": 0.25, "map": 0.5, "positives": 31, "nonzero": 0.125}, validated)
    'loss 0.250, batch mAP 50.0, validation mAP 25.0 (best 30.0), 31 positives, 12.5 % of gradients are not zero'
    """
    parts = [f"loss {line['loss']:.3f}"] if line.get("loss") is not None else []
    if line.get("map") is not None:
        parts.append(f"batch mAP {per_cent(line['map'])}")
    parts += [f"batch {name} {metric_text(name, value)}" for name, value in (line.get("metrics") or {}).items()]
    if validated:
        parts += _describe_validations(validated)
    if line.get("positives") is not None:
        parts.append(f"{line['positives']} positives")
    if line.get("nonzero") is not None:
        parts.append(f"{per_cent(line['nonzero'])} % of gradients are not zero")
    return ", ".join(parts)


def _describe_validations(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the last validation found, and the best of each number so far: of the metric that is trained for, and of mAP."""
    from stepgrad.metric.options import get_metric  # other bars should not wait for numba

    parts = []
    for name, value in (lines[-1].get("metrics") or {}).items():
        better = max if get_metric(name).higher_is_better else min
        best = better(line["metrics"][name] for line in lines if name in line.get("metrics", {}))
        parts.append(f"validation {name} {metric_text(name, value)} (best {metric_text(name, best)})")
    maps = [first_map(line) for line in lines]
    return [*parts, f"validation mAP {per_cent(maps[-1])} (best {per_cent(max(maps))})"]


def first_map(line: Mapping[str, Any]) -> float:
    """The mAP of a validation by its first protocol; -1 where there is none."""
    return next(iter((line.get("map") or {}).values()), -1.0)
