"""NDCG@10 of one MLP trained with NDCGLoss, ApproxNDCG or ListNet, next to LightGBM's LambdaRank, on an excerpt of MSLR.

    STEPGRAD_DATA=FOLDER python -m experiments.ranking      # choose, then final; goes on where it was stopped

Choice: every arm runs over the same grid of learning rates and epochs in four folds of the *training* queries; per method
the best arm, rate and number of epochs by held-out NDCG@10 is kept. Final: those, ten seeds, trained on all training
queries, then judged on the test queries for the first time. LightGBM's seeds draw its samples of rows and features.
"""

from __future__ import annotations

import argparse
import copy
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from experiments.ranking_data import Queries, read_split, standardised
from experiments.ranking_losses import CUTOFF, Loss, approx_ndcg, list_net, normalised, step_ndcg
from experiments.ranking_table import Choice, best_choices
from experiments.records import Run, load_runs, once
from stepgrad.losses.ranking.metrics import ndcg

RESULTS = Path(__file__).parent / "results"
FOLDS, SEEDS, QUERIES_PER_STEP = 4, 10, 8
RATES = (3e-4, 1e-3, 3e-3)
EPOCHS = (5, 10, 20, 40, 60)
WARM_EPOCHS, WARM_RATE = 10, 1e-3  # of ListNet, before arms named "warm"
TREES = (25, 50, 100, 200)
LEAVES, TREE_RATES = (7, 15, 31), (0.03, 0.1)


@dataclass(frozen=True)
class Arm:
    """One way to train the MLP."""

    method: str
    name: str
    loss: Loss
    warm: bool = False


def arms() -> list[Arm]:
    found = [Arm("ApproxNDCG", f"temperature {t}", _approx(t)) for t in (0.1, 0.3, 1.0)]
    found += [Arm("ListNet", f"target {t}", _list_net(t)) for t in ("gain", "softmax")]
    radius: dict[str, Any] = {"estimator": "radius", "radius": 1.0}
    options: dict[str, dict[str, Any]] = {
        "mee": {"estimator": "mee"},
        "mee balanced": {"estimator": "mee", "balance": "query"},
        "radius 1": radius,
        "radius 1 log": {**radius, "log": True},
        "radius 1 whole list": {**radius, "k": None},
        "radius 1 balanced": {**radius, "balance": "query"},
        "radius 1 balanced whole list": {**radius, "balance": "query", "k": None},
        "radius 2 balanced": {**radius, "balance": "query", "radius": 2.0},
        "radius 0.5 balanced": {**radius, "balance": "query", "radius": 0.5},
    }
    found += [Arm("NDCGLoss", name, step_ndcg(**o)) for name, o in options.items()]
    best = options["radius 1 balanced"]
    found.append(Arm("NDCGLoss", "radius 1 balanced, normalised", normalised(step_ndcg(**best))))
    found.append(Arm("NDCGLoss", "radius 1 balanced, warm", step_ndcg(**best), warm=True))
    return found


def _approx(temperature: float) -> Loss:
    return lambda scores, relevance, mask: approx_ndcg(scores, relevance, mask, temperature)


def _list_net(target: str) -> Loss:
    return lambda scores, relevance, mask: list_net(scores, relevance, mask, target)


def new_ranker(features: int, seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(features, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1)
        )


def judge(ranker: nn.Module, queries: Queries) -> list[float]:
    """NDCG@10 of each query; nan without relevant documents."""
    ranker.eval()
    with torch.no_grad():
        scores = ranker(queries.features)[..., 0]
    return judge_scores(scores, queries)


def judge_scores(scores: Tensor, queries: Queries) -> list[float]:
    rows = zip(scores, queries.relevance, queries.mask, strict=True)
    return [float(ndcg(s[m].numpy(), r[m].numpy(), k=CUTOFF)) for s, r, m in rows]


def train(
    ranker: nn.Module, queries: Queries, loss: Loss, rate: float, seed: int, after: Callable[[int], None]
) -> None:
    """Adam; `after` is called with the number of epochs done at each of EPOCHS."""
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.AdamW(ranker.parameters(), lr=rate, weight_decay=1e-2)
    with torch.random.fork_rng():
        torch.manual_seed(seed)  # dropout
        for epoch in range(1, max(EPOCHS) + 1):
            ranker.train()
            for rows in torch.randperm(len(queries), generator=generator).split(QUERIES_PER_STEP):
                batch = queries.pick(rows)
                optimiser.zero_grad()
                loss(ranker(batch.features)[..., 0], batch.relevance, batch.mask).backward()
                optimiser.step()
            if epoch in EPOCHS:
                after(epoch)


