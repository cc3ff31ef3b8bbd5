"""From a converged start: more of the stock loss, mAP beside it, or soft labels, all on the same fresh images.

    python -m experiments.endless.arms choose --start runs/endless/ssd --out FILE.jsonl     # the grid, one seed, on val
    python -m experiments.endless.arms final --start runs/endless/ssd --out FILE.jsonl      # five seeds, on test
    python -m experiments.endless.arms trial --start runs/endless/ssd --out FILE.jsonl --arms coco --rate 3e-3 --share 3

Every arm goes on from the start's weights by AdamW, the rate restarted and taken to zero by a cosine, on images of a seed
that the start never saw; all arms of a seed see the very same images in the same order. `stock` goes on with the stock loss,
`coco` and `voc12` add mAP of that protocol with the automatic weight (of masks, for a Mask R-CNN, and `coco-boxes` of its boxes),
and `soft` goes on with IoU-aware soft labels, where
the family has them. Each has the same grid, and takes its best point of it: the highest sum of both metrics on val. A run
that is on record is not run again, and two processes may work on two families at once. A `trial` is one point of one's own,
on val, that no choice looks at.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from experiments.endless.families import FAMILIES
from experiments.endless.held_out import evaluate, held_out
from experiments.endless.run_files import Config, load_start
from experiments.records import Run, grouped, load_runs, once
from stepgrad.data import EndlessShapes, FreshImage
from stepgrad.errors import ConfigError, DataError

FIRST_SEED = 100
"""Of the images of the arms: seed n of an arm has those of seed 100 + n, and starts have lower ones."""
SEEDS = (1, 2, 3, 4, 5)
"""Of `final`; `choose` has seed 0."""


@dataclass(frozen=True)
class Arm:
    """What is trained for from the start on."""

    protocol: str | None = None  # of mAP; None: without
    labels: str | None = None  # None: those of the start
    task: str | None = None  # of mAP; None: the family's


ARMS = {
    "stock": Arm(),
    "coco": Arm("coco"),
    "voc12": Arm("voc12"),
    "soft": Arm(labels="soft"),
    "coco-boxes": Arm("coco", task="boxes"),
}
Point = dict[str, Any]
HEAD, ALL = "class head", "all"
LOWEST, LOW, MIDDLE, HIGH = ({"rate": rate, "trains": HEAD} for rate in (1e-4, 3e-4, 1e-3, 3e-3))
EVERYTHING: Point = {"rate": 1e-4, "trains": ALL}
GRIDS: dict[str, tuple[Point, ...]] = {
    "fastrcnn": (LOWEST, LOW, MIDDLE),
    "ssd": (MIDDLE, HIGH, EVERYTHING),
    "retinanet": (LOWEST, LOW),
    "fcos": (LOWEST, LOW),
    "fasterrcnn": (LOW, MIDDLE),
    "maskrcnn": (LOW, MIDDLE, EVERYTHING),
    "detr": (MIDDLE, EVERYTHING),
}
"""What every arm of a family chooses from.

