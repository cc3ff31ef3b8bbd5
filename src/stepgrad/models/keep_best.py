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
from stepgrad.metric.protocol import Protocol, get_protocol
from stepgrad.models.held_out import HeldOut, RandomNumbers, held_out_map
from stepgrad.models.switch import MapLossSwitch, find_switch
from stepgrad.number_text import metric_text, per_cent

_TRAINED = {"start": "at the start", "stock": "without {}", "map": "with {}"}
"""What was in the loss up to a measurement, in words; {} is the metric."""


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
        self.best = HeldOutScore(0, held_out_map(model, val_data, self.protocol), "start")
        self.history.append(self.best)
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
            value = held_out_map(self.model, self.val_data, self.protocol)
        except NonFiniteError:  # a diverged model is the case this is for
            value = math.nan
        trained = "map" if self._map_was_on else "stock" if self.steps else "start"
        self.history.append(HeldOutScore(self.steps, value, trained))
        self._measured_at = self.steps
        if value > self.best.map or (math.isnan(self.best.map) and not math.isnan(value)):
            self.best = self.history[-1]
            self._weights = weights_of(self.model)
        return value

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
        """Which weights are the best, their mAP, and the best of those trained otherwise."""
        best = self.best
        what = self._metric
        words = {trained: text.format(what) for trained, text in _TRAINED.items()}
        kept = words["start"] if best.trained == "start" else f"{best.after} {words[best.trained]}"
        numbers = [f"{what}{self._counted_by} on held-out images {self._number(best.map)}"]
        for trained in _TRAINED:
            scores = [score for score in self.history if score.trained == trained != best.trained]
            if scores:
                top = max(scores, key=lambda score: -math.inf if math.isnan(score.map) else score.map)
                at_best = "" if trained == "start" else f", {top.after}"
                numbers.append(f"{words[trained]} {self._number(top.map)}{at_best}")
        return f"Kept the weights {kept}: {'; '.join(numbers)}."

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
    random numbers are put back. A model that trains for masks or keypoints is measured by those. This is for your own
    loop. Choosing among many measurements favours the held-out images a little, so report numbers of other images.

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
