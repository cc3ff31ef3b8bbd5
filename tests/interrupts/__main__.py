"""`python -m tests.interrupts --count 1000`: press Ctrl-C at random moments of real calls, and print what came of it."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter

from tests.interrupts.subjects import SUBJECTS


def outcomes(name: str, count: int, seed: int) -> Counter[str]:
    """How often what came of `count` interrupts of a call; a process that dies is replaced by another."""
    found: Counter[str] = Counter()
    while (missing := count - found.total()) > 0:
        command = [sys.executable, "-m", "tests.interrupts.worker", name, str(missing), str(seed + found.total())]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
            assert worker.stdout is not None
            for line in map(json.loads, worker.stdout):
                found[line["outcome"] + ("" if line["right"] else ", then a wrong result")] += 1
                if sys.stderr.isatty():
                    print(f"\r{name}: {found.total()} of {count}", end="", file=sys.stderr)
        if worker.returncode != 0:
            found[f"exit code {worker.returncode}"] += 1
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.interrupts", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="interrupts over all calls [1000]")
    parser.add_argument("--seed", type=int, default=0, help="another one has other moments [0]")
    parser.add_argument("--only", help="a part of the name of the calls to interrupt")
    options = parser.parse_args()
    names = [name for name in SUBJECTS if (options.only or "") in name]
    clean = True
    for name in names:
        found = outcomes(name, -(-options.count // len(names)), options.seed)
        clean &= set(found) == {"KeyboardInterrupt"}
        print(f"{name:40} {', '.join(f'{number} {what}' for what, number in found.most_common())}", flush=True)
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