class Trainer:
    """Trains MLPs on some queries and judges them on others; the common warm start of a seed is trained once."""

    def __init__(self, training: Queries, judged: Queries) -> None:
        self.training, self.judged = standardised(training, judged)
        self.warm: dict[int, nn.Module] = {}

    def run(self, arm: Arm, rate: float, seed: int) -> dict[int, list[float]]:
        """NDCG@10 of each judged query after each number of epochs."""
        ranker = copy.deepcopy(self._warm(seed)) if arm.warm else new_ranker(self.training.features.shape[-1], seed)
        found: dict[int, list[float]] = {}
        train(ranker, self.training, arm.loss, rate, seed, lambda e: found.update({e: judge(ranker, self.judged)}))
        return found

    def _warm(self, seed: int) -> nn.Module:
        if seed not in self.warm:
            ranker = new_ranker(self.training.features.shape[-1], seed)
            kept: dict[int, nn.Module] = {}
            keep = lambda e: kept.update({e: copy.deepcopy(ranker)})  # noqa: E731
            train(ranker, self.training, _list_net("gain"), WARM_RATE, seed, keep)
            self.warm[seed] = kept[WARM_EPOCHS]
        return self.warm[seed]


def lambda_rank(training: Queries, judged: Queries, leaves: int, rate: float, seed: int) -> dict[int, list[float]]:
    """LightGBM on the raw features: NDCG@10 of each judged query after each number of trees."""
    import lightgbm

    model = lightgbm.LGBMRanker(
        objective="lambdarank",
        n_estimators=max(TREES),
        num_leaves=leaves,
        learning_rate=rate,
        subsample=0.8,
        subsample_freq=1,
        colsample_bytree=0.8,
        lambdarank_truncation_level=CUTOFF + 5,
        random_state=seed,
        n_jobs=1,
        verbose=-1,
        deterministic=True,
    )
    sizes = training.mask.sum(1).numpy()
    model.fit(training.features[training.mask].numpy(), training.relevance[training.mask].numpy(), group=sizes)
    found = {}
    for trees in TREES:
        scores = torch.zeros(judged.mask.shape, dtype=torch.float64)
        documents = judged.features[judged.mask].numpy()
        scores[judged.mask] = torch.from_numpy(np.asarray(model.booster_.predict(documents, num_iteration=trees)))
        found[trees] = judge_scores(scores, judged)
    return found


def folds(queries: Queries) -> list[tuple[Queries, Queries]]:
    numbers = torch.arange(len(queries))
    return [
        (queries.pick(numbers[numbers % FOLDS != f]), queries.pick(numbers[numbers % FOLDS == f])) for f in range(FOLDS)
    ]


def choose(training: Queries, file: Path) -> None:
    """Every arm, rate and number of epochs in every fold of the training queries, one seed."""
    splits = folds(training)
    trainers = [Trainer(*split) for split in splits]
    for arm in arms():
        for rate in RATES:
            each = [partial(trainer.run, arm, rate, seed=0) for trainer in trainers]
            once(file, "choose", {"method": arm.method, "arm": arm.name, "rate": rate}, partial(held_out, each))
    for leaves in LEAVES:
        for rate in TREE_RATES:
            each = [partial(lambda_rank, *split, leaves, rate, seed=0) for split in splits]
            facts = {"method": "LambdaRank", "arm": f"leaves {leaves}", "rate": rate}
            once(file, "choose", facts, partial(held_out, each))


def held_out(folds: Sequence[Callable[[], dict[int, list[float]]]]) -> Run:
    """Mean NDCG@10 of all queries, each in the fold that it is held out of, by the number of epochs."""
    by_fold = [run() for run in folds]
    pooled = {epochs: [v for fold in by_fold for v in fold[epochs]] for epochs in by_fold[0]}
    return {"held_out": {str(epochs): round(float(np.nanmean(values)), 5) for epochs, values in pooled.items()}}


def final(training: Queries, test: Queries, file: Path) -> None:
    """The chosen settings of each method on all training queries, ten seeds, judged on the test queries."""
    by_name = {(arm.method, arm.name): arm for arm in arms()}
    trainer = Trainer(training, test)

    def make(choice: Choice, seed: int) -> Run:
        if choice.method == "LambdaRank":
            found = lambda_rank(training, test, int(choice.arm.split()[1]), choice.rate, seed)
        else:
            found = trainer.run(by_name[choice.method, choice.arm], choice.rate, seed)
        return {"ndcg": [None if np.isnan(v) else round(v, 5) for v in found[choice.epochs]]}

    for choice in best_choices(load_runs(file, "choose")):
        for seed in range(SEEDS):
            once(file, "final", {"method": choice.method, "seed": seed}, partial(make, choice, seed))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("STEPGRAD_DATA"), help="folder with ltr/")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only-choose", action="store_true", help="stop before the test queries are touched")
    options = parser.parse_args(arguments)
    if options.data is None:
        parser.error("--data (or STEPGRAD_DATA) is needed")
    torch.set_num_threads(options.threads)
    file = options.results / "ranking.jsonl"
    training, test = read_split(Path(options.data), "train"), read_split(Path(options.data), "test")
    choose(training, file)
    if not options.only_choose:
        final(training, test, file)


if __name__ == "__main__":
    main()
