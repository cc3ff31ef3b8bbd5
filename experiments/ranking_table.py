"""What the ranking runs say: the settings chosen on held-out training queries, and the table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.records import Run, load_runs, table

OURS = "NDCGLoss"


@dataclass(frozen=True)
class Choice:
    """The best settings of a method; `epochs` are trees for LambdaRank."""

    method: str
    arm: str
    rate: float
    epochs: int
    held_out: float


def best_choices(runs: list[Run]) -> list[Choice]:
    """Per method the arm, rate and epochs with the best held-out NDCG@10; of equals the first."""
    best: dict[str, Choice] = {}
    for run in runs:
        for epochs, value in run["held_out"].items():
            if run["method"] not in best or value > best[run["method"]].held_out:
                best[run["method"]] = Choice(run["method"], run["arm"], run["rate"], int(epochs), value)
    return list(best.values())


def by_query(runs: list[Run], method: str) -> np.ndarray:
    """(seeds, queries) of NDCG@10; queries without relevant documents are left out."""
    rows = [run["ndcg"] for run in sorted(runs, key=lambda r: int(r["seed"])) if run["method"] == method]
    values = np.array(rows, dtype=np.float64)
    return values[:, ~np.isnan(values).any(0)]


def paired_p(differences: np.ndarray, draws: int = 100_000, seed: int = 0) -> float:
    """Two-sided sign-flip test over queries: how often random signs give a mean difference as large.

    >>> paired_p(np.ones(8), draws=10_000) < 0.02, paired_p(np.array([1.0, -1.0, 1.0, -1.0])) > 0.9
    (True, True)
    """
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=(draws, len(differences)))
    beyond = np.abs(signs @ differences) >= abs(differences.sum()) - 1e-12
    return float((beyond.sum() + 1) / (draws + 1))


def page(file: Path) -> str:
    """The page of the runs on record."""
    runs, choices = load_runs(file, "final"), best_choices(load_runs(file, "choose"))
    ours = by_query(runs, OURS)
    ranked = sorted(choices, key=lambda c: -by_query(runs, c.method).mean())
    header = ["trained with", "settings", "held-out", "test NDCG@10", f"{OURS} minus this"]
    return (
        f"NDCG@10 on the {ours.shape[1]} test queries with relevant documents, {len(ours)} seeds: mean of the seeds' means\n"
        "(standard deviation over seeds). Settings are the best of each method on held-out training queries. The last\n"
        f"column compares {OURS} with the row, query by query (means over seeds): mean difference, two-sided p of a\n"
        "sign-flip test over queries.\n\n"
        f"{table(header, [_row(choice, by_query(runs, choice.method), ours) for choice in ranked])}\n"
    )


def _row(choice: Choice, values: np.ndarray, ours: np.ndarray) -> list[str]:
    unit = "trees" if choice.method == "LambdaRank" else "epochs"
    settings = f"{choice.arm}, rate {choice.rate:g}, {choice.epochs} {unit}"
    spread = values.mean(1).std(ddof=1) if len(values) > 1 else 0.0
    difference = ours.mean(0) - values.mean(0)
    compared = "" if choice.method == OURS else f"{difference.mean():+.4f} (p = {paired_p(difference):.4f})"
    return [choice.method, settings, f"{choice.held_out:.4f}", f"{values.mean():.4f} ({spread:.4f})", compared]
