"""`keep_best`: watch held-out mAP while a model trains, and end with the best weights there were, the first ones included."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from torch import Tensor, nn

from stepgrad.errors import ConfigError, InputError, LikelyMistakeWarning, NonFiniteError, whole_number
from stepgrad.evaluation.paired import compare
from stepgrad.metric.protocol import Protocol, get_protocol
from stepgrad.models.held_out import HeldOut, HeldOutResult, RandomNumbers, measure
from stepgrad.models.switch import MapLossSwitch, find_switch
from stepgrad.number_text import metric_text, per_cent

_TRAINED = {"start": "at the start", "stock": "without {}", "map": "with {}"}
"""What was in the loss up to a measurement, in words; {} is the metric."""
_NAMES = {"start": "the start", "stock": "training without {}", "map": "training with {}"}
"""The same as the name of one of two that are compared."""


@dataclass(frozen=True)
class HeldOutScore:
    """The mAP on held-out images of the weights after some steps."""

    step: int
    map: float  # nan where the model gave no finite numbers any more
    trained: str  # "start", "stock": no step had mAP in the loss, or "map"

    @property
    def after(self) -> str:
        """When, in words."""
        return f"after {self.step} step{'s' if self.step != 1 else ''}"


class BestWeights:
    """What `keep_best` returns; see there.

    Attributes:
        history: every measurement so far.
        best: the best of them; of equals the first.
    """

    def __init__(self, model: nn.Module, val_data: HeldOut, every: int, protocol: str | Protocol | None) -> None:
        self.model = model
        self.val_data = val_data
        self.every = whole_number("every", every, least=1)
        self.protocol = protocol if protocol is None else get_protocol(protocol)
        self.switch = None if callable(val_data) else find_switch(model)
        self.history: list[HeldOutScore] = []
        self._begin()
        measured = measure(model, val_data, self.protocol)
        self.best = HeldOutScore(0, measured.value, "start")
        self.history.append(self.best)
        self._tops = {"start": (self.best, measured)}  # the best of each kind, with what was judged
        self._weights = weights_of(model)

    def _begin(self) -> None:
        self.steps = 0
        self._measured_at = 0
        self._map_was_on = False

    def step(self) -> None:
        """To be called after every step of the optimiser; measures when it is time."""
        self.steps += 1
        self._map_was_on |= self.switch is None or self.switch.enabled
        if self.steps % self.every == 0:
            self.check()

    def check(self) -> float:
        """Measure now, and keep a copy of the weights if they are the best so far; returns the held-out mAP."""
        try:
            measured = measure(self.model, self.val_data, self.protocol)
        except NonFiniteError:  # a diverged model is the case this is for
            measured = HeldOutResult(math.nan)
        trained = "map" if self._map_was_on else "stock" if self.steps else "start"
        score = HeldOutScore(self.steps, measured.value, trained)
        self.history.append(score)
        self._measured_at = self.steps
        if trained not in self._tops or _is_better(score, self._tops[trained][0]):
            self._tops[trained] = score, measured
        if _is_better(score, self.best):
            self.best = score
            self._weights = weights_of(self.model)
        return score.map

    def restore(self) -> str:
        """Measure the end, put the best weights back into the model, and say which they are."""
        self.check_if_new()
        self.put_back()
        return self.summary

    def put_back(self) -> None:
        """Put the best weights back into the model; optimisers continue with the same parameters."""
        self.model.load_state_dict(self._weights)

    def train(self, loop: Callable[[], object], *, control: bool = False) -> str:
        """Run a training loop and end with the best weights; returns the summary.

        Args:
            loop: trains the model, makes its own optimiser, goes through its data from the start and calls `step` after
                each step.
            control: run it twice from the same weights and random numbers, the first time without mAP, whatever the loop
                sets the switch to: so mAP is compared with as many steps of the stock loss, and the best of all is kept.
        """
        if control and self.switch is None:
            raise ConfigError("control=True needs a model prepared by `train_for_map`, whose mAP it can switch off.")
        start, randomness = weights_of(self.model), RandomNumbers()
        control_steps = self._run_without_map(loop) if control else None
        self.model.load_state_dict(start)
        randomness.put_back()
        self._run(loop)
        self.put_back()
        if control_steps not in (None, self.steps):
            warnings.warn(
                f"The control took {control_steps} steps and the training for mAP {self.steps}: they are not of equal "
                "size. The loop should make a new optimiser and start its data from the beginning each time.",
                LikelyMistakeWarning,
                stacklevel=2,
            )
        return self.summary

    def _run_without_map(self, loop: Callable[[], object]) -> int:
        assert self.switch is not None
        self.switch.held_off = True
        try:
            self._run(loop)
        finally:
            self.switch.held_off = False
        return self.steps

    def _run(self, loop: Callable[[], object]) -> None:
        self._begin()
        try:
            loop()
        except BaseException:
            self.put_back()
            raise
        if self.steps == 0:
            self.put_back()
            raise InputError(
                "Expected the loop to call `step` after each step of the optimiser but it did not; does it go through "
                "an iterator that was used up before?"
            )
        self.check_if_new()

    def check_if_new(self) -> None:
        """Measure, unless nothing has happened since the last time."""
        if self._measured_at != self.steps:
            self.check()

    @property
    def summary(self) -> str:
        """Which weights are the best, their mAP, the best of those trained otherwise, and whether these images can tell."""
        best = self.best
        what = self._metric
        words = {trained: text.format(what) for trained, text in _TRAINED.items()}
        kept = words["start"] if best.trained == "start" else f"{best.after} {words[best.trained]}"
        numbers = [f"{what}{self._counted_by} on held-out images {self._number(best.map)}"]
        others = [trained for trained in _TRAINED if trained in self._tops and trained != best.trained]
        for trained in others:
            top = self._tops[trained][0]
            at_best = "" if trained == "start" else f", {top.after}"
            numbers.append(f"{words[trained]} {self._number(top.map)}{at_best}")
        sure = filter(None, map(self._ahead_of, others))
        return " ".join([f"Kept the weights {kept}: {'; '.join(numbers)}.", *sure])

    def _ahead_of(self, other: str) -> str:
        """How far the best weights are ahead of the best that were trained otherwise, on the same images drawn anew; empty where
        a function measured."""
        before, after = (self._tops[trained][1] for trained in (other, self.best.trained))
        if before.result is None or after.result is None:
            return ""
        a, b = (_NAMES[trained].format(self._metric.removeprefix("minus ")) for trained in (other, self.best.trained))
        sentence = compare(before.result, after.result, metric=after.metric, names=(a, b)).sentence
        return sentence[0].upper() + sentence[1:]

    @property
    def held_out_value(self) -> dict[str, float]:
        """What to log of the last measurement: "held_out_map", or another metric by its name, as it is (not minus a cost)."""
        last = self.history[-1].map
        if self.switch is None:
            return {"held_out_map": last}
        objective = self.switch.loss_fn.objective
        return {f"held_out_{objective.logged_name}": last if objective.metric.higher_is_better else -last}

    @property
    def _metric(self) -> str:
        """What is measured: the metric that the model trains for."""
        if self.switch is None or self.switch.loss_fn.objective.logged_name == "map":
            return "mAP"
        metric = self.switch.loss_fn.objective.metric
        return metric.name if metric.higher_is_better else f"minus {metric.name}"

    def _number(self, value: float) -> str:
        """mAP and other shares in per cent, as everywhere; a cost in its own unit."""
        return per_cent(value) if self._metric == "mAP" else metric_text(self._metric.removeprefix("minus "), value)

    @property
    def _counted_by(self) -> str:
        protocol = self.protocol
        if protocol is None and self.switch is not None:
            protocol = self.switch.loss_fn.objective.protocol
        shapes = "boxes" if self.switch is None else self.switch.loss_fn.objective.overlap.key
        return "" if protocol is None else f" ({protocol.name}{'' if shapes == 'boxes' else f', {shapes}'})"

    def __enter__(self) -> BestWeights:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.restore()
        else:
            self.put_back()  # the error says what happened; the weights are safe


def keep_best(
    model: nn.Module, val_data: HeldOut, *, every: int = 100, protocol: str | Protocol | None = None
) -> BestWeights:
    """Measure a model's mAP on held-out images from now on; `restore` puts back the best weights.

    The present weights are measured at once and take part, so training cannot end below them on these images.
    A copy of the best weights and buffers is kept on the CPU. Measuring leaves training as it is: modes of modules and
    random numbers are put back. A model that trains for masks or keypoints is measured by those. The text at the end says
    by `sg.compare` whether these images can tell the best weights from the others. This is for your own loop.
    Choosing among many measurements favours the held-out images a little, so report numbers of other images.

    Args:
        model: one prepared by `train_for_map`, or what holds one (DistributedDataParallel, a LightningModule, ...).
        val_data: batches as the model trains on them, (images, targets) for torchvision's detectors, a dict or pair of
            pixel_values and labels for those of transformers: a list or a DataLoader. With several processes each
            gives its own part, and the mAP is that of all parts. Or, for any other detector, a function that returns the
            mAP; it is called in eval mode, without gradients.
        every: number of calls of `step()` between measurements; `check()` measures at once.
        protocol: None: what the model trains for.

    >>> import torch
    >>> model = torch.nn.Linear(1, 1, bias=False).requires_grad_(False)
    >>> _ = model.weight.fill_(2.1)
    >>> best = keep_best(model, lambda: 1.0 - abs(float(model.weight) - 3.0), every=1)    # best at 3
    >>> for weight in (2.5, 3.25, 9.0):
    ...     _ = model.weight.fill_(weight)
    ...     best.step()
    >>> best.restore()
    'Kept the weights after 2 steps with mAP: mAP on held-out images 75.0; at the start 10.0.'
    >>> float(model.weight)
    3.25
    """
    return BestWeights(model, val_data, every, protocol)


def _is_better(score: HeldOutScore, than: HeldOutScore) -> bool:
    """Whether it is higher, or the first number after one that was none."""
    return score.map > than.map or (math.isnan(than.map) and not math.isnan(score.map))


def weights_of(model: nn.Module) -> dict[str, Any]:
    """A copy of a model's weights and buffers on the CPU."""
    return {
        name: value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else copy.deepcopy(value)
        for name, value in model.state_dict().items()
    }


def turn_on(switch: MapLossSwitch, enabled: bool, best: BestWeights | None) -> None:
    """Set the switch; where that brings mAP in, the weights before it are measured first."""
    if enabled and not (switch.enabled or switch.held_off) and best is not None:
        best.check_if_new()
    switch.enabled = enabled
