"""A new class layer, trained by cross-entropy to the end; then more of it, with two kinds of labels, or mAP; several seeds.

It is the recipe of `train_new_head` on the detector of the package, with settings that were chosen before, on other images,
and with a sigmoid for each class, which YOLOv8's labels need.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import nn

from stepgrad.data import ShapesDataset
from stepgrad.evaluation.intervals import Interval
from stepgrad.evaluation.paired import compare
from stepgrad.metric.protocol import get_protocol
from stepgrad.models.demo.detector import CLASSES, trained_ssd
from stepgrad.models.fine_tuning.folder import FinishedHeads
from stepgrad.models.fine_tuning.outputs import Reading
from stepgrad.models.fine_tuning.report import arm
from stepgrad.models.fine_tuning.result import Trained, differences
from stepgrad.models.fine_tuning.training import Plan, Task, detections, train
from stepgrad.models.fine_tuning.ways import STOCK_IMAGES, Budget, with_test
from stepgrad.models.fine_tuning.windows import Labelled, labelled
from stepgrad.models.new_head import ClassLayer, frozen_detector, windows_of
from stepgrad.number_text import mean_and_spread
from stepgrad.report import write_comparison

Stage = Callable[[str, int], Any]
"""From the name of some work and its number of steps to a context that gives a tick for each step."""
START_RATE, MORE_RATE, ALIGNED_RATE, MAP_RATE = 1e-2, 3e-3, 1e-3, 3e-3
WEIGHT_DECAY = 1.0
"""Of cross-entropy, which overfits without. The best of several each, on held-out images."""
MAP_IMAGES = 32
"""Per step."""
TRAINING_SEED = 7
"""Of the training images, which the detector never saw."""
START, MORE, ALIGNED, MAP = "cross-entropy", "more cross-entropy", "task-aligned cross-entropy", "mAP"
NOTES = {
    START: "a new class layer, fully trained; labels are the IoU of each window",
    MORE: "from there, at its best rate",
    ALIGNED: "from there, at its best rate; YOLOv8's labels, designed with mAP in mind: one best window per object",
    MAP: 'from there, MAPLoss(protocol="coco") on as many images',
}

NEXT_STEPS = (
    "stepgrad doctor DATA                                        # what is wrong with the labels",
    "stepgrad evaluate --detections FOUND.json --data DATA       # mAP of any detector, and how sure it is",
    "stepgrad explain --detections FOUND.json --data DATA        # what holds it back: order, boxes, labels, missed objects",
    "sg.train_new_head(model, train, val, class_names=NAMES)     # this demo's training, on your detector and images",
)
"""What the reader could do next."""


@dataclass(frozen=True)
class Settings:
    """What the trainings depend on."""

    steps: int = 1000
    map_steps: int = 100
    images: int = 600
    test_images: int = 300
    seeds: int = 3
    seed: int = 0

    @property
    def plans(self) -> dict[str, Plan]:
        """By name; all but the first see as many images."""
        budget = Budget(self.map_steps, MAP_IMAGES, [MAP_RATE], [MORE_RATE], [self.seed], WEIGHT_DECAY)
        return {
            START: Plan("stock", self.steps, STOCK_IMAGES, START_RATE, WEIGHT_DECAY),
            MORE: budget.plan("stock", MORE_RATE),
            ALIGNED: budget.plan("stock", ALIGNED_RATE),
            MAP: budget.plan("map", MAP_RATE),
        }


@dataclass(frozen=True)
class TrialOutcome:
    """What came of it."""

    images: int  # for testing
    ways: dict[str, Trained]

    def gains(self, over: str) -> list[float]:
        """COCO's AP of mAP over another way, seed by seed, in points."""
        return [100 * gain for gain in differences(self.ways[MAP].test["coco"], self.ways[over].test["coco"])]

    def interval(self, over: str) -> Interval | None:
        """Where the first seed's gain over another way would lie on other images like these; None if not judged."""
        before, after = self.ways[over].judged, self.ways[MAP].judged
        return None if before is None or after is None else compare(before, after).interval

    @property
    def sentence(self) -> str:
        """What happened, whichever way it went."""
        gains = self.gains(MORE)
        gain, spread = mean_and_spread(gains)
        doubts = [f"spread over seeds {spread:.1f}"] if len(gains) > 1 else []
        sure = self.interval(MORE)
        if sure is not None:
            doubts.append(f"{100 * sure.low:.1f} to {100 * sure.high:.1f} on other images, by the first seed")
        with_spread = f" ({', '.join(doubts)})" if doubts else ""
        best_labels, _ = mean_and_spread(self.gains(ALIGNED))
        others = f"Compared with YOLOv8's labels, the difference is {best_labels:+.1f}."
        if abs(gain) <= spread or (sure is not None and sure.low <= 0 <= sure.high):
            return (
                f"No clear difference between training for mAP and more cross-entropy: {gain:+.1f} COCO "
                f"AP{with_spread} on {self.images} unseen images. {others}"
            )
        better = sum(g * gain > 0 for g in gains)
        return (
            f"{self.ways[MAP].seconds:.0f} seconds of training for mAP {'gained' if gain > 0 else 'lost'} {abs(gain):.1f} "
            f"COCO AP over the same amount of cross-entropy{with_spread}, in {better} of {len(gains)} seeds, on "
            f"{self.images} unseen images. {others}"
        )


