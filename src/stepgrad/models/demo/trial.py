"""A new class head, trained by cross-entropy to the end; then more of it, with two kinds of labels, or mAP; several seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import nn

from stepgrad.data import ShapesDataset
from stepgrad.metric.protocol import get_protocol
from stepgrad.models.demo.detector import CLASSES, trained_ssd
from stepgrad.models.demo.features import extract, standardised
from stepgrad.models.fine_tuning.outputs import Reading
from stepgrad.models.fine_tuning.records import FinishedHeads
from stepgrad.models.fine_tuning.result import Trained, differences, mean_and_spread
from stepgrad.models.fine_tuning.training import Plan, Task, judge, train
from stepgrad.models.fine_tuning.windows import Labelled, labelled

NMS_THRESHOLD = 0.5
UNITS = 128
START_IMAGES, MAP_IMAGES = 8, 32
"""Per step."""
START_RATE, MORE_RATE, ALIGNED_RATE, MAP_RATE = 1e-2, 3e-3, 1e-3, 3e-3
WEIGHT_DECAY = 1.0
"""Of cross-entropy, which overfits without. The best of several each, on held-out images: docs/fine_tuning.md."""
TRAINING_SEED = 7
"""Of the training images, which the detector never saw."""
START, MORE, ALIGNED, MAP = "cross-entropy", "more cross-entropy", "task-aligned cross-entropy", "mAP"
NOTES = {
    START: "a new class head, fully trained; labels are the IoU of each window",
    MORE: "from there, at its best rate",
    ALIGNED: "from there, at its best rate; YOLOv8's labels, designed with mAP in mind: one best window per object",
    MAP: 'from there, MAPLoss(protocol="coco") on as many images',
}


@dataclass(frozen=True)
class Settings:
    """What the trainings depend on."""

    steps: int = 2000
    map_steps: int = 100
    images: int = 600
    test_images: int = 300
    seeds: int = 3
    seed: int = 0

    @property
    def plans(self) -> dict[str, Plan]:
        """By name; all but the first see as many images."""
        more = -(-self.map_steps * MAP_IMAGES // START_IMAGES)
        return {
            START: Plan("stock", self.steps, START_IMAGES, START_RATE, WEIGHT_DECAY),
            MORE: Plan("stock", more, START_IMAGES, MORE_RATE, WEIGHT_DECAY),
            ALIGNED: Plan("stock", more, START_IMAGES, ALIGNED_RATE, WEIGHT_DECAY),
            MAP: Plan("map", self.map_steps, MAP_IMAGES, MAP_RATE),
        }


def task(name: str = START) -> Task:
    """Six kinds of shapes by COCO's AP; cross-entropy has the IoU as its label, or YOLOv8's."""
    reading = Reading(CLASSES, labels="aligned" if name == ALIGNED else "soft")
    names = ShapesDataset("train").class_names
    return Task(reading, get_protocol("coco"), NMS_THRESHOLD, reading.stock_loss, names)


@dataclass(frozen=True)
class Pictures:
    """The images of the trial, as a head sees them."""

    train: list[Labelled]
    test: list[Labelled]
    test_set: ShapesDataset


def open_pictures(settings: Settings, tick: Callable[[], object]) -> Pictures:
    """Draw the images and run the detector that comes with the package on them; `tick` after each."""
    model = trained_ssd()
    test_set = ShapesDataset("test", settings.test_images)
    known = extract(model, ShapesDataset("train", settings.images, seed=TRAINING_SEED), tick)
    test = standardised(extract(model, test_set, tick), known)
    return Pictures(
        labelled("training images", standardised(known, known), CLASSES),
        labelled("test images", test, CLASSES),
        test_set,
    )


def new_head(features: int, seed: int, units: int = UNITS) -> nn.Module:
    """Random weights; at first every window is most likely nothing."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        head = nn.Sequential(nn.Linear(features, units), nn.ReLU(), nn.Linear(units, CLASSES))
    nn.init.constant_(head.get_parameter("2.bias"), -3.0)
    return head


class Trial:
    """Heads by training and seed; in a folder, from which a stopped trial continues."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.settings = settings
        self.records = FinishedHeads(folder, asdict(settings))
        self.heads: dict[str, list[nn.Module]] = {name: [] for name in settings.plans}
        self.seconds: dict[str, list[float]] = {name: [] for name in settings.plans}

    def run(self, images: Sequence[Labelled], stage: Callable[[str, int], Any]) -> None:
        """Train all heads that are not on record; `stage(what, steps)` is a context with a tick for each step."""
        for seed in range(self.settings.seed, self.settings.seed + self.settings.seeds):
            start = new_head(images[0].features.shape[1], seed)
            for name, plan in self.settings.plans.items():
                with stage(f"{name}, seed {seed}", plan.steps) as tick:
                    head, seconds = self._trained(name, plan, seed, start, images, tick)
                self.heads[name].append(head)
                self.seconds[name].append(seconds)
                start = head if name == START else start

    def _trained(
        self, name: str, plan: Plan, seed: int, start: nn.Module, images: Sequence[Labelled], tick: Callable[[], object]
    ) -> tuple[nn.Module, float]:
        record = f"{name.replace(' ', '-')}-{seed}"
        return self.records.trained(record, start, lambda: train(start, images, task(name), plan, seed, tick))

    def judge(self, images: Sequence[Labelled], tick: Callable[[], object]) -> TrialOutcome:
        """mAP of all heads on test images."""
        chosen = task()
        ways = {}
        for name, heads in self.heads.items():
            found = []
            for head in heads:
                found.append(judge(head, images, chosen, chosen.reported))
                tick()
            test = {p.name: values for p, values in zip(chosen.reported, zip(*found, strict=True), strict=True)}
            ways[name] = Trained(name, self.settings.plans[name].rate, (), test, fmean(self.seconds[name]))
        return TrialOutcome(len(images), ways, {name: heads[0] for name, heads in self.heads.items()})


@dataclass(frozen=True)
class TrialOutcome:
    """What came of it."""

    images: int  # for testing
    ways: dict[str, Trained]
    heads: dict[str, nn.Module]  # of the first seed

    def gains(self, over: str) -> list[float]:
        """COCO's AP of mAP over another way, seed by seed, in points."""
        return [100 * gain for gain in differences(self.ways[MAP].test["coco"], self.ways[over].test["coco"])]

    @property
    def sentence(self) -> str:
        """What happened, whichever way it went."""
        gains = self.gains(MORE)
        gain, spread = mean_and_spread(gains)
        with_spread = f" (spread over seeds {spread:.1f})" if len(gains) > 1 else ""
        best_labels, _ = mean_and_spread(self.gains(ALIGNED))
        others = f"Compared with YOLOv8's labels, the difference is {best_labels:+.1f}."
        if abs(gain) <= spread:
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
