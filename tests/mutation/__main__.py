"""`python -m tests.mutation --count 300 --seed 0`: how many of 300 small faults the suite notices.

Each line of the results is one mutant; a run that was stopped goes on where it was. Survivors are printed at the end.
Faults in what needs ultralytics are left out where it is not installed; run the same command where it is, and only they are
tried.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.mutation.clean import Chosen, Clean, Recorder, met_by
from tests.mutation.concerned import concerned, has_kernels, needs_yolo, wider
from tests.mutation.mutants import Mutant, all_mutants, mutated
from tests.mutation.worker import NEVER_IMPORTED, OUT_OF_TIME, PACKAGE, ROOT, YOLO, Outcome, run_tests, warm_up

FOLDERS = ("engine", "metric", "steps", "losses", "evaluation", "models", "data")
NOT_MUTATED = ("engine/jit.py", "engine/uncompiled.py")  # how kernels are compiled, which a mutation run does not do
NO_TESTS = 5
"""pytest's exit code where all tests need what is not installed."""


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # stops the child too
    everything = [m for m in all_mutants(PACKAGE, tuple(options.packages)) if m.file not in NOT_MUTATED]
    chosen = [m for m in everything if options.only in m.name]
    sample = random.Random(options.seed).sample(chosen, min(options.count, len(chosen)))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    known = {line["mutant"]: line for line in _lines(options.out)}
    if options.again:  # what was survived is tried on the tests as they are now
        known = {name: line for name, line in known.items() if line["outcome"] == "killed"}
    clean: dict[tuple[str, bool], Clean] = {}
    warm_up()
    for number, mutant in enumerate(sample, 1):
        line = known.get(mutant.name)
        if line is None or line["change"] != mutant.change:
            if needs_yolo(mutant.file) and not find_spec(YOLO):
                continue
            line = _try(mutant, clean, options.out)
            known[mutant.name] = line
            with options.out.open("a") as file:
                file.write(json.dumps(line) + "\n")
        print(f"{number}/{len(sample)} {line['outcome']:8} {mutant.file}:{mutant.line} {mutant.change}", flush=True)
    _summary([known[mutant.name] for mutant in sample if mutant.name in known], len(sample))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--count", type=int, default=300, help="how many mutants")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    parser.add_argument("--packages", nargs="+", default=list(FOLDERS), help="folders below src/stepgrad")
    parser.add_argument("--only", default="", help="mutants whose name contains this, such as engine/nms.py")
    parser.add_argument("--again", action="store_true", help="try those again that no test noticed")
    parser.add_argument("--out", type=Path, default=Path("mutants/results.jsonl"), help="one line per mutant")
    return parser.parse_args()


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text().splitlines() if path.exists() else ():
        yield json.loads(line)


def _try(mutant: Mutant, clean: dict[tuple[str, bool], Clean], out: Path) -> dict[str, Any]:
    """Whether the tests that concern the file notice, or else others."""
    by, seconds = "no test runs it", 0.0
    for tests in (concerned(mutant.file), wider(mutant.file)):
        run = _meet(mutant, tests, clean, out)
        if run is not None:
            by = _killer(run)
            seconds += run.cpu_seconds
            if run.code not in (0, NO_TESTS):
                return _line(mutant, "killed", by, seconds)
    return _line(mutant, "survived", by, seconds)


def _meet(mutant: Mutant, tests: tuple[str, ...], clean: dict[tuple[str, bool], Clean], out: Path) -> Outcome | None:
    """What became of those of the tests that run the faulty line; None if none does."""
    compiled = not has_kernels(mutant.file)
    for test in tests:
        if (test, compiled) not in clean:
            clean[test, compiled] = _clean(test, compiled, out)
    wanted = met_by(mutant, [clean[test, compiled] for test in tests])
    if not wanted:
        return None
    source = mutated(mutant, (PACKAGE / mutant.file).read_text())
    files = list(dict.fromkeys(test.split("::")[0] for test in wanted))
    run = run_tests(files, (mutant.file, source), compiled, out.with_suffix(".log"), partial(Chosen, wanted))
    if run.code == NEVER_IMPORTED:
        raise SystemExit(f"{' '.join(tests)} do not import {mutant.file}; mend tests/mutation/concerned.py")
    return run


def _line(mutant: Mutant, outcome: str, by: str, cpu_seconds: float) -> dict[str, Any]:
    return {
        "mutant": mutant.name,
        "file": mutant.file,
        "line": mutant.line,
        "change": mutant.change,
        "outcome": outcome,
        "by": by,
        "cpu_seconds": round(cpu_seconds, 1),
    }


def _clean(test: str, compiled: bool, out: Path) -> Clean:
    """What the tests of a file do without a fault, from an earlier run if neither they nor the package have changed since."""
    path = ROOT / test.split("::")[0]
    files = sorted(f for part in (path, PACKAGE) for f in (part.rglob("*.py") if part.is_dir() else [part]))
    with_yolo = "with it" if find_spec(YOLO) and "yolo" in test else ""
    state = hashlib.sha256(
        f"{(test, compiled)!r}{with_yolo}".encode() + b"".join(f.read_bytes() for f in files)
    ).hexdigest()
    record = (out.parent / f"clean/{state[:16]}.json").resolve()
    if not record.exists():
        record.parent.mkdir(exist_ok=True)
        run = run_tests((test,), None, compiled, out.with_suffix(".log"), partial(Recorder, PACKAGE, record))
        if run.code not in (0, NO_TESTS):
            record.unlink(missing_ok=True)
            raise SystemExit(f"{test} fails without any fault:\n{run.output[-2000:]}")
        print(f"clean: {run.cpu_seconds:.0f} s of CPU for {test}", flush=True)
    return Clean.read(record)


def _killer(run: Outcome) -> str:
    """The test that failed, or why none could be run."""
    if run.code == 0:
        return ""
    if run.code == OUT_OF_TIME:
        return "out of time"
    failed = [line for line in run.output.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0][:200] if failed else f"exit code {run.code}"


def _summary(lines: list[dict[str, Any]], wanted: int) -> None:
    killed, all_of = Counter(), Counter()
    for line in lines:
        folder = line["file"].split("/")[0]
        all_of[folder] += 1
        killed[folder] += line["outcome"] == "killed"
    for folder in all_of:
        print(f"{folder}: {killed[folder]} of {all_of[folder]} killed")
    seconds = sum(line["cpu_seconds"] for line in lines)
    print(
        f"all: {killed.total()} of {len(lines)} killed, {100 * killed.total() / max(len(lines), 1):.1f} %, {seconds:.0f} s"
    )
    if wanted > len(lines):
        print(f"{wanted - len(lines)} not tried: they need ultralytics")
    for line in lines:
        if line["outcome"] != "killed":
            print(f"survived: {line['file']}:{line['line']}  {line['change']}")


if __name__ == "__main__":
    raise SystemExit(main())
