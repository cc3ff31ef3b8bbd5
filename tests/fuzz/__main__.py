"""`python -m tests.fuzz`: every reader and door, counted. `python -m tests.fuzz NAME --case N`: one case again, in full."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.fuzz.campaign import HEADING, SUBJECTS, again, files_of, run_many, run_number
from tests.fuzz.doors import Door


def main() -> int:
    """Exit code 1 if anything escaped."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("readers", nargs="*", help=f"of {', '.join(SUBJECTS)}; all of them if none is named")
    parser.add_argument("--cases", type=int, default=20_000, help="of each reader")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="longest time for each")
    parser.add_argument("--case", type=int, help="run this one alone and show what comes of it")
    parser.add_argument("--keep", type=Path, help="write the files of that case to this folder")
    options = parser.parse_args()
    unknown = [name for name in options.readers if name not in SUBJECTS]
    if unknown:
        parser.error(f"no such reader: {unknown[0]}")
    if options.case is not None:
        return _one(options.readers[0], options.case, options.keep)
    print(HEADING)
    escapes = [_many(name, options) for name in options.readers or SUBJECTS]
    return int(any(escapes))


def _many(name: str, options: argparse.Namespace) -> int:
    count = run_many(SUBJECTS[name], range(options.first, options.first + options.cases), options.seconds)
    print(count, flush=True)
    shown: set[tuple[str, ...]] = set()
    for number, report in count.escapes.items():
        place = _place(report)
        if place not in shown:
            print(f"  {again(name, number)}: {report.strip().splitlines()[-1][:200]}", flush=True)
        shown.add(place)
    return len(count.escapes)


def _place(report: str) -> tuple[str, ...]:
    """Where it went wrong, and the kind of error: escapes alike in both are one fault."""
    lines = report.strip().splitlines()
    return (lines[-1].partition(":")[0], *[line for line in lines if line.startswith("  File ")][-1:])


def _one(name: str, number: int, keep: Path | None) -> int:
    _show(name, number, keep)
    with tempfile.TemporaryDirectory() as place:
        outcome = run_number(SUBJECTS[name], number, Path(place).resolve() / "guard")
    print(f"{outcome.kind}: {outcome.report}")
    return int(outcome.kind == "escape")


def _show(name: str, number: int, keep: Path | None) -> None:
    """What is damaged in a case, and how."""
    subject = SUBJECTS[name]
    if isinstance(subject, Door):
        print(subject.damaged(number))
        return
    files, seed = files_of(subject, number), subject.seed()
    print(f"missing: {sorted(set(seed) - set(files))}")
    for path, data in files.items():
        if path in seed and seed[path] == data:
            continue
        print(f"{path}: {'a folder' if data is None else data[:2000]!r}")
        if keep is not None and data is not None:
            (keep / path).parent.mkdir(parents=True, exist_ok=True)
            (keep / path).write_bytes(data)


if __name__ == "__main__":
    sys.exit(main())
