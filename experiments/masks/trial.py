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
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.masks.arms import MASKS, Point, Seen, Study, best_of_class, loss_of, new_network, read_scores
from experiments.masks.windows import Tensors, load
from experiments.paired import gain, judged
from experiments.records import commit, find_run, load_runs, save_run
from stepgrad.losses.functional import mean_average_precision
from stepgrad.metric.protocol import COCO
from stepgrad.models.fine_tuning.outputs import Reading
from stepgrad.models.fine_tuning.training import Plan, Task, outputs_of, train

AVERAGE = 0.98  # running mean of the weights, in every arm
HELD_OUT = 5  # one of so many training images
Describe = Callable[[Tensors, str], Tensor]


class Images:
    """The images by part: "fit", "held_out", "train" (both of them) and "val", which is not read before it is asked for.

    Args:
        cache: folder with the windows.
        overlap: name of the (N, G) table of an image that is judged by.
        facts: what tells runs with these images from others.
        describe: (N, F) what a network of a form sees of the windows of an image.
    """

    def __init__(
        self, cache: Path, study: Study, overlap: str, facts: dict[str, Any], describe: Describe | None = None
    ) -> None:
        self.cache, self.study, self.overlap, self.facts = cache, study, overlap, facts
        self.describe = describe or describe_masks
        self._kept: dict[Any, Any] = {}

    def raw(self, part: str) -> list[Tensors]:
        if part in ("fit", "held_out"):
            train = self.raw("train")
            order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0)).tolist()
            return [train[i] for n, i in enumerate(order) if (n % HELD_OUT == 0) == (part == "held_out")]
        if part not in self._kept:
            self._kept[part] = load(self.cache, part)
        return self._kept[part]

    def __call__(self, part: str, form: str = "added", by: str = "shape") -> list[Seen]:
        key = part, form == "head", by
        if key not in self._kept:
            fit = torch.cat([self.describe(image, form) for image in self.raw("fit")])
            mean, spread = fit.mean(dim=0), fit.std(dim=0).clamp_min(1e-6)
            self._kept[key] = [self.seen(i, (self.describe(i, form) - mean) / spread, by) for i in self.raw(part)]
        return self._kept[key]

    def seen(self, image: Tensors, features: Tensor, by: str) -> Seen:
        target = {name: image[f"object_{name}"] for name in ("boxes", "labels", "difficult")}
        tables = {"shape": image[self.overlap].double(), "box": image["box_iou"].double()}
        counted, other = (
            best_of_class(tables[by] * (target["difficult"] == flag), target["labels"], self.study.classes)
            for flag in (False, True)
        )
        overlap, ignored = torch.maximum(counted, other), other > counted
        by_object = tables[by].float() * ~target["difficult"]
        own = image["logits"]
        return Seen(features, image["boxes"], target, overlap, ignored, by_object, own=own, tables=tables, by=by)

    def scores_file(self, arm: str, count: int | None, seed: int) -> Path:
        """Where the scores of val stay for `intervals`."""
        named = "_".join(map(str, [*self.facts.values(), arm, count or "all", seed]))
        return self.cache / "scores" / f"{named}.npy"

    def saved_scores(self, arm: str, count: int | None, seed: int) -> list[Tensor]:
        """Those of every image of val."""
        scores = torch.from_numpy(np.load(self.scores_file(arm, count, seed))).double()
        return list(scores.split([len(image["boxes"]) for image in self.raw("val")]))


def describe_masks(image: Tensors, form: str) -> Tensor:
    """(N, F) what a network sees of the windows; a new class head sees class features but nothing of the logits."""
    if form != "head":
        return torch.cat([image["statistics"], image["coefficients"]], dim=1)
    level = F.one_hot(image["level"], 3)
    return torch.cat([image["statistics"][:, :-2], image["coefficients"], image["features"].float(), level], dim=1)


def measure(scores: Sequence[Tensor], images: Sequence[Seen], study: Study) -> dict[str, float]:
    """In points."""
    boxes, targets = [image.boxes for image in images], [image.target for image in images]
    found = {}
    for name, (protocol, by) in study.metrics.items():
        more = {"protocol": protocol, "overlaps": [image.tables[by] for image in images]}
        value = mean_average_precision(scores, boxes, targets, nms_threshold=study.nms, **more).map
        found[name] = round(100 * value, 3)
    return found


