"""One thing that is wrong with a dataset: where, what, and what to do about it."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stepgrad.errors import DataError, one_of

Severity = Literal["error", "warning"]
Degenerate = Literal["error", "drop"]


@dataclass(frozen=True)
class Problem:
    """A defect of the data. An "error" breaks or spoils training; a "warning" does not, but is worth knowing.

    >>> print(Problem("a.xml", "holds no objects", "remove it", "warning", "no-objects"))
    a.xml: holds no objects; remove it
    """

    path: str
    what: str
    fix: str
    severity: Severity = "error"
    kind: str = "other"
    """A short name shared by all problems of one sort, to group and filter them by."""

    def __str__(self) -> str:
        return f"{self.path}: {self.what}; {self.fix}"


DROP = '`stepgrad convert --degenerate drop` writes the data without such objects (degenerate="drop" in Python)'
"""The way out of boxes without area."""
Report = Callable[[Problem], None]
"""Readers hand each problem to one of these: loading raises at the first error, the doctor collects them all."""


def raise_errors(problem: Problem) -> None:
    """The report of a loader: an error stops it, a warning passes."""
    if problem.severity == "error":
        raise DataError(f"{problem} (`stepgrad doctor` lists every such problem)")


def loading_report(degenerate: Degenerate) -> Report:
    """The report of a loader for which boxes without area are errors, or pass and are left out."""
    one_of("degenerate", degenerate, ["error", "drop"])

    def report(problem: Problem) -> None:
        if degenerate == "error" or problem.kind != "box-degenerate":
            raise_errors(problem)

    return report


class Complaints:
    """Reports the problems of one file."""

    def __init__(self, path: str | Path, report: Report) -> None:
        self.path, self.report = str(path), report

    def __call__(self, defect: str, fix: str, kind: str, severity: Severity = "error") -> Any:
        """Hand a problem on. Gives None, for readers to return instead of what they could not read."""
        self.report(Problem(self.path, defect, fix, severity, kind))


def repeats_text(word: str, pairs: Sequence[tuple[int, int]]) -> str:
    """Repeats and what each repeats, runs of numbers folded.

    >>> repeats_text("line", [(6, 1)]), repeats_text("line", [(23, 1), (24, 2), (25, 3), (30, 3)])
    ('line 6 repeats line 1', 'lines 23-25, 30 repeat lines 1-3')
    """
    if len(pairs) == 1:
        return f"{word} {pairs[0][0]} repeats {word} {pairs[0][1]}"
    later, earlier = zip(*pairs, strict=True)
    return f"{word}s {_ranges(later)} repeat {word}s {_ranges(earlier)}"


def _ranges(numbers: Iterable[int], most: int = 8) -> str:
    """Numbers with runs folded, cut after `most` runs."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    return ", ".join(texts[:most] + ["..."] * (len(texts) > most))


def brief(value: object) -> str:
    """A value for a message: lists and objects cut short, however long or deeply nested a file has them.

    >>> brief("000123"), brief([[[[[[[[1]]]]]]]])
    ("'000123'", '[[[[[[[...]]]]]]]')
    """
    return repr(value) if isinstance(value, (str, float)) and len(str(value)) < 200 else reprlib.repr(value)
