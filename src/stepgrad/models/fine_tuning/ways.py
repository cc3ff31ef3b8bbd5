"""The ways to spend a budget from one head: each finds its best rate on held-out images, then trains with every seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import torch
from torch import nn

from stepgrad.errors import NonFiniteError
from stepgrad.evaluation.result import best_thresholds
from stepgrad.models.fine_tuning.bar import Watch, ticker
from stepgrad.models.fine_tuning.cross_fit import Corrected, Correction, Refit, fresh_outputs
from stepgrad.models.fine_tuning.records import FinishedHeads
from stepgrad.models.fine_tuning.result import CROSS_FITTED, MAP, START, STOCK, FineTuned, Trained, choose
from stepgrad.models.fine_tuning.training import Plan, Task, detections, judge, judge_without, train
from stepgrad.models.fine_tuning.windows import Labelled

STOCK_IMAGES = 8
"""Per step of the usual loss, which likes small steps; mAP likes large ones. Both see as many images in all."""


@dataclass(frozen=True)
class TuningImages:
    """Every image, with its windows labelled."""

    train: list[Labelled]
    val: list[Labelled]
    test: list[Labelled] | None
    fresh: list[Labelled] | None

    @property
    def all(self) -> Iterator[Labelled]:
        for part in (self.train, self.val, self.test, self.fresh):
            yield from part or ()


@dataclass(frozen=True)
class Budget:
    """What every way may spend."""

    steps: int
    images: int
    rates: tuple[float, ...]
    stock_rates: tuple[float, ...]
    seeds: tuple[int, ...]
    stock_weight_decay: float = 0.0

    def plan(self, loss: str, rate: float) -> Plan:
        if loss == "map":
            return Plan("map", self.steps, self.images, rate)
        return Plan(
            "stock", math.ceil(self.steps * self.images / STOCK_IMAGES), STOCK_IMAGES, rate, self.stock_weight_decay
        )


class FineTuning:
    """The ways at work: what each of them ends with, for each seed."""

    def __init__(
        self, head: nn.Module, images: TuningImages, task: Task, budget: Budget, records: FinishedHeads, watch: Watch
    ) -> None:
        self.head, self.images, self.task, self.budget = head, images, task, budget
        self.records, self.watch = records, watch
        self.heads: dict[str, list[nn.Module]] = {}
        self.ways: dict[str, Trained] = {}

    def run(self, refit: Refit | None, folds: int) -> None:
        """Train every way."""
        images = self.images
        self._add(START, None, [self.head], [self._on_val(self.head)], [0.0])
        self._train(STOCK, "stock", self.head, [*images.train, *(images.fresh or [])])
        self._train(MAP, "map", self.head, images.fresh or images.train)
        if refit is not None:
            scored = fresh_outputs(images.train, refit, folds)
            outputs = scored[0].features.shape[1] - images.train[0].features.shape[1]
            with torch.random.fork_rng():
                torch.manual_seed(self.budget.seeds[0])
                correction = Correction(scored[0].features.shape[1], outputs, units=128)
            like = next(self.head.parameters())
            self._train(CROSS_FITTED, "map", correction.to(like.device, like.dtype), scored, self._corrected)

    def _corrected(self, correction: nn.Module) -> nn.Module:
        return Corrected(self.head, correction).eval()

    def _train(
        self,
        name: str,
        loss: str,
        start: nn.Module,
        images: Sequence[Labelled],
        finish: Callable[[nn.Module], nn.Module] = lambda head: head,
    ) -> None:
        """One way: the best rate with the first seed, then every seed at that rate."""
        first, *others = self.budget.seeds
        tried = {}
        rates = self.budget.rates if loss == "map" else self.budget.stock_rates
        for rate in rates:
            try:
                head, seconds = self._one(name, loss, rate, first, start, images)
            except NonFiniteError:  # too high a rate is one of those not to choose
                continue
            finished = finish(head)
            tried[rate] = (self._on_val(finished), finished, seconds)
        if not tried:
            raise NonFiniteError(f"{name}: training diverged at every rate of {list(rates)}; try lower rates.")
        rate = max(tried, key=lambda r: tried[r][0])
        value, head, seconds = tried[rate]
        heads, val, times = [head], [value], [seconds]
        for seed in others:
            head, seconds = self._one(name, loss, rate, seed, start, images)
            heads.append(finish(head))
            val.append(self._on_val(heads[-1]))
            times.append(seconds)
        self._add(name, rate, heads, val, times)

    def _one(
        self, name: str, loss: str, rate: float, seed: int, start: nn.Module, images: Sequence[Labelled]
    ) -> tuple[nn.Module, float]:
        plan = self.budget.plan(loss, rate)
        tick = ticker(self.watch, f"{name}, rate {rate:g}, seed {seed}", plan.steps)
        record = f"{name.replace(' ', '-')}-{rate!r}-{seed}"
        return self.records.trained(record, start, lambda: train(start, images, self.task, plan, seed, tick))

    def _on_val(self, head: nn.Module) -> float:
        return judge(head, self.images.val, self.task, [self.task.protocol])[0]

    def _add(
        self, name: str, rate: float | None, heads: list[nn.Module], val: list[float], seconds: list[float]
    ) -> None:
        self.heads[name] = heads
        without = judge_without(heads[0], self.images.val, self.task)
        self.ways[name] = Trained(name, rate, tuple(val), {}, fmean(seconds), without)

    def result(self) -> FineTuned:
        """The choice, by held-out images; then, once, the test images."""
        chosen = choose(self.ways)
        ways = {name: replace(way, test=self._on_test(name)) for name, way in self.ways.items()}
        head = self.heads[chosen][0]
        return FineTuned(head, chosen, ways, self.task.protocol.name, thresholds=self._thresholds(head))

    def _thresholds(self, head: nn.Module) -> dict[str, float]:
        found = best_thresholds(detections(head, self.images.val, self.task).compute())
        return {name: self.task.reading.probability(score) for name, score in found.items()}

    def _on_test(self, name: str) -> dict[str, tuple[float, ...]]:
        if self.images.test is None:
            return {}
        protocols = self.task.reported
        found = [judge(head, self.images.test, self.task, protocols) for head in self.heads[name]]
        return {protocol.name: values for protocol, values in zip(protocols, zip(*found, strict=True), strict=True)}
