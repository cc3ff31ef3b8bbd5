"""The suite as other machines would run it: `python -m tests.any_machine [--setting NAME ...] [TEST ...]`.

Torch, its libraries, NumPy and numba choose their instructions and their number of threads by the machine; each setting here
makes them choose otherwise, or makes the machine busy; `other-orders` lets every batch size add up in an order of its own. One
line for each setting tells how many tests passed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

ROOT = Path(__file__).parents[1]
BURNERS_PER_CORE = 2


def threads(count: int) -> dict[str, str]:
    """Of torch, MKL, OpenBLAS and numba."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
    return dict.fromkeys(names, str(count))


def without_numpys_vectors() -> dict[str, str]:
    """None of the instruction sets that this NumPy could do without and this machine has."""
    found = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
    return {"NPY_DISABLE_CPU_FEATURES": " ".join(found)}


SETTINGS: dict[str, dict[str, str]] = {
    "as-it-is": {},
    "aten-default": {"ATEN_CPU_CAPABILITY": "default"},
    "aten-avx2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "sse4": {  # the oldest that each library still has; kernels are compiled anew for it, once
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_CBWR": "COMPATIBLE",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "OPENBLAS_CORETYPE": "Nehalem",
        "NUMBA_CPU_NAME": "generic",
    },
    "other-orders": {"PYTEST_ADDOPTS": "-p tests.other_orders"},
    "numpy-baseline": without_numpys_vectors(),
    "1-thread": threads(1),
    "2-threads": threads(2),
    "5-threads": threads(5),
    "busy": {},
}


@dataclass(frozen=True)
class Outcome:
    """How the tests of a run ended."""

    passed: int
    skipped: int
    failed: list[str]

    @property
    def fine(self) -> bool:
        return self.passed > 0 and not self.failed

    def __str__(self) -> str:
        return f"{self.passed} passed, {len(self.failed)} failed, {self.skipped} skipped"


def read_outcome(report: Path, status: int) -> Outcome:
    """From the file that pytest's --junitxml writes and its exit status; a run that came to no end has no file."""
    if not report.is_file():
        return Outcome(0, 0, [f"pytest itself, which ended with status {status}"])
    cases = list(ElementTree.parse(report).iter("testcase"))
    bad = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = sum(case.find("skipped") is not None for case in cases)
    return Outcome(
        len(cases) - len(bad) - skipped, skipped, [f"{case.get('classname')}::{case.get('name')}" for case in bad]
    )


def _burn(parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it too, and ends us
    while os.getppid() == parent:  # should the parent be killed, this ends by itself
        for _ in range(1_000_000):
            pass


@contextmanager
def busy_machine() -> Iterator[list[BaseProcess]]:
    """Processes that take all the time they can get, while the block runs; however it ends, they end."""
    count = BURNERS_PER_CORE * (os.cpu_count() or 1)
    start = multiprocessing.get_context("spawn").Process
    burners: list[BaseProcess] = [start(target=_burn, args=(os.getpid(),), daemon=True) for _ in range(count)]
    try:
        for burner in burners:
            burner.start()
        yield burners
    finally:
        for burner in burners:
            if burner.pid is not None:
                burner.kill()
                burner.join()


def run(name: str, tests: Sequence[str], workers: str, folder: Path) -> Outcome:
    """Run tests under a setting; output and report stay in the folder."""
    report = folder / f"{name}.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-n", workers, "-p", "no:cacheprovider", f"--junitxml={report}"]
    with ExitStack() as stack:
        output = stack.enter_context(open(folder / f"{name}.txt", "w"))
        if name == "busy":
            stack.enter_context(busy_machine())
        environment = {**os.environ, **SETTINGS[name]}
        suite = subprocess.Popen([*command, *tests], cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)
        stack.callback(suite.wait)
        stack.callback(suite.terminate)  # of no effect on one that has ended
        status = suite.wait()
    return read_outcome(report, status)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", nargs="*", help="what pytest is to run; nothing: the whole suite")
    parser.add_argument("--setting", action="append", choices=SETTINGS, help="may be given several times; none: all")
    parser.add_argument("--workers", default="auto", help="processes of pytest")
    parser.add_argument("--logs", type=Path, help="folder for what pytest says; none: a temporary one, which stays")
    options = parser.parse_args()
    folder = options.logs or Path(tempfile.mkdtemp(prefix="any-machine-"))
    folder.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended
    outcomes = []
    for name in options.setting or SETTINGS:
        began = time.monotonic()
        outcomes.append(run(name, options.tests, options.workers, folder.resolve()))
        print(f"{name:15} {outcomes[-1]}, {time.monotonic() - began:.0f} s", flush=True)
        for test in outcomes[-1].failed:
            print(f"    {test}  (see {folder / name}.txt)", flush=True)
    return 0 if all(outcome.fine for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