class Trial:
    """Trainings, on record or made now."""

    def __init__(self, images: Images, out: Path) -> None:
        self.images, self.study, self.out = images, images.study, out
        self._networks: dict[tuple[Point, str, int], nn.Module] = {}

    def network(self, point: Point, part: str, seed: int) -> nn.Module:
        """Trained; kept in memory, since others go on from it, or read it with another alpha."""
        arm = self.study.arms[point.arm]
        key = (point if arm.start else replace(point, alpha=1.0)), part, seed
        if key not in self._networks:
            images = self.images(part, arm.form, arm.by)
            if point.images is not None:
                order = torch.randperm(len(images), generator=torch.Generator().manual_seed(100 + seed))
                images = [images[i] for i in order[: point.images].tolist()]
            start = new_network(arm.form, images[0].features.shape[1], self.study.classes, seed)
            if arm.start is not None:
                start = self.network(self.chosen(arm.start, point.images), part, seed)
            task = Task(Reading(self.study.classes), COCO, self.study.nms, loss_of(point, start, self.study))
            per_step = 64 if arm.loss == "exact" else 16
            plan = Plan("stock", point.steps, per_step, point.rate, point.weight_decay, AVERAGE)
            self._networks[key] = train(start, images, task, plan, seed, lambda: None)
        return self._networks[key]

    def run(self, phase: str, point: Point, seed: int) -> None:
        """What a training gives on held-out images or, in the end, on val."""
        facts = {**self.images.facts, "seed": seed, **asdict(point)}
        if self.knows(phase, facts):
            return
        train_part, part = ("fit", "held_out") if phase == "choose" else ("train", "val")
        began = time.process_time()
        network = self.network(point, train_part, seed)
        seconds = round(time.process_time() - began, 1)
        arm, alpha = self.study.arms[point.arm], point.alpha
        with torch.no_grad():
            images = self.images(part, arm.form, arm.by)
            scores = [read_scores(outputs_of(network, [i]), i.own, arm.form, alpha).double() for i in images]
        if phase == "final":
            self.keep(scores, point, seed)
        self.record(phase, {**facts, "found": measure(scores, images, self.study), "cpu_s": seconds})

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
        point, start = Point(arm, images=images), self.study.arms[arm].start
        if start is not None:
            point = replace(point, alpha=self.chosen(start, images).alpha)
        for stage in self.study.stages.get(arm, self.study.stages[self.study.arms[arm].loss]):
            for changes in stage:
                self.run("choose", replace(point, **changes), 0)
            point = self.chosen(arm, images)

    def chosen(self, arm: str, images: int | None) -> Point:
        """The point with the best AP of the task on held-out images."""
        own = {**self.images.facts, "arm": arm, "images": images}
        runs = [run for run in load_runs(self.out, "choose") if own.items() <= run.items()]
        best = max(runs, key=lambda run: run["found"][self.study.chosen_by])
        return Point(**{field.name: best[field.name] for field in fields(Point)})

    def bounds(self) -> None:
        """The detector's own scores, and true overlaps as scores."""
        for part in ("held_out", "val"):
            images = self.images(part)
            scores = {"own": [image.own for image in images]}
            for name, by in ((self.study.word, "shape"), ("box", "box")):
                tables = [(image.tables[by], image.target["labels"]) for image in images]
                scores[name] = [best_of_class(*table, self.study.classes) for table in tables]
            for arm, own in scores.items():
                facts = {**self.images.facts, "part": part, "arm": arm}
                if not self.knows("bounds", facts):
                    found = measure([each.double() for each in own], images, self.study)
                    self.record("bounds", {**facts, "found": found})
        self.keep(scores["own"], Point("own"), 0)

    def intervals(self, count: int | None) -> None:
        """Gains of every arm over some others, with intervals over images of val."""
        own = {**self.images.facts, "images": count}
        runs = [run for run in load_runs(self.out, "final") if own.items() <= run.items()]
        seeds = {arm: [run["seed"] for run in runs if run["arm"] == arm] for arm in self.study.arms}
        scores = {arm: [self.images.saved_scores(arm, count, seed) for seed in own] for arm, own in seeds.items()}
        if "own" in self.study.over:
            scores["own"] = [self.images.saved_scores("own", None, 0)]
        val = self.images("val")
        lists = {
            (arm, metric): [judged(one, val, self.study, protocol, by) for one in several]
            for (arm, several), (metric, (protocol, by)) in product(scores.items(), self.study.metrics.items())
        }
        for arm, over in product(self.study.arms, self.study.over):
            if arm != over and scores.get(arm) and scores.get(over):
                gains = {
                    metric: gain(lists[over, metric], lists[arm, metric], protocol, len(val), self.study.resamples)
                    for metric, (protocol, _) in self.study.metrics.items()
                }
                self.record("interval", {**own, "arm": arm, "seeds": seeds[arm], "over": over, "gain": gains})


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__, MASKS, seeds=3)
    parser.add_argument("--void", choices=["removed", "background"], default="removed")
    options = parser.parse_args(arguments)
    overlap = "mask_iou" if options.void == "removed" else "mask_iou_plain"
    run(Trial(Images(options.cache, MASKS, overlap, {"void": options.void}), options.out), options)


def parser_of(says: str | None, study: Study, seeds: int) -> argparse.ArgumentParser:
    """What every trial can be told."""
    parser = argparse.ArgumentParser(description=says, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["bounds", "choose", "final", "intervals"])
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--arms", choices=list(study.arms), nargs="+", default=list(study.arms))
    parser.add_argument("--images", type=int, nargs="+", default=[None], help="that train; all if not given")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(seeds)))
    return parser


def run(trial: Trial, options: argparse.Namespace) -> None:
    """Do what was asked for."""
    torch.set_num_threads(1)
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
