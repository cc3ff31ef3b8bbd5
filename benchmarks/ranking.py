"""Speed and memory of the ranking losses: against sorting, against dense pairs, and on many small queries.

    python -m benchmarks.ranking               # a minute or two; writes results/ranking.json and results/ranking.md
    python -m benchmarks.ranking --rounds 3    # rougher

Every figure is one forward and backward pass. The dense-pair ApproxNDCG needs about 5 GB for 20,000 documents.
"""

from __future__ import annotations

import argparse
import json
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import stepgrad as sg
from benchmarks.children import run_child
from benchmarks.report import RESULTS, heading, kept, write
from benchmarks.timing import interleaved, machine
from experiments.records import table

Step = Callable[[], object]
LOSSES: dict[str, Callable[..., torch.nn.Module]] = {
    "APLoss": sg.APLoss,
    "NDCGLoss": lambda **o: sg.NDCGLoss(**{"balance": "none", **o}),
    "NDCGLoss k=10": lambda **o: sg.NDCGLoss(k=10, **{"balance": "none", **o}),
    "MRRLoss": sg.ranking.MRRLoss,
    "PrecisionAtKLoss k=10": lambda **o: sg.ranking.PrecisionAtKLoss(k=10, **o),
    "RecallAtKLoss k=10": lambda **o: sg.ranking.RecallAtKLoss(k=10, **o),
    "SpearmanLoss": sg.ranking.SpearmanLoss,
    "AUCLoss": sg.ranking.AUCLoss,
}
LONG, DENSE, QUERIES, PER_QUERY = 100_000, 20_000, 1_000, 100
MEMORY_SIZES = (20_000, 200_000, 2_000_000)
TIMES_SORTING, TIMES_DENSE = 5.0, 100.0  # the promises


def documents(*shape: int) -> tuple[Tensor, Tensor]:
    """Scores, and relevance 1 to 4 for one document in twenty."""
    generator = torch.Generator().manual_seed(0)
    relevant = torch.rand(shape, generator=generator) < 0.05
    grades = torch.randint(1, 5, shape, generator=generator)
    return torch.randn(shape, generator=generator), torch.where(relevant, grades, 0).float()


def step(loss: Callable[[Tensor, Tensor], Tensor], scores: Tensor, relevance: Tensor) -> Step:
    leaf = scores.clone().requires_grad_()
    return lambda: torch.autograd.grad(loss(leaf, relevance), leaf)


def dense_approx_ndcg(scores: Tensor, relevance: Tensor) -> Tensor:
    """1 - NDCG with ranks smoothed by sigmoids over all pairs (Qin, Liu & Li 2010): the matrix of pairs is kept."""
    rank = 0.5 + torch.sigmoid(scores[None, :] - scores[:, None]).sum(1)
    gain = torch.exp2(relevance) - 1.0
    ideal = (gain.sort(descending=True).values / torch.log2(torch.arange(len(gain)) + 2.0)).sum()
    return 1.0 - (gain / torch.log2(1.0 + rank)).sum() / ideal


def sorting(scores: Tensor) -> dict[str, Step]:
    plain = scores.numpy()
    return {
        "numpy.argsort, stable": lambda: np.argsort(-plain, kind="stable"),
        "torch.sort, stable": lambda: torch.sort(scores, descending=True, stable=True),
    }


def sorting_and_losses(scores: Tensor, relevance: Tensor) -> dict[str, Step]:
    cases = sorting(scores.flatten())
    for estimator in ("mee", "radius"):
        cases |= {f"{n} {estimator}": step(make(estimator=estimator), scores, relevance) for n, make in LOSSES.items()}
    return cases


def timed(cases: dict[str, Step], rounds: int) -> dict[str, Any]:
    return {name: asdict(timing) for name, timing in interleaved(cases, rounds).items()}


