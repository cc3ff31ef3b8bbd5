"""The cubic cost of SoftRank's smoothing (Taylor et al. 2008), measured: seconds of a pass against the length of the list.

    python -m benchmarks.soft_rank               # under a minute; writes results/soft_rank.json and results/soft_rank.md
    python -m benchmarks.soft_rank --rounds 1    # rougher

Every figure is one forward and backward pass over one list of n windows, one in ten positive, on one core.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.report import RESULTS, heading, write
from benchmarks.timing import machine
from experiments.baselines import TaylorSoftAPLoss
from experiments.records import table

SIZES = (100, 200, 400, 800, 1200, 1600)
FITTED = 800  # shorter lists are dominated by the cost of calls
POSITIVE_SHARE = 0.1
BATCH = (9_600, 20)  # windows in a list, lists: 32 images of 300 windows, 20 classes


def one_list(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    scores = torch.randn(n, generator=torch.Generator().manual_seed(n))
    positives = max(round(POSITIVE_SHARE * n), 1)
    return scores[:positives], scores[positives:]


def measure(rounds: int, sizes: tuple[int, ...] = SIZES) -> dict[str, Any]:
    lists = {n: one_list(n) for n in sizes}
    cpu_seconds(*lists[sizes[0]])  # everything is loaded
    times = {n: [cpu_seconds(*lists[n]) for _ in range(rounds)] for n in sizes}
    return {
        "command": "python -m benchmarks.soft_rank",
        "machine": machine(),
        "positive share": POSITIVE_SHARE,
        "seconds": {str(n): {"median": statistics.median(t), "fastest": min(t)} for n, t in times.items()},
        "fit": fit({n: min(t) for n, t in times.items()}),
    }


def cpu_seconds(positives: torch.Tensor, negatives: torch.Tensor) -> float:
    """Seconds of the processor, which other programs on the machine change little."""
    start = time.process_time()
    TaylorSoftAPLoss(1, max_windows=None).of_list(positives, negatives)
    return time.process_time() - start


def fit(seconds: dict[int, float]) -> dict[str, float]:
    """The exponent of growth over the longer lists, and what n^3 from the longest list says of a whole batch."""
    n = np.array([size for size in seconds if size >= FITTED] or list(seconds), dtype=np.float64)
    times = np.array([seconds[int(size)] for size in n])
    exponent = float(np.polyfit(np.log(n), np.log(times), 1)[0]) if len(n) > 1 else float("nan")
    per_cube = float(times[-1] / n[-1] ** 3)
    return {
        "exponent": exponent,
        "seconds per n^3": per_cube,
        "batch hours": per_cube * BATCH[0] ** 3 * BATCH[1] / 3600,
    }


def render(results: dict[str, Any]) -> str:
    found, rows = results["fit"], []
    for n, row in results["seconds"].items():
        relative = row["fastest"] / int(n) ** 3 / found["seconds per n^3"]
        rows.append([n, f"{row['median']:.3f}", f"{row['fastest']:.3f}", f"{relative:.1f}"])
    parts = [
        "# Cost of SoftRank's smoothing of AP",
        heading(results),
        f"One list of n windows, {results['positive share']:.0%} positive, forward and backward, seconds of one processor core.",
        table(["n", "median s", "fastest s", "fastest s / n³, relative to the longest"], rows),
        f"Growth over the longer lists: n^{found['exponent']:.2f}; the recursion has n² steps for each positive,\n"
        "short lists pay mostly for calls, long ones also for leaving the cache.\n"
        f"Carried on as n³, a batch of {BATCH[1]} classes with {BATCH[0]:,} windows each would take about\n"
        f"{found['batch hours']:.1f} hours a step. `TaylorSoftAPLoss` therefore keeps only the hardest negatives.",
    ]
    return "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    results = measure(options.rounds)
    write("soft_rank", results, render(results), options.out)


if __name__ == "__main__":
    main()
