"""A new class head on the frozen YOLOv8n: trained to the end by each usual loss, then by more of it, or for mAP, as long.

    python -m experiments.yolo.heads choose --set voc --data DIR --cache DIR --out FILE.jsonl  # one seed, held-out images
    python -m experiments.yolo.heads final --set voc --data DIR --cache DIR --out FILE.jsonl   # seeds, val, what was chosen
    python -m experiments.yolo.heads curve --set voc --images 250 1000 4000 --units 64 ...             # what was chosen, else

The windows come from `python -m experiments.yolo.windows`. A run that is on record is not made again, so both commands go on
where they were stopped. Every loss has the same rates; its best on held-out images, for 64 units and all images, is what the
final runs and the curves take. Curves also say how far the training images are fitted: COCO AP on the first 500 of them.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from experiments.records import Run, grouped, load_runs, once
from experiments.yolo.losses import CROSS_ENTROPIES, OTHERS, stock_loss
from experiments.yolo.sets import SETS, Parts, Set
from stepgrad.losses.functional import mean_average_precision
from stepgrad.metric.protocol import COCO, VOC12, Protocol
from stepgrad.models.fine_tuning.outputs import Reading
from stepgrad.models.fine_tuning.training import Plan, Task, scores_of, train
from stepgrad.models.fine_tuning.windows import Labelled, labelled

RATES = (1e-3, 3e-3, 1e-2)
WEIGHT_DECAYS = (0.3, 1.0)
MORE_RATES = (3e-4, 1e-3, 3e-3, 1e-2)
AP50 = replace(COCO, name="ap50", match_thresholds=(0.5,))
INTEGRAL = replace(COCO, name="integral", match_thresholds=tuple((k + 0.5) / 100 for k in range(50, 100)))
"""The integral over IoU from 0.5 to 1, as a sum over fifty thresholds."""
OBJECTIVES = {"coco": COCO, "voc12": VOC12, "integral": INTEGRAL}
REPORTED = (COCO, AP50, VOC12)
FITTED = 500
CURVE = (("soft", "soft"), ("soft", "coco"), ("aligned", "aligned"), ("aligned", "coco"))
"""Ways of the curves, each with its start."""


@dataclass(frozen=True)
class Point:
    """One training of a head."""

    loss: str  # a cross-entropy, another's loss, or the protocol that mAP is trained for
    rate: float
    weight_decay: float = 0.0
    units: int = 64  # 0: a linear head
    start: str | None = None  # the cross-entropy that it goes on from
    images: int | None = None  # that train; None: all
    average: float = 0.0
    epochs: float | None = None  # over all images; None: as long as the set says

    @property
    def is_map(self) -> bool:
        return self.loss in OBJECTIVES

    def plan(self, of: Set, count: int) -> Plan:
        """For so many images."""
        small = self.loss in CROSS_ENTROPIES
        per_step = of.images if small else of.map_images
        shown = of.steps * of.images if self.start is None else of.map_steps * of.map_images
        if self.epochs is not None:
            shown = round(self.epochs * count)
        loss = "map" if self.is_map else "stock"
        return Plan(loss, math.ceil(shown / per_step), per_step, self.rate, self.weight_decay, self.average)


class Trial:
    """The images of a set, standardised, and the trainings on them."""

    def __init__(self, of: Set, parts: Parts) -> None:
        self.set, self.parts, self.num_classes = of, parts, parts.num_classes
        self._labelled: dict[str, list[Labelled]] = {}

    def images(self, part: str) -> list[Labelled]:
        """ "train" is all but the held-out ones; "all" is both."""
        if part == "all":
            return [*self.images("train"), *self.images("held_out")]
        if part not in self._labelled:
            self._labelled[part] = labelled(part, getattr(self.parts, part), self.num_classes)
        return self._labelled[part]

    def new_head(self, units: int, seed: int) -> nn.Module:
        width = self.images("train")[0].features.shape[1]
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            layers = [nn.Linear(width, units), nn.SiLU()] if units else []
            head = nn.Sequential(*layers, nn.Linear(units or width, self.num_classes))
        nn.init.constant_(head[-1].bias, -4.0)  # type: ignore[arg-type]
        return head

    def fit(self, head: nn.Module, point: Point, part: str, seed: int) -> nn.Module:
        images = self.images(part)[: point.images]
        name = "soft" if point.is_map else point.loss
        protocol = OBJECTIVES.get(point.loss, COCO)
        usual = stock_loss(name, self.num_classes, images)
        options = {"absent_classes": "zero"}
        task = Task(Reading(self.num_classes), protocol, self.set.nms, usual, loss_options=options)
        return train(head, images, task, point.plan(self.set, len(images)), seed, lambda: None)

    def measure(self, head: nn.Module, part: str) -> dict[str, Any]:
        """mAP in points, and the AP of each class."""
        images = self.images(part)
        scores = self._scores(head, images)
        return {protocol.name: self._ap(scores, images, protocol) for protocol in REPORTED}

    def fitted(self, head: nn.Module, point: Point, part: str) -> float:
        """COCO AP on training images."""
        images = self.images(part)[: min(point.images or FITTED, FITTED)]
        return self._ap(self._scores(head, images), images, COCO)[0]

    def _scores(self, head: nn.Module, images: Sequence[Labelled]) -> list[Tensor]:
        reading = Reading(self.num_classes)
        return scores_of(head, images, Task(reading, COCO, self.set.nms, reading.stock_loss))

    def _ap(self, scores: Sequence[Tensor], images: Sequence[Labelled], protocol: Protocol) -> list[float]:
        boxes, targets = [i.boxes for i in images], [i.target for i in images]
        found = mean_average_precision(scores, boxes, targets, protocol=protocol, nms_threshold=self.set.nms)
        return [round(100 * value, 2) for value in (found.map, *found.ap.tolist())]


class Runs:
    """Trainings of a set, on record or made now; a head that others go on from is kept in memory, or made again."""

    def __init__(self, trial: Trial, file: Path, name: str, phase: str) -> None:
        self.trial, self.file, self.name, self.phase = trial, file, name, phase
        self.train_part, self.test_part = ("train", "held_out") if phase == "choose" else ("all", "test")
        self.heads: dict[tuple[Point, int], nn.Module] = {}

    def head(self, point: Point, seed: int) -> nn.Module:
        """A trained start."""
        if (point, seed) not in self.heads:
            self.heads[point, seed] = self.trial.fit(
                self.trial.new_head(point.units, seed), point, self.train_part, seed
            )
        return self.heads[point, seed]

    def value(self, point: Point, seed: int, start: Point | None = None) -> float:
        """COCO AP of a training, which goes on record."""
        facts = {"set": self.name, "seed": seed, **asdict(point)}
        run = once(self.file, self.phase, facts, lambda: self._train(point, seed, start))
        return float(run["found"]["coco"][0])

    def _train(self, point: Point, seed: int, start: Point | None) -> Run:
        first = None if start is None else self.head(start, seed)
        began = time.perf_counter()
        head = self.head(point, seed) if first is None else self.trial.fit(first, point, self.train_part, seed + 50)
        seconds = round(time.perf_counter() - began, 1)
        run: Run = {"found": self.trial.measure(head, self.test_part), "s": seconds}
        return {**run, "fitted": self.trial.fitted(head, point, self.train_part)} if self.phase == "curve" else run


def choose(runs: Runs, units: int, losses: Sequence[str], after: Sequence[str], starts: int) -> None:
    """Rates of every start, then weight decay at the best; from the best starts, rates of every way to go on."""
    best: dict[str, tuple[float, Point]] = {}
    for loss in losses:
        tried = [Point(loss, rate, units=units) for rate in RATES]
        rated = max(((runs.value(p, 0), p) for p in tried), key=lambda pair: pair[0])
        decayed = [replace(rated[1], weight_decay=decay) for decay in WEIGHT_DECAYS]
        best[loss] = max([rated, *((runs.value(p, 0), p) for p in decayed)], key=lambda pair: pair[0])
    for _, start in sorted(best.values(), key=lambda pair: -pair[0])[:starts]:
        for loss in (start.loss, *after):
            for rate in MORE_RATES:
                decay = start.weight_decay if loss == start.loss else 0.0
                runs.value(replace(start, loss=loss, rate=rate, weight_decay=decay, start=start.loss), 0, start)
    runs.heads.clear()


def chosen(file: Path, name: str, units: int, epochs: float | None = None) -> dict[tuple[str | None, str], Point]:
    """By (start, loss), the point of a set with the best COCO AP on held-out images; of equals the first."""
    tried = grouped(load_runs(file, "choose"), "set", "units", "epochs").get((name, units, epochs), [])
    best = [max(own, key=lambda run: run["found"]["coco"][0]) for own in grouped(tried, "start", "loss").values()]
    points = [Point(**{field.name: run[field.name] for field in fields(Point)}) for run in best]
    return {(point.start, point.loss): point for point in points}


def final(runs: Runs, points: dict[tuple[str | None, str], Point], seeds: Sequence[int], **changes: Any) -> None:
    """Every chosen point with every seed, on val."""
    for seed in seeds:
        for (start, _), point in points.items():
            first = None if start is None else replace(points[None, start], **changes)
            runs.value(replace(point, **changes), seed, first)
        runs.heads.clear()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["choose", "final", "curve"])
    parser.add_argument("--set", choices=list(SETS), required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--units", type=int, nargs="+", default=[64])
    parser.add_argument("--images", type=int, nargs="+", default=[4000], help="of curves")
    parser.add_argument("--losses", nargs="+", default=list(CROSS_ENTROPIES))
    parser.add_argument("--after", nargs="*", default=[*OBJECTIVES, *OTHERS])
    parser.add_argument("--starts", type=int, default=2, help="how many of the best cross-entropies to go on from")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    of = SETS[options.set]
    trial = Trial(of, of.load(options.data, options.cache, test=options.what != "choose"))
    runs = Runs(trial, options.out, options.set, options.what)
    for units in options.units:
        if options.what == "choose":
            choose(runs, units, options.losses, options.after, options.starts)
        elif options.what == "final":
            points = chosen(options.out, options.set, units)
            wanted = [*options.losses, *options.after]
            final(runs, {way: p for way, p in points.items() if way[1] in (way[0], *wanted)}, options.seeds)
        else:
            points = chosen(options.out, options.set, 64)
            points = {way: points[way] for start, loss in CURVE for way in ((None, start), (start, loss))}
            for images in options.images:
                final(runs, points, options.seeds, units=units, images=images)


if __name__ == "__main__":
    main()
