"""The ways to spend a budget from one head: each finds its best rate on held-out images, then trains with every seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from stepgrad.errors import ConfigError, InputError, NonFiniteError, not_negative, positive_number, whole_number
from stepgrad.evaluation.result import EvaluationResult
from stepgrad.models.fine_tuning.folder import FinishedHeads
from stepgrad.models.fine_tuning.result import CROSS_FITTED, MAP, START, STOCK, Trained
from stepgrad.models.fine_tuning.training import Plan, Task, detections, judge, outputs_of, train
from stepgrad.models.fine_tuning.windows import ImageWindows, Labelled
from stepgrad.progress import Watch, ticker

STOCK_IMAGES = 8
"""Per step of the usual loss, which likes small steps; mAP likes large ones. Both see as many images in all."""
T = TypeVar("T")
Run = tuple[float, nn.Module, float]
"""mAP on held-out images, the trained head, and the seconds that it took."""
Refit = Callable[[list[ImageWindows]], nn.Module]
"""Trains a new head on the images it is given."""


@dataclass
class Budget:
    """What every way may spend, as `finetune` is asked for it."""

    steps: int
    images_per_step: int
    rates: Sequence[float]
    stock_rates: Sequence[float]
    seeds: Sequence[int]
    stock_weight_decay: float = 0.0

    def __post_init__(self) -> None:
        self.steps = whole_number("steps", self.steps, least=1)
        self.images_per_step = whole_number("images_per_step", self.images_per_step, least=1)
        self.rates = _rates("rates", self.rates)
        self.stock_rates = _rates("stock_rates", self.stock_rates)
        self.seeds = [whole_number("each of seeds", seed, least=0) for seed in _listed("seeds", self.seeds, "seed")]
        self.stock_weight_decay = not_negative("stock_weight_decay", self.stock_weight_decay)
        if len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(
                f"Expected seeds that differ but got {self.seeds}: equal ones train equal heads, and a spread over seeds of 0 "
                "would let any gain pass for a sure one."
            )

    def plan(self, loss: str, rate: float) -> Plan:
        """One training; of both losses it sees as many images."""
        if loss == "map":
            return Plan("map", self.steps, self.images_per_step, rate)
        steps = math.ceil(self.steps * self.images_per_step / STOCK_IMAGES)
        return Plan("stock", steps, STOCK_IMAGES, rate, self.stock_weight_decay)


def _rates(name: str, rates: Sequence[float]) -> list[float]:
    return [positive_number(name, rate) for rate in _listed(name, rates, "rate")]


def _listed(name: str, values: Any, what: str) -> list[Any]:
    try:
        listed = list(values)
    except TypeError:
        raise ConfigError(f"Expected {name} to be a list but got {values!r}.") from None
    if not listed:
        raise ConfigError(f"Expected {name} to hold at least one {what} but it is empty.")
    return listed


@dataclass
class FineTuning:
    """All that the ways share."""

    head: nn.Module
    train_images: list[Labelled]
    val_images: list[Labelled]
    fresh_images: list[Labelled] | None
    task: Task
    budget: Budget
    records: FinishedHeads
    watch: Watch

    def run(self, refit: Refit | None, folds: int) -> dict[str, Trained]:
        """Train every way; numbers are those on held-out images."""
        head, fresh = self.head, self.fresh_images
        ways = [
            Trained(START, None, (self._on_val(head),), {}, 0.0, self._judged(head), [head]),
            self._trained(STOCK, "stock", head, [*self.train_images, *(fresh or [])]),
            self._trained(MAP, "map", head, fresh or self.train_images),
        ]
        if refit is not None:
            scored = fresh_outputs(self.train_images, refit, folds)
            inputs = scored[0].features.shape[1]
            with torch.random.fork_rng():
                torch.manual_seed(self.budget.seeds[0])
                correction = Correction(inputs, inputs - self.train_images[0].features.shape[1], units=128)
            like = next(head.parameters())
            start = correction.to(like.device, like.dtype)
            ways.append(self._trained(CROSS_FITTED, "map", start, scored, lambda c: Corrected(head, c).eval()))
        return {way.name: way for way in ways}

    def _trained(
        self,
        name: str,
        loss: str,
        start: nn.Module,
        images: Sequence[Labelled],
        finish: Callable[[nn.Module], nn.Module] = lambda head: head,
    ) -> Trained:
        """One way: the best rate with the first seed, then every seed at that rate."""

        def one(rate: float, seed: int) -> Run:
            plan = self.budget.plan(loss, rate)
            tick = ticker(self.watch, f"{name}, rate {rate:g}, seed {seed}", plan.steps)
            record = f"{name.replace(' ', '-')}-{rate!r}-{seed}"
            head, seconds = self.records.trained(
                record, start, lambda: train(start, images, self.task, plan, seed, tick)
            )
            head = finish(head)
            return self._on_val(head), head, seconds

        first, *others = self.budget.seeds
        rates = self.budget.rates if loss == "map" else self.budget.stock_rates
        diverged = f"{name}: training diverged at every rate of {list(rates)}; try lower rates."
        best, run = best_of(rates, lambda rate: one(rate, first), diverged)
        val, heads, seconds = zip(run, *(one(best, seed) for seed in others), strict=True)
        return Trained(name, best, val, {}, fmean(seconds), self._judged(heads[0]), heads)

    def _judged(self, head: nn.Module) -> EvaluationResult:
        return detections(head, self.val_images, self.task).compute()

    def _on_val(self, head: nn.Module) -> float:
        return judge(head, self.val_images, self.task, [self.task.protocol])[0]


def best_of(tried: Sequence[T], train_one: Callable[[T], Run], diverged: str) -> tuple[T, Run]:
    """Of several settings the one whose head is best on held-out images, and its run.

    A setting whose training diverges is left out; NonFiniteError with the text `diverged` if all do.
    """
    runs: dict[T, Run] = {}
    for setting in tried:
        with suppress(NonFiniteError):  # too high a rate is one of those not to choose
            runs[setting] = train_one(setting)
    if not runs:
        raise NonFiniteError(diverged)
    return max(runs.items(), key=lambda pair: pair[1][0])


def with_test(way: Trained, images: Sequence[Labelled], task: Task) -> Trained:
    """The way with its numbers on test images, by every protocol that is reported."""
    by_seed = [judge(head, images, task, task.reported) for head in way.heads]
    values = zip(*by_seed, strict=True)
    return replace(way, test={protocol.name: of for protocol, of in zip(task.reported, values, strict=True)})


# Fresh scores without fresh images: each part of the training images is scored by a head of the other parts. A head that knows
# its training images by heart ranks them almost right, and mAP would learn the outliers that are left. What is learnt on
# fresh scores is a correction, which then sits on the head of all images.


class Correction(nn.Module):
    """Adds to the outputs of a head, which come as the last columns of its features; at first nothing."""

    def __init__(self, inputs: int, outputs: int, units: int) -> None:
        super().__init__()
        self.outputs = outputs
        self.hidden, self.output = nn.Linear(inputs, units), nn.Linear(units, outputs)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def forward(self, features: Tensor) -> Tensor:
        corrected: Tensor = features[:, -self.outputs :] + self.output(self.hidden(features).relu())
        return corrected


class Corrected(nn.Module):
    """A head, and the correction that sits on it."""

    def __init__(self, head: nn.Module, correction: nn.Module) -> None:
        super().__init__()
        self.head, self.correction = head, correction

    def forward(self, features: Tensor) -> Tensor:
        corrected: Tensor = self.correction(torch.cat([features, self.head(features)], dim=1))
        return corrected


def fresh_outputs(images: Sequence[Labelled], refit: Refit, folds: int) -> list[Labelled]:
    """The images, each with the outputs of a head that was not trained on it as further features."""
    if not 2 <= folds <= len(images):
        raise InputError(f"Expected folds to be from 2 to the number of images, {len(images)}, but got {folds}.")
    with_outputs = list(images)
    for fold in range(folds):
        others = [
            ImageWindows(i.features, i.boxes, i.target, i.table, i.oriented)
            for n, i in enumerate(images)
            if n % folds != fold
        ]
        head = refit(others).eval()
        for number in range(fold, len(images), folds):
            image = images[number]
            with torch.no_grad():
                outputs = outputs_of(head, [image]).to(image.features.device, image.features.dtype)
            with_outputs[number] = replace(image, features=torch.cat([image.features, outputs], dim=1))
    return with_outputs
