"""Scores of a frozen YOLO11n-seg that follow its masks: a quality added to its logits, or a new class head.

    python -m experiments.masks.trial bounds --cache DIR --out FILE.jsonl    # the detector's own scores; true IoU as scores
    python -m experiments.masks.trial choose --cache DIR --out FILE.jsonl    # one seed, held-out images
    python -m experiments.masks.trial final --cache DIR --out FILE.jsonl     # three seeds, val, what was chosen
    python -m experiments.masks.trial intervals --cache DIR --out FILE.jsonl # of the gains, over images of val
    python -m experiments.render masks --runs FILE.jsonl

The windows come from `python -m experiments.masks.windows`. A run that is on record is not made again, so every command goes on
where it was stopped. Settings are chosen by mask COCO AP on a fifth of the training images; then all of them train. Val is judged
once per arm and seed. Learning curves: `choose` and `final` with `--images 100 300 700 --arms scoring exact`.
`--void background` repeats all of it with void pixels counted as background.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.masks.arms import (
    ARMS,
    CLASSES,
    METRICS,
    NMS,
    STAGES,
    Point,
    Seen,
    best_of_class,
    loss_of,
    new_network,
    read_scores,
)
from experiments.masks.intervals import draw_weights, interval, resampled_map
from experiments.masks.windows import Tensors, load
from experiments.records import commit, find_run, load_runs, save_run
from stepgrad.losses.functional import mean_average_precision
from stepgrad.metric.protocol import COCO
from stepgrad.models.fine_tuning.outputs import Reading
from stepgrad.models.fine_tuning.training import Plan, Task, outputs_of, train

AVERAGE = 0.98  # running mean of the weights, in every arm
HELD_OUT = 5  # one of so many training images
RESAMPLES = 1000


class Images:
    """The images by part: "fit", "held_out", "train" (both of them) and "val", which is not read before it is asked for."""

    def __init__(self, cache: Path, void: str = "removed") -> None:
        self.cache, self.void = cache, void
        self._kept: dict[Any, Any] = {}

    def raw(self, part: str) -> list[Tensors]:
        if part in ("fit", "held_out"):
            train = self.raw("train")
            order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0)).tolist()
            return [train[i] for n, i in enumerate(order) if (n % HELD_OUT == 0) == (part == "held_out")]
        if part not in self._kept:
            self._kept[part] = load(self.cache, part)
        return self._kept[part]

    def __call__(self, part: str, form: str = "added", by: str = "mask") -> list[Seen]:
        key = part, form == "head", by
        if key not in self._kept:
            fit = torch.cat([describe(image, form) for image in self.raw("fit")])
            mean, spread = fit.mean(dim=0), fit.std(dim=0).clamp_min(1e-6)
            self._kept[key] = [self.seen(i, (describe(i, form) - mean) / spread, by) for i in self.raw(part)]
        return self._kept[key]

    def seen(self, image: Tensors, features: Tensor, by: str) -> Seen:
        target = {name: image[f"object_{name}"] for name in ("boxes", "labels", "difficult")}
        masks = image["mask_iou" if self.void == "removed" else "mask_iou_plain"]
        tables = {"mask": masks.double(), "box": image["box_iou"].double()}
        counted, other = (
            best_of_class(tables[by] * (target["difficult"] == flag), target["labels"]) for flag in (False, True)
        )
        overlap, ignored = torch.maximum(counted, other), other > counted
        by_object = tables[by].float() * ~target["difficult"]
        return Seen(features, image["boxes"], target, overlap, ignored, by_object, image["logits"], tables, by)

    def scores_file(self, arm: str, count: int | None, seed: int) -> Path:
        """Where the scores of val stay for `intervals`."""
        return self.cache / "scores" / f"{self.void}_{arm}_{count or 'all'}_{seed}.npy"


def describe(image: Tensors, form: str) -> Tensor:
    """(N, F) what a network sees of the windows; a new class head sees class features but nothing of the logits."""
    if form != "head":
        return torch.cat([image["statistics"], image["coefficients"]], dim=1)
    level = F.one_hot(image["level"], 3)
    return torch.cat([image["statistics"][:, :-2], image["coefficients"], image["features"].float(), level], dim=1)


def measure(scores: Sequence[Tensor], images: Sequence[Seen]) -> dict[str, float]:
    """In points."""
    boxes, targets = [image.boxes for image in images], [image.target for image in images]
    found = {}
    for name, (protocol, by) in METRICS.items():
        more = {"protocol": protocol, "overlaps": [image.tables[by] for image in images]}
        found[name] = round(100 * mean_average_precision(scores, boxes, targets, nms_threshold=NMS, **more).map, 3)
    return found


class Trial:
    """Trainings, on record or made now."""

    def __init__(self, images: Images, out: Path) -> None:
        self.images, self.out = images, out
        self._networks: dict[tuple[Point, str, int], nn.Module] = {}

    def network(self, point: Point, part: str, seed: int) -> nn.Module:
        """Trained; kept in memory, since others go on from it, or read it with another alpha."""
        arm = ARMS[point.arm]
        key = (point if arm.start else replace(point, alpha=1.0)), part, seed
        if key not in self._networks:
            images = self.images(part, arm.form, arm.by)
            if point.images is not None:
                order = torch.randperm(len(images), generator=torch.Generator().manual_seed(100 + seed))
                images = [images[i] for i in order[: point.images].tolist()]
            start = new_network(arm.form, images[0].features.shape[1], seed)
            if arm.start is not None:
                start = self.network(self.chosen(arm.start, point.images), part, seed)
            task = Task(Reading(CLASSES), COCO, NMS, loss_of(point, start))
            per_step = 64 if arm.loss == "exact" else 16
            plan = Plan("stock", point.steps, per_step, point.rate, point.weight_decay, AVERAGE)
            self._networks[key] = train(start, images, task, plan, seed, lambda: None)
        return self._networks[key]

    def run(self, phase: str, point: Point, seed: int) -> None:
        """What a training gives on held-out images or, in the end, on val."""
        facts = {"void": self.images.void, "seed": seed, **asdict(point)}
        if self.knows(phase, facts):
            return
        train_part, part = ("fit", "held_out") if phase == "choose" else ("train", "val")
        began = time.process_time()
        network = self.network(point, train_part, seed)
        seconds = round(time.process_time() - began, 1)
        arm, alpha = ARMS[point.arm], point.alpha
        with torch.no_grad():
            images = self.images(part, arm.form, arm.by)
            scores = [read_scores(outputs_of(network, [i]), i.own, arm.form, alpha).double() for i in images]
        if phase == "final":
            self.keep(scores, point, seed)
        self.record(phase, {**facts, "found": measure(scores, images), "cpu_s": seconds})

    def knows(self, phase: str, facts: dict[str, Any]) -> bool:
        return find_run(self.out, phase, facts) is not None

    def record(self, phase: str, run: dict[str, Any]) -> None:
        save_run(self.out, phase, {**run, "commit": commit()})
        print(phase, run, flush=True)

    def keep(self, scores: Sequence[Tensor], point: Point, seed: int) -> None:
        file = self.images.scores_file(point.arm, point.images, seed)
        file.parent.mkdir(exist_ok=True)
        np.save(file, torch.cat(list(scores)).float().numpy())

    def choose(self, arm: str, images: int | None) -> None:
        """Try all settings of an arm."""
        point, start = Point(arm, images=images), ARMS[arm].start
        if start is not None:
            point = replace(point, alpha=self.chosen(start, images).alpha)
        for stage in STAGES[ARMS[arm].loss]:
            for changes in stage:
                self.run("choose", replace(point, **changes), 0)
            point = self.chosen(arm, images)

    def chosen(self, arm: str, images: int | None) -> Point:
        """The point with the best mask AP on held-out images."""
        own = {"void": self.images.void, "arm": arm, "images": images}
        runs = [run for run in load_runs(self.out, "choose") if own.items() <= run.items()]
        best = max(runs, key=lambda run: run["found"]["mask AP"])
        return Point(**{field.name: best[field.name] for field in fields(Point)})

    def bounds(self) -> None:
        """The detector's own scores, and true overlaps as scores."""
        for part in ("held_out", "val"):
            images = self.images(part)
            scores = {"own": [image.own for image in images]}
            for by in ("mask", "box"):
                scores[by] = [best_of_class(image.tables[by], image.target["labels"]) for image in images]
            for arm, own in scores.items():
                facts = {"void": self.images.void, "part": part, "arm": arm}
                if not self.knows("bounds", facts):
                    self.record("bounds", {**facts, "found": measure([each.double() for each in own], images)})
        self.keep(scores["own"], Point("own"), 0)

    def resampled(self, arm: str, count: int | None, seeds: Sequence[int]) -> np.ndarray:
        """(metrics, 1 + resamples) on val, the mean over seeds."""
        val = self.images("val")
        weights = draw_weights(len(val), RESAMPLES)
        found = []
        for seed in seeds:
            scores = torch.from_numpy(np.load(self.images.scores_file(arm, count, seed))).double()
            parts = list(scores.split([len(image.boxes) for image in val]))
            found.append([resampled_map(parts, val, metric, weights) for metric in METRICS])
        return np.mean(found, axis=0)

    def intervals(self, count: int | None) -> None:
        """Gains of every arm over the detector's own scores and over mask scoring."""
        own = {"void": self.images.void, "images": count}
        runs = [run for run in load_runs(self.out, "final") if own.items() <= run.items()]
        seeds = {arm: [run["seed"] for run in runs if run["arm"] == arm] for arm in ARMS}
        found = {arm: self.resampled(arm, count, numbers) for arm, numbers in seeds.items() if numbers}
        found["own"] = self.resampled("own", None, [0])
        for arm, over in product(ARMS, ("own", "scoring")):
            if arm != over and arm in found and over in found:
                gains = zip(METRICS, map(interval, found[arm], found[over]), strict=True)
                self.record("interval", {**own, "arm": arm, "seeds": seeds[arm], "over": over, "gain": dict(gains)})


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["bounds", "choose", "final", "intervals"])
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--void", choices=["removed", "background"], default="removed")
    parser.add_argument("--arms", choices=list(ARMS), nargs="+", default=list(ARMS))
    parser.add_argument("--images", type=int, nargs="+", default=[None], help="that train; all if not given")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    trial = Trial(Images(options.cache, options.void), options.out)
    if options.what == "bounds":
        trial.bounds()
    if options.what == "intervals":
        for images in options.images:
            trial.intervals(images)
    for images, arm in product(options.images, options.arms):
        if options.what == "choose":
            trial.choose(arm, images)
        elif options.what == "final":
            for seed in options.seeds:
                trial.run("final", trial.chosen(arm, images), seed)


if __name__ == "__main__":
    main()