def measure(rounds: int) -> dict[str, Any]:
    some, labels = documents(DENSE)
    dense = {
        "NDCGLoss": step(sg.NDCGLoss(estimator="mee", balance="none"), some, labels),
        "ApproxNDCG, all pairs": step(dense_approx_ndcg, some, labels),
    }
    return {
        "command": f"python -m benchmarks.ranking --rounds {rounds}",
        "machine": machine(),
        "long": timed(sorting_and_losses(*documents(LONG)), rounds),
        "many": timed(sorting_and_losses(*documents(QUERIES, PER_QUERY)), rounds),
        "dense": timed(dense, max(rounds // 3, 1)),
        "memory": {str(n): run_child("ranking", "--peak", n)["bytes"] for n in MEMORY_SIZES},
    }


def peak_of_a_pass(n: int) -> float:
    """Bytes per document of NumPy's arrays at the peak of a pass; tensors add the gradient and its like."""
    step(sg.NDCGLoss(estimator="mee", balance="none"), *documents(1_000))()  # everything is loaded
    run = step(sg.NDCGLoss(estimator="mee", balance="none"), *documents(n))
    tracemalloc.start()
    run()
    return tracemalloc.get_traced_memory()[1] / n


def promises(results: dict[str, Any]) -> list[tuple[str, float, bool]]:
    """What was promised, the figure, and whether it is kept."""
    median = {part: {k: v["median"] for k, v in results[part].items()} for part in ("long", "many", "dense")}
    long, many = (slowest_over_sorting(median[part]) for part in ("long", "many"))
    speed = median["dense"]["ApproxNDCG, all pairs"] / median["dense"]["NDCGLoss"]
    growth = results["memory"][str(MEMORY_SIZES[-1])] / results["memory"][str(MEMORY_SIZES[0])]
    return [
        (f"slowest loss ({long[0]}) over the faster sort, {LONG:,} documents: <= 5", long[1], long[1] <= TIMES_SORTING),
        (
            f"slowest loss ({many[0]}) over the faster sort, {QUERIES:,} queries of {PER_QUERY}: <= 5",
            many[1],
            many[1] <= TIMES_SORTING,
        ),
        (f"ApproxNDCG over NDCGLoss, {DENSE:,} documents: >= 100", speed, speed >= TIMES_DENSE),
        ("bytes per document, 2,000,000 over 20,000: <= 1.5 (linear memory)", growth, growth <= 1.5),
    ]


def slowest_over_sorting(median: dict[str, float]) -> tuple[str, float]:
    sort = min(seconds for name, seconds in median.items() if "sort" in name)
    seconds, name = max((seconds, name) for name, seconds in median.items())
    return name, seconds / sort


def render(results: dict[str, Any]) -> str:
    verdicts = [[text, f"{figure:.1f}", kept(met)] for text, figure, met in promises(results)]
    parts = [
        "# Speed and memory of the ranking losses",
        heading(results),
        "Forward and backward; medians, every case takes its turn in every round.",
        table(["promise", "measured", "kept"], verdicts),
    ]
    titles = {
        "long": f"One query of {LONG:,} documents",
        "many": f"{QUERIES:,} queries of {PER_QUERY} documents",
        "dense": f"One query of {DENSE:,} documents, against all pairs",
    }
    for part, title in titles.items():
        fastest = min(t["median"] for t in results[part].values())
        rows = [[name, f"{1e3 * t['median']:.1f}", f"{t['median'] / fastest:.1f}"] for name, t in results[part].items()]
        parts += [f"## {title}", table(["case", "ms", "times the fastest"], rows)]
    rows = [[f"{int(n):,}", f"{each:.0f}"] for n, each in results["memory"].items()]
    parts += ["## Memory a pass of NDCGLoss adds", table(["documents", "bytes per document"], rows)]
    return "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--peak", type=int, help=argparse.SUPPRESS)  # what a child process is asked
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    if options.peak:
        print(json.dumps({"bytes": peak_of_a_pass(options.peak)}))
        return
    results = measure(options.rounds)
    write("ranking", results, render(results), options.out)


if __name__ == "__main__":
    main()
