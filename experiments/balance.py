"""Which balance makes training for mAP work? A small head on frozen AlexNet features of VOC 2012 windows.

    python -m experiments.balance choose --data FOLDER --cache DIR   # learning rates, on held-out training images
    python -m experiments.balance final --data FOLDER --cache DIR    # three seeds on all training images, then val
    python -m experiments.balance render                             # the table from the record

Arms: from scratch on raw outputs, or from a cross-entropy start on log-probabilities; an estimator; a form of balance
(see balance_forms.py). Every arm picks its learning rate from the same grid by mAP on the last fifth of the training
images; val is evaluated by `final` only. Runs that are on record already are not run again, so it can be interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import stepgrad
from experiments.balance_forms import FORMS
from experiments.balance_table import best_runs, render
from experiments.frozen_features import load_parts
from experiments.head_training import train_nll
from experiments.results import load_runs, save_runs
from experiments.window_head import (
    NUM_CLASSES,
    Part,
    ScoreForm,
    Tuning,
    WindowHead,
    evaluate,
    image_batches,
    new_head,
)

RESULTS = Path(__file__).parent / "results"
IMAGES_PER_STEP, WINDOWS_PER_IMAGE = 32, 300
NLL_STEPS, NLL_RATE = 600, 1e-3
RATES = {"scratch": (1e-3, 3e-3), "nll": (3e-5, 1e-4, 3e-4)}
MAP_STEPS = 100
CONTROL_STEPS = 4 * MAP_STEPS  # cross-entropy takes 8 images per step where mAP takes 32


@dataclass(frozen=True)
class Arm:
    """One way to train; `rate` is filled in from the grid."""

    start: str  # "scratch" or "nll"
    estimator: str  # "mee", "sde", "radius", or "nll" for the control that goes on with cross-entropy
    balance: str = "none"
    through_nms: str = "exact"
    rate: float = 0.0

    @property
    def scores(self) -> ScoreForm:
        return "logprob" if self.start == "nll" or self.estimator == "nll" else "raw"

    @property
    def name(self) -> str:
        return "/".join([self.start, self.estimator, self.balance, self.through_nms])


def arms() -> list[Arm]:
    forms = {
        "mee": list(FORMS),
        "radius": ["none", "class", "project", "class+scale"],
        "sde": ["none", "class", "class+scale"],
    }
    found = [Arm(start, "nll") for start in RATES]
    found += [Arm(start, est, form) for start in RATES for est, names in forms.items() for form in names]
    return found + [Arm(start, "mee", "class", "paper") for start in RATES]


def train_map(head: WindowHead, part: Part, arm: Arm, steps: int, seed: int) -> None:
    """Adam on -log mAP of 32 images x 300 windows; the gradient in the scores is balanced before it goes further."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)  # dropout
    loss_fn = stepgrad.MAPLoss(
        NUM_CLASSES,
        protocol="voc12",
        nms_threshold=0.3,
        estimator=arm.estimator,
        through_nms=arm.through_nms,
        balance="none",
        clip=None,
        l4=None,
    )
    optimiser = torch.optim.Adam(head.parameters(), lr=arm.rate)
    batches = image_batches(len(part), IMAGES_PER_STEP, generator)
    head.train()
    for _ in range(steps):
        optimiser.zero_grad()
        _map_step(head, part, arm, loss_fn, next(batches).tolist(), generator)
        optimiser.step()


def _map_step(
    head: WindowHead, part: Part, arm: Arm, loss_fn: Any, images: list[int], generator: torch.Generator
) -> None:
    rows = [torch.randperm(len(part.labels[i]), generator=generator)[:WINDOWS_PER_IMAGE] for i in images]
    counts = [len(r) for r in rows]
    features = torch.cat([part.inputs(i, r) for i, r in zip(images, rows, strict=True)])
    boxes = [part.images[i].windows[r] for i, r in zip(images, rows, strict=True)]
    scores = head.scores(features, arm.scores)
    leaf = scores.detach().requires_grad_()
    loss = loss_fn(list(leaf.split(counts)), boxes, [part.images[i].target for i in images])
    gradient: Tensor = torch.autograd.grad(loss, leaf)[0]
    scores.backward(FORMS[arm.balance](gradient, leaf.detach()))