class Trial:
    """The trainings; in a folder, from which a stopped trial continues."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.folder, self.settings = folder, settings
        self.records = FinishedHeads(folder, asdict(settings))
        self.detector = frozen_detector(trained_ssd())
        self.test_set = ShapesDataset("test", settings.test_images)

    def task(self, labels: str = "soft") -> Task:
        """Six kinds of shapes by COCO's AP; cross-entropy has the IoU as its label, or YOLOv8's."""
        reading = Reading(CLASSES, labels=labels)
        names = self.test_set.class_names
        return Task(reading, get_protocol("coco"), self.detector.nms_threshold, reading.stock_loss, names)

    def run(self, stage: Stage) -> tuple[TrialOutcome, Path]:
        """Train all heads that are not on record and measure them; returns what came of it, and the path of the report."""
        train_set = ShapesDataset("train", self.settings.images, seed=TRAINING_SEED)
        with stage("running the detector on pictures", len(train_set) + len(self.test_set)) as tick:
            known, unseen = (
                labelled(name, windows_of(self.detector, data, CLASSES, watch=lambda *_: tick()), CLASSES)
                for name, data in (("training images", train_set), ("test images", self.test_set))
            )
        runs: dict[str, list[tuple[nn.Module, float]]] = {name: [] for name in NOTES}
        for seed in range(self.settings.seed, self.settings.seed + self.settings.seeds):
            runs[START].append(self._trained(START, self._new_layer(known, seed), known, seed, stage))
            for name in (MORE, ALIGNED, MAP):
                runs[name].append(self._trained(name, runs[START][-1][0], known, seed, stage))
        ways = {}
        with stage("measuring", len(runs)) as tick:
            for name, of_seeds in runs.items():
                heads, seconds = zip(*of_seeds, strict=True)
                judged = detections(heads[0], unseen, self.task()).compute()
                way = Trained(name, self.settings.plans[name].rate, (), {}, fmean(seconds), judged, heads)
                ways[name] = with_test(way, unseen, self.task())
                tick()
        outcome = TrialOutcome(len(unseen), ways)
        return outcome, self._write(outcome, unseen)

    def _new_layer(self, images: Sequence[Labelled], seed: int) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            layer = ClassLayer(self.detector.slots, self.detector.width, CLASSES)
        layer.standardise_like(image.features for image in images)
        return layer

    def _trained(
        self, name: str, start: nn.Module, images: Sequence[Labelled], seed: int, stage: Stage
    ) -> tuple[nn.Module, float]:
        plan, task = self.settings.plans[name], self.task("aligned" if name == ALIGNED else "soft")
        with stage(f"{name}, seed {seed}", plan.steps) as tick:
            record = f"{name.replace(' ', '-')}-{seed}"
            return self.records.trained(record, start, lambda: train(start, images, task, plan, seed, tick))

    def _write(self, outcome: TrialOutcome, images: Sequence[Labelled]) -> Path:
        """report.html and what belongs to it."""
        names, task, seeds = list(outcome.ways), self.task(), self.settings.seeds
        plans = {name: asdict(plan) for name, plan in self.settings.plans.items()}
        return write_comparison(
            self.folder,
            title="stepgrad demo: a new class head on a trained detector",
            sentence=outcome.sentence,
            arms=[arm(way, NOTES[name], seeds, images, task, self.test_set) for name, way in outcome.ways.items()],
            reference=names.index(MORE),
            chosen=names.index(MAP),
            protocols=task.reported,
            dataset=self.test_set,
            config={"demo": asdict(self.settings), "trainings": plans},
            next_steps=NEXT_STEPS,
        )
