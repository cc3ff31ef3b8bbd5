"""What it costs that Ctrl-C never enters a kernel: each loss of benchmarks.families with and without, in turns in one process.

    python -m benchmarks.interrupts               # about three minutes; writes results/interrupts.json and interrupts.md

Real windows need STEPGRAD_DATA (or --data) with VOC2012-320.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numba.core.registry import CPUDispatcher

from benchmarks.families import COCO_SIZES, ESTIMATORS, families
from benchmarks.loss import Step, loss_step
from benchmarks.report import Claim, claims_table, heading, write
from benchmarks.scenes import clustered_scene
from benchmarks.timing import interleaved, machine
from stepgrad.engine.jit import Kernel


def unguarded(step: Step) -> Step:
    """The step with kernels called as numba calls them."""
    guarded = Kernel.__call__

    def run() -> object:
        Kernel.__call__ = CPUDispatcher.__call__  # type: ignore[method-assign]
        try:
            return step()
        finally:
            Kernel.__call__ = guarded  # type: ignore[method-assign]

    return run


def steps(data: Path | None) -> dict[str, Step]:
    found = {}
    for name, scene in families(data).items():
        for estimator in ESTIMATORS:
            found[f"{estimator}, {name} windows"] = loss_step(scene, estimator=estimator)
    for size, numbers in COCO_SIZES.items():
        found[f"`coco`, radius, {size}"] = loss_step(clustered_scene(*numbers), protocol="coco")
    return found


def measure(rounds: int, data: Path | None) -> dict[str, Any]:
    results: dict[str, Any] = {"machine": machine(), "seconds": {}}
    for name, step in steps(data).items():
        times = interleaved({"with": step, "without": unguarded(step)}, rounds)
        results["seconds"][name] = {kind: timing.median for kind, timing in times.items()}
        print(name, results["seconds"][name], flush=True)
    return results


def render(results: dict[str, Any]) -> str:
    claims = [
        Claim(f"{name}, against kernels that Ctrl-C can enter", 1.02, row["with"] / row["without"])
        for name, row in results["seconds"].items()
    ]
    about = "Medians; every case takes its turn in every round."
    return (
        "\n\n".join(["# The cost of holding back Ctrl-C in kernels", heading(results), about, claims_table(claims)])
        + "\n"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=31, help="how often every case is timed")
    parser.add_argument("--data", type=Path, default=os.environ.get("STEPGRAD_DATA"), help="folder with VOC2012-320")
    options = parser.parse_args(arguments)
    results = {"command": f"python -m benchmarks.interrupts --rounds {options.rounds}"}
    results |= measure(options.rounds, Path(options.data) if options.data else None)
    write("interrupts", results, render(results))


if __name__ == "__main__":
    main()