def run(
    arm: Arm, training: Part, tests: dict[str, Part], seed: int, starts: dict[int, dict[str, Tensor]]
) -> dict[str, Any]:
    """Train one arm and evaluate it on the training images and on `tests`."""
    began = time.perf_counter()
    head = new_head(training.inputs(0).shape[1], seed)
    if arm.start == "nll":
        if seed not in starts:
            train_nll(head, training, NLL_STEPS, Tuning("adam", NLL_RATE), seed)
            starts[seed] = {k: v.clone() for k, v in head.state_dict().items()}
        head.load_state_dict(starts[seed])
    if arm.estimator == "nll":
        train_nll(head, training, CONTROL_STEPS, Tuning("adam", arm.rate), seed + 1000)
    else:
        train_map(head, training, arm, MAP_STEPS, seed + 1000)
    scored = {name: evaluate(head, part, arm.scores)["voc12"] for name, part in {"train": training, **tests}.items()}
    return {**asdict(arm), "arm": arm.name, "seed": seed, **scored, "seconds": round(time.perf_counter() - began, 1)}


def choose(train: Part, file: Path, limit: float) -> None:
    """One seed of every arm and rate on four fifths of the training images, judged on the rest."""
    cut = len(train) * 4 // 5
    plan = [(replace(arm, rate=rate), 0) for arm in arms() for rate in RATES[arm.start]]
    _run_plan("choose", plan, train[:cut], {"heldout": train[cut:]}, file, limit)


def final(train: Part, val: Part, file: Path, seeds: int, limit: float) -> None:
    """Every arm at its chosen rate, on all training images, then on val."""
    best = chosen_rates(load_runs(file, "choose"))
    plan = [(replace(arm, rate=best[arm.name]), seed) for seed in range(seeds) for arm in arms()]
    _run_plan("final", plan, train, {"val": val}, file, limit)


def chosen_rates(runs: list[dict[str, Any]]) -> dict[str, float]:
    """Per arm, the rate with the best held-out mAP."""
    return {run["arm"]: run["rate"] for run in best_runs(runs)}


def _run_plan(
    phase: str, plan: list[tuple[Arm, int]], training: Part, tests: dict[str, Part], file: Path, limit: float
) -> None:
    done = {(r["arm"], r["rate"], r["seed"]) for r in load_runs(file, phase)}
    starts: dict[int, dict[str, Tensor]] = {}
    began = time.perf_counter()
    for arm, seed in plan:
        if (arm.name, arm.rate, seed) in done:
            continue
        if time.perf_counter() - began > limit:
            print(f"{phase}: stopped after {limit:.0f} s; run again to go on", flush=True)
            return
        row = run(arm, training, tests, seed, starts)
        save_runs(file, phase, row)
        print(json.dumps(row), flush=True)
    print(f"{phase}: complete", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phase", choices=["choose", "final", "render"])
    parser.add_argument("--data", type=Path, default=os.environ.get("STEPGRAD_DATA"), help="folder with VOC2012-320")
    parser.add_argument("--cache", type=Path, help="folder for the features, outside the repository (about 1 GB)")
    parser.add_argument("--train", type=int, default=700, help="training images")
    parser.add_argument("--val", type=int, default=700, help="val images")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--limit", type=float, default=float("inf"), help="start no new run after this many seconds")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    file = options.results / "balance.jsonl"
    if options.phase != "render":
        if options.data is None or options.cache is None:
            parser.error("--data (or STEPGRAD_DATA) and --cache are needed")
        torch.set_num_threads(options.threads)
        train, val = load_parts(options.data, options.cache, options.train, options.val)
        if options.phase == "choose":
            choose(train, file, options.limit)
        else:
            final(train, val, file, options.seeds, options.limit)
    print(render(file, options.results / "balance.md"))


if __name__ == "__main__":
    main()
