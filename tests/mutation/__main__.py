"""`python -m tests.mutation --count 300 --seed 0`: how many of 300 small faults the suite notices.

Each line of the results is one mutant; a run that was stopped goes on where it was. Survivors are printed at the end.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.mutation.concerned import concerned, has_kernels
from tests.mutation.mutants import Mutant, all_mutants, mutated
from tests.mutation.worker import NEVER_IMPORTED, OUT_OF_TIME, PACKAGE, Outcome, run_tests, warm_up

FOLDERS = ("kernels", "metric", "steps", "losses", "evaluation")
NOT_MUTATED = ("kernels/jit.py", "kernels/uncompiled.py")  # how kernels are compiled, which a mutation run does not do
TIMES_THE_CLEAN_RUN = 5


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # stops the child too
    everything = [m for m in all_mutants(PACKAGE, tuple(options.packages)) if m.file not in NOT_MUTATED]
    chosen = [m for m in everything if options.only in m.name]
    sample = random.Random(options.seed).sample(chosen, min(options.count, len(chosen)))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    known = {line["mutant"]: line for line in _lines(options.out)}
    clean: dict[tuple[str, ...], float] = {}
    warm_up()
    for number, mutant in enumerate(sample, 1):
        line = known.get(mutant.name)
        if line is None or line["change"] != mutant.change:
            line = _try(mutant, clean, options.out)
            known[mutant.name] = line
            with options.out.open("a") as file:
                file.write(json.dumps(line) + "\n")
        print(f"{number}/{len(sample)} {line['outcome']:8} {mutant.file}:{mutant.line} {mutant.change}", flush=True)
    _summary([known[mutant.name] for mutant in sample])
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--count", type=int, default=300, help="how many mutants")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    parser.add_argument("--packages", nargs="+", default=list(FOLDERS), help="folders below src/stepgrad")
    parser.add_argument("--only", default="", help="mutants whose name contains this, such as kernels/nms.py")
    parser.add_argument("--out", type=Path, default=Path("mutants/results.jsonl"), help="one line per mutant")
    return parser.parse_args()


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text().splitlines() if path.exists() else ():
        yield json.loads(line)


def _try(mutant: Mutant, clean: dict[tuple[str, ...], float], out: Path) -> dict[str, Any]:
    tests = concerned(mutant.file)
    log = out.with_suffix(".log")
    compiled = not has_kernels(mutant.file)
    kind = (*tests[1:], str(compiled))  # the first are the file's own doctests
    if kind not in clean:
        run = run_tests(tests, None, compiled, 3600.0, log)
        if run.code != 0:
            raise SystemExit(f"{' '.join(tests)} fail without any fault:\n{run.output[-2000:]}")
        clean[kind] = run.cpu_seconds
        print(f"clean: {run.cpu_seconds:.0f} s of CPU for {' '.join(tests)}", flush=True)
    source = mutated(mutant, (PACKAGE / mutant.file).read_text())
    run = run_tests(tests, (mutant.file, source), compiled, TIMES_THE_CLEAN_RUN * clean[kind] + 10.0, log)
    if run.code == NEVER_IMPORTED:
        raise SystemExit(f"{' '.join(tests)} do not import {mutant.file}; mend tests/mutation/concerned.py")
    return {
        "mutant": mutant.name,
        "file": mutant.file,
        "line": mutant.line,
        "change": mutant.change,
        "outcome": "survived" if run.code == 0 else "killed",
        "by": _killer(run),
        "cpu_seconds": round(run.cpu_seconds, 1),
    }


def _killer(run: Outcome) -> str:
    """The test that failed, or why none could be run."""
    if run.code == 0:
        return ""
    if run.code == OUT_OF_TIME:
        return "out of time"
    failed = [line for line in run.output.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0][:200] if failed else f"exit code {run.code}"


def _summary(lines: list[dict[str, Any]]) -> None:
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
    for line in lines:
        if line["outcome"] != "killed":
            print(f"survived: {line['file']}:{line['line']}  {line['change']}")


if __name__ == "__main__":
    raise SystemExit(main())
