"""Many cases of one reader. A case is a function of the reader's name and a number: any of them can be run again."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.fuzz.damage import damage
from tests.fuzz.damage_bytes import Files
from tests.fuzz.doors import DOORS, Door
from tests.fuzz.guarded import Outcome, run_case
from tests.fuzz.readers import READERS, Reader

SUBJECTS: dict[str, Reader | Door] = {**READERS, **DOORS}
"""Everything that is tried."""


@dataclass
class Count:
    """What came of the cases of one reader or door."""

    reader: str
    outcomes: Counter[str] = field(default_factory=Counter)
    escapes: dict[int, str] = field(default_factory=dict)
    """By number of the case."""
    seconds: float = 0.0

    def __str__(self) -> str:
        answers, refused, escapes = (self.outcomes[kind] for kind in ("answer", "refused", "escape"))
        total = self.outcomes.total()
        return f"{self.reader:<16}{total:>8}{answers:>10}{refused:>16}{escapes:>9}{self.seconds:>9.0f}"


HEADING = f"{'reader':<16}{'cases':>8}{'answers':>10}{'StepgradErrors':>16}{'escapes':>9}{'seconds':>9}"


def files_of(reader: Reader, number: int) -> Files:
    """The damaged files of a case."""
    return damage(reader.seed(), Random(f"{reader.name} {number}"))


def run_number(subject: Reader | Door, number: int, guard: Path) -> Outcome:
    """One case."""
    if isinstance(subject, Door):
        arguments = subject.damaged(number)
        return run_case(guard, {}, lambda _: subject.enter(arguments))
    return run_case(guard, files_of(subject, number), subject.call)


def _run_undamaged(subject: Reader | Door, guard: Path) -> Outcome:
    """Without limits: the first call of all compiles kernels."""
    if isinstance(subject, Door):
        return run_case(guard, {}, lambda _: subject.enter(subject.arguments()), limited=False)
    return run_case(guard, subject.seed(), subject.call, limited=False)


def run_many(subject: Reader | Door, numbers: Iterable[int], seconds: float = float("inf")) -> Count:
    """Cases one after the other, until the time is up; undamaged input must get an answer first."""
    count = Count(subject.name)
    with tempfile.TemporaryDirectory() as place:
        guard = Path(place).resolve() / "guard"
        whole = _run_undamaged(subject, guard)
        assert whole.kind == "answer", f"{subject.name}: undamaged: {whole.report}"
        start = time.monotonic()  # the first call may compile kernels
        for number in numbers:
            outcome = run_number(subject, number, guard)
            count.outcomes[outcome.kind] += 1
            if outcome.kind == "escape":
                count.escapes[number] = outcome.report
            if time.monotonic() - start > seconds:
                break
    count.seconds = time.monotonic() - start
    return count


def again(reader: str, number: int) -> str:
    """The command that repeats a case."""
    return f"python -m tests.fuzz {reader} --case {number}"
