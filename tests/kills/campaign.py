"""Kills, full disks and torn files in number, and the count of what came of them."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.kills.command import Command, Problems, half_written
from tests.kills.commands import Evaluate, Propose, Train
from tests.kills.new_head import TrainNewHead
from tests.kills.server import End, Server, server

SHARES = {"train": 0.3, "propose": 0.25, "evaluate": 0.25, "train_new_head": 0.2}
"""Of all kills."""
_TOO_SMALL = (2_000, 20_000)  # bytes at which writing fails: in the log, in a picture, in a checkpoint


@dataclass
class Count:
    """What was done, and what came of it."""

    kills: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By command and phase."""
    ends: Counter[str] = field(default_factory=Counter)
    """Commands that came to their end, and were compared with the unbroken one."""
    full_disks: int = 0
    torn_files: int = 0
    tracebacks: list[str] = field(default_factory=list)
    problems: Problems = field(default_factory=Counter)
    leftovers: int = 0
    """Half-written files that are still there after a command came to its end."""
    seconds: float = 0.0

    @property
    def all_kills(self) -> int:
        return sum(self.kills.values())

    @property
    def is_clean(self) -> bool:
        return not (self.problems.total() or self.leftovers or self.tracebacks)

    def __str__(self) -> str:
        lines = [f"{self.all_kills} kills in {self.seconds:.0f} s:"]
        lines += [f"  {command:14} {phase:14} {n:5}" for (command, phase), n in sorted(self.kills.items())]
        ends = ", ".join(f"{n} {command}" for command, n in sorted(self.ends.items()))
        lines.append(f"{self.full_disks} full disks, {self.torn_files} torn files")
        lines.append(f"commands brought to their end and compared with unbroken ones: {ends}")
        for kind in (
            "files lost",
            "files damaged",
            "weights that differ",
            "results that differ",
            "commands that failed",
        ):
            lines.append(f"{kind}: {self.problems[kind]}")
        lines.append(f"temporary files left behind: {self.leftovers}")
        lines.append(f"tracebacks: {len(self.tracebacks)}")
        return "\n".join([*lines, *self.tracebacks])


class Campaign:
    """Kills one command until the number is reached; a round ends when the command does."""

    def __init__(self, command: Command, count: Count, moments: random.Random) -> None:
        self.command, self.count, self.moments = command, count, moments

    def kill(self, times: int) -> None:
        before = self.count.all_kills
        while self.count.all_kills < before + times:
            self._choose()()
        self._let_end(self.command.words(self.command.folder))

    def _choose(self) -> Callable[[], None]:
        """What happens next, mostly a kill. (A second process in the same folder would be one more line here.)"""
        faults = {self._fill_disk: 0.08, self._tear: 0.08, self._kill_once: 0.84}
        return self.moments.choices(list(faults), list(faults.values()))[0]

    def _kill_once(self) -> None:
        """At any moment of a run's time; every third time in the middle of a write."""
        command, draw = self.command, self.moments
        words = command.words(command.folder)
        if draw.random() < 1 / 3:
            end = command.server.run(words, kill_at_write=draw.randint(1, command.writes))
        else:
            end = command.server.run(words, kill_after=draw.uniform(0, command.seconds))
        if end.killed:
            self.count.kills[command.name, command.phase()] += 1
            self.count.problems += command.check()
        else:
            self._ended(end)

    def _fill_disk(self) -> None:
        command = self.command
        end = command.server.run(command.words(command.folder), largest_file=self.moments.randrange(*_TOO_SMALL))
        self.count.full_disks += 1
        self.count.problems += command.check()
        if end.code == 0:
            self._ended(end)
        else:
            self._expect_message(end)

    def _tear(self) -> None:
        command = self.command
        torn = command.tear()
        if torn is None:
            return
        self.count.torn_files += 1
        end = command.server.run(command.words(command.folder))
        if end.code != 0:
            self._expect_message(end)
            self._let_end(command.mend(torn))
        else:
            self._ended(end)

    def _let_end(self, words: list[str]) -> None:
        self._ended(self.command.server.run(words))

    def _ended(self, end: End) -> None:
        if end.code != 0:
            self._expect_message(end)
            self.count.problems["commands that failed"] += 1
        else:
            self.count.problems += self.command.check_end()
            self.count.ends[self.command.name] += 1
            self.count.leftovers += len(half_written(self.command.folder))
        self.command.begin()

    def _expect_message(self, end: End) -> None:
        if end.code != 2 or "Traceback" in end.said:
            self.count.tracebacks.append(f"{self.command.name}, exit code {end.code}:\n{end.said}")


def run(
    kills: int,
    folder: Path,
    seed: int = 0,
    tell: Callable[[str], None] = lambda line: None,
    only: str | None = None,
) -> Count:
    """So many kills over all commands, or of one of them only."""
    shares = SHARES if only is None else {only: 1.0}
    count, began = Count(), time.monotonic()
    with server(folder) as children:
        for command in _commands(children, folder, shares):
            tell(f"{command.name}: {command.seconds:.1f} s unbroken")
            Campaign(command, count, random.Random(f"{seed} {command.name}")).kill(round(kills * shares[command.name]))
            count.seconds = time.monotonic() - began
            tell(str(count))
    return count


def _commands(children: Server, folder: Path, names: Collection[str]) -> Iterator[Command]:
    if "train_new_head" in names:
        yield TrainNewHead(children, folder)
    if "propose" in names:
        yield Propose(children, folder)
    if not {"train", "evaluate"} & set(names):
        return
    train = Train(children, folder)
    if "train" in names:
        yield train
    if "evaluate" in names:  # with a run of the training
        yield Evaluate(children, folder, run=train.root / "every_step")
