"""A new layer by cross-entropy: to the end, on windows of which the last are those that a first layer took for objects."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stepgrad.errors import ConfigError, NonFiniteError
from stepgrad.models.fine_tuning.bar import Watch, ticker
from stepgrad.models.fine_tuning.identity import claim
from stepgrad.models.fine_tuning.records import FinishedHeads
from stepgrad.models.fine_tuning.training import Plan, Task, judge, train
from stepgrad.models.fine_tuning.ways import STOCK_IMAGES
from stepgrad.models.fine_tuning.windows import ImageWindows, images_by_value, labelled
from stepgrad.models.new_head.cache import Data, KeptImage, WindowCache, data_by_value
from stepgrad.models.new_head.frozen import FrozenDetector, WindowChoice
from stepgrad.models.new_head.layer import ClassLayer


@dataclass(frozen=True)
class StartPlan:
    """What cross-entropy may spend."""

    steps: int
    rates: Sequence[float]
    decays: Sequence[float]
    seed: int

    def __post_init__(self) -> None:
        if not self.plans:
            raise ConfigError(
                f"Expected at least one of start_rates and of weight_decays but got {list(self.rates)} and {list(self.decays)}."
            )

    @property
    def plans(self) -> list[Plan]:
        """Every rate with every decay."""
        return [Plan("stock", self.steps, STOCK_IMAGES, rate, decay) for rate in self.rates for decay in self.decays]


@dataclass
class Reader:
    """Reads the images of a run, in rounds."""

    folder: Path | None
    data: Mapping[str, Data]
    choice: WindowChoice
    dtype: torch.dtype
    num_classes: int
    watch: Watch
    owner: str = ""
    """Digest of all that the features depend on, round by round."""

    def claim(self, settings: Mapping[str, Any]) -> None:
        """The folder holds features of these settings and of all images from now on; ConfigError if it holds others."""
        if self.folder is not None:
            data = {f"{name}_data": self._by_value(name) for name in self.data}
            self.owner = claim(self.folder / "settings.json", {**settings, **data})

    def claim_round(self, number: int, settings: Mapping[str, Any]) -> None:
        """The same for the windows that a round adds."""
        if self.folder is not None:
            self.owner = claim(self.folder / f"settings-{number}.json", {**settings, "round before": self.owner})

    def _by_value(self, name: str) -> dict[str, Any]:
        images = self.data[name]
        return data_by_value(images, name, ticker(self.watch, f"looking at {name} images", len(images)))

    def read(
        self, detector: FrozenDetector, number: int, known: Mapping[str, list[KeptImage]]
    ) -> dict[str, list[KeptImage]]:
        """What is kept of each image after a round, by the name of its dataset."""
        found = {name: self._with_bar(self._features(name, detector, number, known.get(name))) for name in self.data}
        return {
            name: [k.joined(f) for k, f in zip(known[name], more, strict=True)] if known else more
            for name, more in found.items()
        }

    def _features(self, name: str, detector: FrozenDetector, number: int, known: list[KeptImage] | None) -> WindowCache:
        part = name if number == 1 else f"{name}-{number}"
        choice = self.choice if number == 1 else WindowChoice(self.choice.best, 0)
        return WindowCache(
            self.folder, part, self.data[name], self.owner, detector, choice, self.dtype, self.num_classes, known
        )

    def _with_bar(self, features: WindowCache) -> list[KeptImage]:
        tick = ticker(self.watch, f"features of {features.part} images", len(features.data))
        return features.read(tick)


@dataclass(frozen=True)
class Started:
    """Where fine-tuning begins."""

    layer: nn.Module
    weight_decay: float
    images: dict[str, list[ImageWindows]]


def start(
    detector: FrozenDetector,
    again: Callable[[Any], FrozenDetector],
    reader: Reader,
    task: Task,
    plan: StartPlan,
    rounds: int,
    out: Path | None,
) -> Started:
    """Cross-entropy on the windows of every round; before the last, only with the first rate and decay.

    The old model knows which windows are likely to show one of its classes. The new layer scores all windows, and some
    that were not kept look like objects to it: so the next round keeps those that the layer before is surest of.
    `again` makes a frozen detector of another model of the kind.
    """
    first = StartPlan(plan.steps, plan.rates[:1], plan.decays[:1], plan.seed)
    kept: dict[str, list[KeptImage]] = {}
    used = detector
    for number in range(1, rounds + 1):
        kept = reader.read(used, number, kept)
        images = {name: [k.image for k in many] for name, many in kept.items()}
        crossing = CrossEntropy(detector, images, task, reader.watch, plan.seed)
        folder = None if out is None else out / f"cross-entropy-{number}"
        layer, decay = crossing.best(plan if number == rounds else first, folder)
        if number < rounds:
            reader.claim_round(number + 1, {"start": first, "labels": task.reading.labels, "layer": layer})
            used = again(copy.deepcopy(detector.model))
            used.install(*layer.folded(), [str(k) for k in range(task.reading.num_classes)])
    return Started(layer, decay, images)


class CrossEntropy:
    """A layer of random weights, and the best that cross-entropy makes of it."""

    def __init__(
        self,
        detector: FrozenDetector,
        images: Mapping[str, list[ImageWindows]],
        task: Task,
        watch: Watch,
        seed: int,
    ) -> None:
        K = task.reading.num_classes
        self.train_images = labelled("train_data", images["train"], K)
        self.val_images = labelled("val_data", images["val"], K)
        self.task, self.watch, self.seed = task, watch, seed
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.layer = detector.new_layer(K)
        self.layer.standardise_like(image.features for image in images["train"])

    def best(self, plan: StartPlan, folder: Path | None) -> tuple[ClassLayer, float]:
        """The layer that is best on held-out images, and the weight decay it was trained with."""
        records = FinishedHeads(folder, self._settings(plan))
        found = []
        for one in plan.plans:
            try:
                layer, _ = records.trained(f"{one.rate!r}-{one.weight_decay!r}", self.layer, partial(self._train, one))
            except NonFiniteError:  # too high a rate is one of those not to choose
                continue
            (value,) = judge(layer, self.val_images, self.task, [self.task.protocol])
            found.append((value, layer, one.weight_decay))
        if not found:
            raise NonFiniteError(f"cross-entropy diverged at every rate of {list(plan.rates)}; lower start_rates.")
        _, layer, decay = max(found, key=lambda one: one[0])
        assert isinstance(layer, ClassLayer)
        return layer, decay

    def _train(self, plan: Plan) -> nn.Module:
        tick = ticker(self.watch, f"cross-entropy, rate {plan.rate:g}, decay {plan.weight_decay:g}", plan.steps)
        return train(self.layer, self.train_images, self.task, plan, self.seed, tick)

    def _settings(self, plan: StartPlan) -> dict[str, Any]:
        return {
            "layer": self.layer,
            "train_images": images_by_value(self.train_images),
            "labels": self.task.reading.labels,
            "steps": plan.steps,
            "seed": plan.seed,
        }
