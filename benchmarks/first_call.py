"""How long does the first call of a loss take, with no kernels on disk and with all of them, against another version?

    python -m benchmarks.first_call --before COMMIT               # 3 rounds
    python -m benchmarks.first_call --before COMMIT --rounds 1    # rougher

Each call is the first in a process of its own: loss and gradient of two images of 300 windows and 20 classes. Imports are not
counted; they are the same with and without kernels on disk. In each round both versions take their turn with an empty cache,
then with what that left, so that a slow spell of the machine hits both alike; ratios of a round are compared. The old version
is taken from git into a temporary folder. Writes benchmarks/results/first_call.{json,md}.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.children import ROOT, run_child, source_of, with_source

# Nothing that imports stepgrad: in a child that is the version to measure, which may be an old one.
ESTIMATORS = ("radius", "mee")
WARM_TURNS = 5  # a warm call is short, so it is asked several times; the median counts
Seconds = dict[str, float]


def child(estimator: str) -> None:
    """Time the first call in this process, and count what it compiled."""
    from numba.core import event

    import stepgrad
    from benchmarks.scenes import clustered_scene

    loss_fn = stepgrad.MAPLoss(20, nms_threshold=0.3, estimator=estimator)
    scene = clustered_scene(images=2, windows=300)
    scores = [s.detach().requires_grad_() for s in scene.scores]
    with event.install_recorder("numba:compile") as seen:
        start, cpu = time.perf_counter(), _cpu_seconds()
        loss_fn(scores, scene.boxes, scene.targets).backward()
        wall, cpu = time.perf_counter() - start, _cpu_seconds() - cpu
    print(json.dumps({"wall": wall, "cpu": cpu, "compiled": len(seen.buffer) // 2}))


def _cpu_seconds() -> float:
    """CPU time of this process and of those it started and that have ended."""
    return sum(os.times()[:4])


def first_call(source: Path, estimator: str, cache: str) -> Seconds:
    """The first call of a version in a fresh process."""
    options = {**with_source(source), "NUMBA_CACHE_DIR": cache, "PYTHONWARNINGS": "ignore"}
    found = run_child("first_call", "--child", estimator, **options)
    return {key: found[key] for key in ("wall", "cpu", "compiled")}


def one_round(sources: dict[str, Path], estimator: str) -> dict[str, dict[str, Seconds]]:
    """Both versions, cold and warm."""
    found: dict[str, dict[str, Seconds]] = {name: {} for name in sources}
    with tempfile.TemporaryDirectory() as folder:
        for name, source in sources.items():
            found[name]["cold"] = first_call(source, estimator, f"{folder}/{name}")
        turns: dict[str, list[Seconds]] = {name: [] for name in sources}
        for _ in range(WARM_TURNS):
            for name, source in sources.items():
                turns[name].append(first_call(source, estimator, f"{folder}/{name}"))
        for name, taken in turns.items():
            found[name]["warm"] = {key: statistics.median(turn[key] for turn in taken) for key in taken[0]}
    return found


def summary(rounds: list[dict[str, dict[str, Seconds]]]) -> dict[str, dict[str, float]]:
    """Medians over the rounds, and of the ratios after / before of each round."""
    table = {}
    for cache in ("cold", "warm"):
        row = {
            f"{name} {key}": statistics.median(found[name][cache][key] for found in rounds)
            for name in ("before", "after")
            for key in ("wall", "cpu", "compiled")
        }
        for key in ("wall", "cpu"):
            ratios = [found["after"][cache][key] / found["before"][cache][key] for found in rounds]
            row[f"ratio {key}"] = statistics.median(ratios)
        table[cache] = row
    return table


def render(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    from experiments.records import table

    machine, rows = results["machine"], []
    for estimator, calls in results["calls"].items():
        for cache, row in calls.items():
            seconds = [f"{row[f'{name} wall']:.2f} s ({row[f'{name} cpu']:.2f} s)" for name in ("before", "after")]
            kernels = [f"{row[f'{name} compiled']:.0f}" for name in ("before", "after")]
            ratios = [f"{row[f'ratio {key}']:.2f}" for key in ("wall", "cpu")]
            rows.append([estimator, {"cold": "none", "warm": "all"}[cache], *seconds, *ratios, *kernels])
    header = ["before", "after", "ratio of wall time", "of CPU time", "kernels before", "after"]
    return (
        "# The first call of a loss\n\n"
        f"`python -m benchmarks.first_call --before {results['before']} --rounds {results['rounds']}` on {machine['cpu']}, "
        f"{machine['cores']} cores, load {machine['load before']} before the run; numba {machine['numba']}.\n"
        "Wall time, and in brackets the CPU time of the process that calls and of its workers. Ratios: after / before, medians\n"
        "over rounds in which both took their turns. Wall time depends on who else uses the machine in those seconds; where\n"
        "ratios of wall time jump about, others did. Kernels: functions compiled in the process that calls.\n\n"
        f"{table(['estimator', 'kernels on disk', *header], rows)}\n\n{WHY}"
    )


WHY = """## What was slow
numba made a library of each of some 200 functions, optimised it, made machine code of it, and linked it into every
caller, where all that happened again: 35 of 57 seconds were spent in LLVM. Now all functions below a kernel that Python
calls are put together as lowered, and that module is optimised and translated once: 8 seconds. The search for garbage
while compiling took a sixth of what was left, comparing flags a tenth, and wrappers for calls from Python were made of
functions that only kernels call. What remains is numba's typing and lowering, in Python; the kernels that come before
the step search are compiled in a second process meanwhile.

With kernels on disk, half a second went into setting up the compiler, which code that is finished does not need, and
into reading bitcode that only a compiler would use.
"""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", help="a commit, tag or branch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        child(options.child)
        return
    if not options.before:
        parser.error("--before COMMIT: the version to compare with")
    from benchmarks.report import write
    from benchmarks.timing import machine

    results: dict[str, Any] = {"before": options.before, "rounds": options.rounds, "machine": machine(), "calls": {}}
    with source_of(options.before) as source:
        sources = {"before": source, "after": ROOT / "src"}
        for estimator in ESTIMATORS:
            rounds = [one_round(sources, estimator) for _ in range(options.rounds)]
            results["calls"][estimator] = summary(rounds)
            print(estimator, json.dumps(results["calls"][estimator], indent=1), flush=True)
    write("first_call", results, render(results))


if __name__ == "__main__":
    main()
