"""`python -m tests.fuzz`: every reader, counted. `python -m tests.fuzz READER --case N`: one case again, in full."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.fuzz.campaign import HEADING, again, files_of, run_many
from tests.fuzz.guarded import run_case
from tests.fuzz.readers import READERS


def main() -> int:
    """Exit code 1 if anything escaped."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("readers", nargs="*", help=f"of {', '.join(READERS)}; all of them if none is named")
    parser.add_argument("--cases", type=int, default=20_000, help="of each reader")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="longest time for each reader")
    parser.add_argument("--case", type=int, help="run this one alone and show what comes of it")
    parser.add_argument("--keep", type=Path, help="write the files of that case to this folder")
    options = parser.parse_args()
    unknown = [name for name in options.readers if name not in READERS]
    if unknown:
        parser.error(f"no such reader: {unknown[0]}")
    if options.case is not None:
        return _one(options.readers[0], options.case, options.keep)
    print(HEADING)
    escapes = [_many(name, options) for name in options.readers or READERS]
    return int(any(escapes))


def _many(name: str, options: argparse.Namespace) -> int:
    count = run_many(READERS[name], range(options.first, options.first + options.cases), options.seconds)
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
    files = files_of(READERS[name], number)
    seed = READERS[name].seed()
    for path, data in files.items():
        if path not in seed or seed[path] != data:
            print(f"{path}: {'a folder' if data is None else data[:2000]!r}")
            if keep is not None and data is not None:
                (keep / path).parent.mkdir(parents=True, exist_ok=True)
                (keep / path).write_bytes(data)
    print(f"missing: {sorted(set(seed) - set(files))}")
    with tempfile.TemporaryDirectory() as place:
        outcome = run_case(Path(place).resolve() / "guard", files, READERS[name].call)
    print(f"{outcome.kind}: {outcome.report}")
    return int(outcome.kind == "escape")


if __name__ == "__main__":
    sys.exit(main())