At 3e-4, all weights of the SSD end below the start, with mAP and without. Class heads of one layer (SSD, Faster R-CNN, DETR)
take higher rates than those of several.
"""


@dataclass(frozen=True)
class Budget:
    """How much there is to train with, and to measure by."""

    steps: int = 100
    images: int = 16
    val_images: int = 300
    test_images: int = 500


def arms_of(family: str) -> list[str]:
    """Without those that the family cannot have, or has under another name."""
    kind = FAMILIES[family]
    return [n for n, arm in ARMS.items() if (arm.labels is None or kind.soft_labels) and arm.task != kind.task]


def go_on(start: Path, arm: Arm, point: Point, seed: int, budget: Budget) -> nn.Module:
    """The start's model after an arm's training."""
    config, model = load_start(start, arm.labels)
    family = FAMILIES[config.family]
    if arm.protocol is not None:
        options = {name: point[name] for name in ("mode", "share") if name in point}
        family.add_map(model, arm.protocol, task=arm.task, **options)
    trained = choose_weights(model, family.class_head if point["trains"] == HEAD else "")
    optimizer = torch.optim.AdamW(trained, point["rate"], weight_decay=config.weight_decay)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, budget.steps)
    images = fresh_images(config, seed, budget.steps * budget.images)
    model.train()
    for first in range(0, len(images), budget.images):
        losses = family.losses(model, images[first : first + budget.images], seed)
        optimizer.zero_grad()
        torch.stack([loss.float() for loss in losses.values()]).sum().backward()
        nn.utils.clip_grad_norm_(trained, config.longest_gradient)
        optimizer.step()
        decay.step()
    return model


def choose_weights(model: nn.Module, beginning: str) -> list[nn.Parameter]:
    """The weights whose names begin so, those that learn at all; all others are frozen."""
    for name, weights in model.named_parameters():
        weights.requires_grad_(weights.requires_grad and name.startswith(beginning))
    return [weights for weights in model.parameters() if weights.requires_grad]


def fresh_images(config: Config, seed: int, count: int) -> list[FreshImage]:
    """The images that all arms of a seed see."""
    if config.seed >= FIRST_SEED:
        raise ConfigError(
            f"Expected a start with a seed below {FIRST_SEED} but got {config.seed}: it saw these images."
        )
    return _draw(seed, count, FAMILIES[config.family].task)


@lru_cache(
    maxsize=1
)  # to draw them takes as long as to train a head on them, and a seed's arms come one after the other
def _draw(seed: int, count: int, task: str) -> list[FreshImage]:
    return EndlessShapes(FIRST_SEED + seed, task=task).batch(0, count)


def one(phase: str, start: Path, name: str, seed: int, point: Point, budget: Budget, out: Path) -> None:
    """A run, unless it is on record; the arm "start" is the start itself."""
    family = load_start(start)[0].family

    def make() -> Run:
        began = time.monotonic()
        model = load_start(start)[1] if name == "start" else go_on(start, ARMS[name], point, seed, budget)
        seconds = round(time.monotonic() - began, 1)
        run: Run = {"val": judge(family, model, "val", budget.val_images)}
        if phase == "final":
            run["test"] = judge(family, model, "test", budget.test_images)
        return {**run, "seconds": seconds}

    key = {"family": family, "arm": name, "seed": seed, **point, "steps": budget.steps, "images": budget.images}
    once(out, phase, key, make)


def judge(family: str, model: nn.Module, split: str, images: int) -> dict[str, float]:
    """mAP in points, by protocol."""
    kind = FAMILIES[family]
    found = evaluate(kind, model, held_out(split, images, task=kind.task))
    return {name: round(100 * value, 2) for name, value in found.items()}


def choose(start: Path, budget: Budget, out: Path, names: Sequence[str] = tuple(ARMS)) -> None:
    """Every point of every arm, judged on val."""
    family = load_start(start)[0].family
    for name in [name for name in arms_of(family) if name in names]:
        for point in GRIDS[family]:
            one("choose", start, name, 0, point, budget, out)


def best_point(family: str, name: str, out: Path) -> Point:
    """The point of an arm with the highest sum of both metrics on val."""
    tried = grouped(load_runs(out, "choose"), "family", "arm").get((family, name))
    if not tried:
        raise DataError(f"{out}: holds no run of {family}, {name}, to choose by; run `choose` first")
    best = max(tried, key=lambda run: sum(run["val"].values()))
    return {option: best[option] for option in MIDDLE}


def final(
    start: Path, budget: Budget, out: Path, seeds: Sequence[int] = SEEDS, names: Sequence[str] = tuple(ARMS)
) -> None:
    """The chosen points of all arms, and the start itself, on images that nothing was chosen by."""
    family = load_start(start)[0].family
    one("final", start, "start", 0, {}, budget, out)
    for seed in seeds:  # so that a run which ends early has whole seeds
        for name in [name for name in arms_of(family) if name in names]:
            one("final", start, name, seed, best_point(family, name, out), budget, out)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phase", choices=["choose", "final", "trial"])
    parser.add_argument(
        "--start", type=Path, required=True, help="folder of a finished run of experiments.endless.train"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS), help="of final")
    parser.add_argument("--arms", choices=list(ARMS), nargs="+", default=list(ARMS))
    parser.add_argument("--rate", type=float, default=1e-3, help="of trial, as the next three")
    parser.add_argument("--trains", choices=[HEAD, ALL], default=HEAD)
    parser.add_argument("--mode", choices=["mix", "replace"], default="mix")
    parser.add_argument("--share", type=float, default=1.0, help="of mAP's gradient, next to the stock class loss's")
    for field in fields(Budget):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=int, default=field.default)
    parser.add_argument("--threads", type=int, default=1, help="of torch; with another number the last bits differ")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(arguments)
    torch.set_num_threads(args.threads)
    budget = Budget(**{field.name: getattr(args, field.name) for field in fields(Budget)})
    if args.phase == "choose":
        choose(args.start, budget, args.out, args.arms)
    elif args.phase == "trial":
        point = {"rate": args.rate, "trains": args.trains, "mode": args.mode, "share": args.share}
        for name in args.arms:
            one("trial", args.start, name, 0, point, budget, args.out)
    else:
        final(args.start, budget, args.out, args.seeds, args.arms)


if __name__ == "__main__":
    main()
