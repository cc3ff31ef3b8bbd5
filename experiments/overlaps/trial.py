"""A new class head for masks, keypoints, oriented boxes and boxes of `shapes`, trained by labels and by exact AP.

    python -m experiments.overlaps.trial choose --cache DIR --out FILE.jsonl   # one seed, held-out images
    python -m experiments.overlaps.trial final --cache DIR --out FILE.jsonl    # five seeds, test images, what was chosen
    python -m experiments.overlaps.trial law --cache DIR --out FILE.jsonl      # gains by group of objects, with intervals
    python -m experiments.render overlaps --runs FILE.jsonl

The windows come from `python -m experiments.overlaps.windows`. A run that is on record is not made again. Settings are chosen on
a fifth of the training images by the COCO AP of the task, eight per way to train. A head learns by labels aligned with
box IoU; by the same labels with the task's own overlap in the place of IoU; or by either, and then by exact AP of the task. The
control "box-more" sees as many images by box-aligned labels as exact AP does.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import nn

from experiments.masks.arms import Arm, Point, Study, grid
from experiments.masks.trial import Images, Trial
from experiments.masks.windows import Tensors
from experiments.overlaps.law import find_law
from experiments.records import load_runs
from stepgrad.metric.protocol import COCO
from stepgrad.models.demo.detector import CLASSES

ARMS = {
    "box": Arm("labels aligned with box IoU", "head", "aligned", "box"),
    "box-more": Arm("by box IoU, then 600 steps more of it", "head", "aligned", "box", start="box"),
    "own": Arm("labels aligned with the true overlap", "head", "aligned"),
    "box-exact": Arm("by box IoU, then exact AP of the true overlap", "head", "exact", start="box"),
    "own-exact": Arm("by the true overlap, then exact AP of it", "head", "exact", start="own"),
}
RATES = (1e-3, 3e-3, 1e-2, 3e-2)
STAGES = {
    "aligned": [grid(rate=RATES, steps=(1000,), weight_decay=(0.0, 0.3))],
    "exact": [grid(rate=RATES, steps=(150,), radius=(1.0, 3.0))],
    "box-more": [grid(rate=RATES, steps=(600,), weight_decay=(0.0, 0.3))],
}


def study_of(word: str, overlap: str, arms: Sequence[str] = tuple(ARMS)) -> Study:
    """A task whose shapes are compared by an overlap."""
    return Study(
        word,
        overlap,
        CLASSES,
        {"AP": (COCO, "shape"), "box AP": (COCO, "box")},
        {name: ARMS[name] for name in arms},
        nms=0.5,
        stages=STAGES,
    )


TASKS = {
    "masks": (study_of("mask", "mask IoU"), "mask_iou"),
    "keypoints": (study_of("pose", "OKS"), "oks"),
    "oriented": (study_of("oriented box", "rotated IoU"), "rotated_iou"),
    "boxes": (study_of("box", "box IoU", ("box", "box-more", "box-exact")), "box_iou"),
}
"""By name: what is judged, and the table of overlaps that a window's file has for it."""


def describe(image: Tensors, form: str) -> torch.Tensor:
    """(N, F) what a new head sees."""
    return image["features"].float()


class HeadTrial(Trial):
    """A task's trainings; heads of box-aligned labels are the same for every task, and are made once."""

    def __init__(self, images: Images, out: Path, shared: dict[Any, nn.Module]) -> None:
        super().__init__(images, out)
        self.shared = shared

    def network(self, point: Point, part: str, seed: int) -> nn.Module:
        if point.arm != "box":
            return super().network(point, part, seed)
        key = point, part, seed
        if key not in self.shared:
            self.shared[key] = super().network(point, part, seed)
        return self.shared[key]


def trials(cache: Path, out: Path, tasks: Sequence[str]) -> dict[str, HeadTrial]:
    """A trial for each task."""
    shared: dict[Any, nn.Module] = {}
    made = {}
    for task in tasks:
        study, table = TASKS[task]
        made[task] = HeadTrial(Images(cache, study, table, {"task": task}, describe), out, shared)
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["choose", "final", "law"])
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tasks", choices=list(TASKS), nargs="+", default=list(TASKS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    made = trials(options.cache, options.out, options.tasks)
    if options.what == "law":
        if not load_runs(options.out, "law"):
            find_law(made, options.seeds)
        return
    for arm, trial in product(ARMS, made.values()):
        if arm not in trial.study.arms:
            continue
        if options.what == "choose":
            trial.choose(arm, None)
        else:
            for seed in options.seeds:
                trial.run("final", trial.chosen(arm, None), seed)


if __name__ == "__main__":
    main()
