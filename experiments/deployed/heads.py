"""A class head on frozen features, trained by cross-entropy to the end, then by more of it, for mAP, or for the metric itself.

    python -m experiments.deployed.heads choose --set voc --data DIR --cache DIR --out FILE.jsonl   # one seed, held-out images
    python -m experiments.deployed.heads final --set voc --data DIR --cache DIR --out FILE.jsonl    # seeds, val, what was chosen

Two metrics: the recall left at precision 0.9, and the cost of a false alarm against ten for a miss, both at IoU 0.5 after NMS.
Cross-entropy has hard labels, as most detectors have them, or task-aligned ones, which know of duplicates and of how well a box
fits. Every way to go on has the best of two rates by the metric on held-out images, where recall is a mean over precisions
around 0.9: at a single one it jumps from head to head. Thresholds per class come from the held-out images too, which take no
part in any training. A head that goes on to be trained for cost starts with these thresholds moved to zero.

The windows of YOLOv8n come from `python -m experiments.yolo.windows`; those of AlexNet are made here, once. A run that is on
record is not made again, so both commands go on where they were stopped.
"""

from __future__ import annotations

import argparse
import copy
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import nn

from experiments.deployed.measure import FALSE_ALARM, MISS, PRECISION, cheapest, judge, lists_of, thresholds_of
from experiments.deployed.sets import SETS
from experiments.records import Run, once
from experiments.yolo.heads import Trial
from stepgrad.evaluation.result import EvaluationResult
from stepgrad.losses.detection import DetectionLoss, MAPLoss
from stepgrad.metric.metrics import Cost, RecallAtPrecision
from stepgrad.metric.protocol import VOC12
from stepgrad.models.fine_tuning.outputs import Reading, UsualLoss
from stepgrad.models.fine_tuning.training import Plan, Task, loss_of_outputs, train

LABELS = ("hard", "aligned")
METRICS = {"recall": "around", "cost": "cost"}
"""What is trained for, and the measure on held-out images that chooses."""
START_RATE = 3e-3  # as `experiments.yolo.heads choose` found it
RATES = (3e-3, 1e-2)
IMAGES, STEPS = 128, 150
"""Of mAP and of a metric: so many images that a class has more than a few objects there. Cross-entropy sees as many in all."""


@dataclass(frozen=True)
class Way:
    """One training of a head."""

    loss: str  # a kind of labels, "map", or one of METRICS
    rate: float
    units: int  # 0: a linear head
    start: str | None = None  # the labels of the cross-entropy that it goes on from

    @property
    def first(self) -> Way:
        """The training that it goes on from."""
        assert self.start is not None
        return Way(self.start, START_RATE, self.units)

    def after(self, loss: str, rate: float) -> Way:
        """Goes on from this one."""
        return replace(self, loss=loss, rate=rate, start=self.loss)


def metric_loss(name: str, num_classes: int, nms: float) -> DetectionLoss:
    options = {"protocol": VOC12, "nms_threshold": nms}
    if name == "map":
        return MAPLoss(num_classes, **options)
    metric = RecallAtPrecision(PRECISION) if name == "recall" else Cost(0.0, FALSE_ALARM, MISS)
    return DetectionLoss(num_classes, metric, absent_classes="skip", **options)  # type: ignore[arg-type]


