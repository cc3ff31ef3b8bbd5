"""A run on the terminal: a bar with the time left and the numbers of the last step; plain lines where there is no terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from types import TracebackType
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import TimeRemainingColumn as TimeLeftColumn
from rich.text import Text

from stepgrad.cli.terminal import Terminal, safe_text
from stepgrad.number_text import counted, metric_text, per_cent
from stepgrad.progress_lines import PlainStage, clock, first_line

PAUSE = 10.0
"""Least seconds between plain lines of training steps."""
MEMORY = 300.0
"""Seconds of past steps from which the time left is guessed."""

DoneOfTotal = Callable[[int, int | None], None]


class _Bars(Progress):
    """Bars with the numbers of the last step below."""

    news = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table([task for task in self.tasks if task.visible])
        if self.news:
            yield Text(self.news, style="dim")


class RichProgress:
    """Shows the progress of a run; `with RichProgress() as progress: train(config, out, progress=progress)`."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Terminal()
        self._bars = _Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeLeftColumn(),
            console=self.console,
            speed_estimate_period=MEMORY,
            transient=True,
            expand=True,
            disable=not self.console.is_terminal,
        )
        self._task: TaskID | None = None
        self._total = 0
        self._began = self._printed = time.monotonic()
        self._first = 0
        self._validated: list[Mapping[str, Any]] = []

    def __enter__(self) -> RichProgress:
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not self._bars.disable:  # some versions of rich end even bars that were never drawn with an empty line
            self._bars.stop()

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
        self._bars.news = describe_step(line, self._validated)
        if self._task is not None:
            self._bars.update(self._task, completed=line["step"], description=str(line.get("phase", "training")))
        now = time.monotonic()
        if self._bars.disable and (now - self._printed >= PAUSE or line["step"] == self._total):
            self._printed = now
            left = (now - self._began) / max(line["step"] - self._first, 1) * (self._total - line["step"])
            self._print(f"step {line['step']}/{self._total}, {clock(left)} left: {self._bars.news}")

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
        self._print(text + (", the best so far" if best and len(self._validated) > 1 else ""))

    def say(self, text: str) -> None:
        """Print a line."""
        self._print(text)

    @contextmanager
    def stage(self, what: str, total: int | None = None) -> Iterator[Any]:
        """A bar of its own for other long work, which calls what it is given after each unit."""
        if self._bars.disable and self._task is None:  # validations while training have a line of their own
            self._print(first_line(what, total))
        units = count(1)
        with self.counted(what, total) as show:
            yield lambda: show(next(units), total)

    @contextmanager
    def counted(self, what: str, total: int | None = None) -> Iterator[DoneOfTotal]:
        """The same for work that tells how much is done, and of how much; without a terminal, a line now and then."""
        task = self._bars.add_task(what, total=total)
        plain = PlainStage(what, self._print) if self._bars.disable else None

        def show(done: int, total: int | None) -> None:
            self._bars.update(task, completed=done, total=total)
            if plain:
                plain.show(done, total)

        try:
            yield show
        finally:
            self._bars.remove_task(task)

    def _print(self, text: str) -> None:
        self.console.print(safe_text(text), soft_wrap=True)


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
    from stepgrad.metric.options import get_metric  # other commands' bars should not wait for numba

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
