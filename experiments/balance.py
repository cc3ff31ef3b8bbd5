"""Which balance makes training for mAP work? A small head on frozen AlexNet features of VOC 2012 windows.

    python -m experiments.balance choose --data FOLDER --cache DIR   # learning rates, on held-out training images
    python -m experiments.balance final --data FOLDER --cache DIR    # three seeds on all training images, then val

Arms: from scratch on raw outputs, or from a cross-entropy start on log-probabilities; an estimator; a form of balance
(see balance_forms.py). Every arm picks its learning rate from the same grid by mAP on the last fifth of the training
images; val is evaluated by `final` only. Runs that are on record already are not run again, so it can be interrupted.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import stepgrad
from experiments.balance_forms import FORMS
from experiments.frozen_features import load_parts
from experiments.head_training import train_nll
from experiments.records import Run, grouped, load_runs, mean_and_spread, once, table
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
INTRODUCTION = """# Balance: which form lets training for mAP work?

A 512-unit head on frozen ImageNet AlexNet features of VOC 2012 windows (700 training and 700 val images, selective
search, 512 principal components), Adam, 100 steps of 32 images x 300 windows, area AP after NMS at 0.3, no clip, no L4.
"scratch" trains raw outputs from random weights; "nll" goes on from 600 steps of cross-entropy, on log-probabilities.
The estimator "nll" is the control: cross-entropy on as many images (400 steps of 8). Each arm took its learning rate
from the grid of its start by mAP on held-out training images; val was evaluated once, at the end. Means over seeds, with
the standard deviation; rows without val mAP were compared on held-out images only, with one seed.

`python -m experiments.balance choose --data FOLDER --cache DIR`, then `final`.
"""


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
) -> dict[str, float]:
    """mAP of one arm after its training, on the training images and on `tests`."""
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
    return {**scored, "seconds": round(time.perf_counter() - began, 1)}


def choose(train: Part, file: Path) -> None:
    """One seed of every arm and rate on four fifths of the training images, judged on the rest."""
    cut = len(train) * 4 // 5
    plan = [(replace(arm, rate=rate), 0) for arm in arms() for rate in RATES[arm.start]]
    _run_plan("choose", plan, train[:cut], {"heldout": train[cut:]}, file)


def final(train: Part, val: Part, file: Path, seeds: int) -> None:
    """Every arm at its chosen rate, on all training images, then on val."""
    best = {run["arm"]: run["rate"] for run in best_runs(load_runs(file, "choose"))}
    plan = [(replace(arm, rate=best[arm.name]), seed) for seed in range(seeds) for arm in arms()]
    _run_plan("final", plan, train, {"val": val}, file)


def _run_plan(phase: str, plan: list[tuple[Arm, int]], training: Part, tests: dict[str, Part], file: Path) -> None:
    starts: dict[int, dict[str, Tensor]] = {}
    for arm, seed in plan:
        facts = {**asdict(arm), "arm": arm.name, "seed": seed}
        once(file, phase, facts, partial(run, arm, training, tests, seed, starts))


def best_runs(runs: list[Run]) -> list[Run]:
    """Of every arm, the run with the best mAP on held-out images; of equals the first."""
    return [max(tried, key=lambda run: run["heldout"]) for tried in grouped(runs, "arm").values()]


def page(file: Path) -> str:
    """The page of the runs on record: arms that were evaluated on val, then those that were compared on held-out images only."""
    header = ["start", "estimator", "balance", "through NMS", "rate", "held-out mAP", "train mAP", "val mAP", "seeds"]
    choose, final = load_runs(file, "choose"), grouped(load_runs(file, "final"), "arm")
    held_out = {(run["arm"], run["rate"]): f"{run['heldout']:.1f}" for run in choose}
    rows = []
    for runs in final.values():
        scores = [mean_and_spread([run[part] for run in runs]) for part in ("train", "val")]
        chosen = held_out.get((runs[0]["arm"], runs[0]["rate"]), "-")
        rows.append([*_setting(runs[0]), chosen, *scores, str(len(runs))])
    rows += [
        [*_setting(run), f"{run['heldout']:.1f}", f"{run['train']:.1f}", "-", "-"]
        for run in best_runs([run for run in choose if (run["arm"],) not in final])
    ]
    return f"{INTRODUCTION}\n{table(header, rows)}\n"


def _setting(run: Run) -> list[str]:
    return [*(str(run[key]) for key in ("start", "estimator", "balance", "through_nms")), f"{run['rate']:g}"]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phase", choices=["choose", "final"])
    parser.add_argument("--data", type=Path, default=os.environ.get("STEPGRAD_DATA"), help="folder with VOC2012-320")
    parser.add_argument("--cache", type=Path, help="folder for the features, outside the repository (about 1 GB)")
    parser.add_argument("--train", type=int, default=700, help="training images")
    parser.add_argument("--val", type=int, default=700, help="val images")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    if options.data is None or options.cache is None:
        parser.error("--data (or STEPGRAD_DATA) and --cache are needed")
    torch.set_num_threads(options.threads)
    file = options.results / "balance.jsonl"
    train, val = load_parts(options.data, options.cache, options.train, options.val)
    if options.phase == "choose":
        choose(train, file)
    else:
        final(train, val, file, options.seeds)


if __name__ == "__main__":
    main()