class Heads:
    """Trained heads of one seed: made once, kept in memory."""

    def __init__(self, trial: Trial, seed: int) -> None:
        self.trial, self.seed = trial, seed
        self._starts: dict[Way, nn.Module] = {}

    def lists(self, head: nn.Module, part: str) -> EvaluationResult:
        return lists_of(head, self.trial.images(part), self.trial.num_classes, self.trial.set.nms)

    def make(self, way: Way) -> tuple[nn.Module, float]:
        """A trained head, and the seconds its own training took."""
        if way.start is not None:
            first, _ = self.make(way.first)
            first = self._with_thresholds_at_zero(first) if way.loss == "cost" else first
        elif way in self._starts:
            return self._starts[way], 0.0
        else:
            first = self.trial.new_head(way.units, self.seed)
        began = time.perf_counter()
        head = self._train(first, way)
        if way.start is None:
            self._starts[way] = head
        return head, time.perf_counter() - began

    def _train(self, head: nn.Module, way: Way) -> nn.Module:
        of = self.trial.set
        per_step = of.images if way.loss in LABELS else IMAGES
        shown = of.steps * of.images if way.start is None else STEPS * IMAGES
        plan = Plan("stock", math.ceil(shown / per_step), per_step, way.rate)
        task = Task(Reading(self.trial.num_classes), VOC12, of.nms, self._loss(way.loss))
        seed = self.seed if way.start is None else self.seed + 50
        return train(head, self.trial.images("train"), task, plan, seed, lambda: None)

    def _loss(self, name: str) -> UsualLoss:
        if name in LABELS:
            return Reading(self.trial.num_classes, labels=name).stock_loss
        K = self.trial.num_classes
        return loss_of_outputs(metric_loss(name, K, self.trial.set.nms), Reading(K))

    def _with_thresholds_at_zero(self, head: nn.Module) -> nn.Module:
        """Each class's bias moved, so that its cheapest threshold on held-out images is zero."""
        thresholds = torch.tensor(thresholds_of(self.lists(head, "held_out"), cheapest))
        moved = copy.deepcopy(head)
        with torch.no_grad():
            last: Any = moved[-1]  # type: ignore[index]
            last.bias -= torch.where(thresholds.isfinite(), thresholds, 0.0)
        return moved


class Runs:
    """Trainings on record."""

    def __init__(self, trial: Trial, file: Path, name: str, phase: str) -> None:
        self.trial, self.file, self.name, self.phase = trial, file, name, phase
        self.test = "held_out" if phase == "choose" else "test"
        self._heads: Heads | None = None

    def heads(self, seed: int) -> Heads:
        if self._heads is None or self._heads.seed != seed:
            self._heads = Heads(self.trial, seed)
        return self._heads

    def found(self, way: Way, seed: int) -> dict[str, float]:
        """What a training gave, which goes on record."""
        run = once(
            self.file, self.phase, {"set": self.name, "seed": seed, **asdict(way)}, partial(self._make, way, seed)
        )
        found: dict[str, float] = run["found"]
        return found

    def _make(self, way: Way, seed: int) -> Run:
        heads = self.heads(seed)
        head, seconds = heads.make(way)
        held_out = heads.lists(head, "held_out")
        values = judge(held_out, held_out if self.test == "held_out" else heads.lists(head, self.test))
        return {"found": values, "s": round(seconds, 1)}

    def best(self, ways: Sequence[Way], measure: str) -> Way:
        """With the first seed."""
        return best_of({way: self.found(way, 0) for way in ways}, measure)


def best_of(found: Mapping[Way, Mapping[str, float]], measure: str) -> Way:
    """The one with the largest value, or the lowest cost."""
    sign = -1.0 if measure == "cost" else 1.0
    return max(found, key=lambda way: sign * found[way][measure])


def ways_on(start: Way, metric: str) -> dict[str, list[Way]]:
    """By name, what is tried from a start."""
    names = {"more": start.loss, "map": "map", "metric": metric}
    return {name: [start.after(loss, rate) for rate in RATES] for name, loss in names.items()}


def choose(runs: Runs, units: int, kinds: Sequence[str] = LABELS) -> Iterator[Way]:
    """For each kind of labels a start, and for each metric the best of each way to go on from it."""
    for labels in kinds:
        start = Way(labels, START_RATE, units)
        yield start
        for metric, measure in METRICS.items():
            for ways in ways_on(start, metric).values():
                yield runs.best(ways, measure)


def open_runs(options: argparse.Namespace, test: bool) -> dict[str, Runs]:
    """By phase."""
    of = SETS[options.set]
    trial = Trial(of, of.load(options.data, options.cache, test=test))
    return {phase: Runs(trial, options.out, options.set, phase) for phase in ("choose", "final")}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["choose", "final"])
    parser.add_argument("--set", choices=list(SETS), required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--units", type=int, nargs="+", default=[0, 64, 512])
    parser.add_argument("--labels", nargs="+", choices=LABELS, default=LABELS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    runs = open_runs(options, options.what == "final")
    for units in options.units:
        chosen = dict.fromkeys(choose(runs["choose"], units, options.labels))
        if options.what == "final":
            for seed, way in product(options.seeds, chosen):
                runs["final"].found(way, seed)


if __name__ == "__main__":
    main()
