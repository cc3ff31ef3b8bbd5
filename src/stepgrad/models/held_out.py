"""mAP on held-out images in the middle of training, which leaves no trace in the training."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from stepgrad.errors import InputError
from stepgrad.evaluation import Evaluator
from stepgrad.evaluation.result import EvaluationResult
from stepgrad.losses.objective import Objective
from stepgrad.metric.list_metric import ListMetric
from stepgrad.metric.metrics import AVERAGE_PRECISION
from stepgrad.metric.protocol import Protocol
from stepgrad.models.switch import find_prepared, find_switch
from stepgrad.processes import gather_objects

HeldOut = Iterable[Any] | Callable[[], float]
"""Batches as the model trains on them; or, for any other model, a function that measures it and returns the mAP."""


@dataclass(frozen=True)
class HeldOutResult:
    """mAP of a model's detections on held-out images; or the metric that the model trains for, minus it where less is better."""

    value: float
    result: EvaluationResult | None = None
    """What was judged, for a comparison on the same images; None where it is not known or not a plain mean over classes."""
    metric: ListMetric = AVERAGE_PRECISION


def held_out_map(model: nn.Module, val_data: HeldOut, protocol: str | Protocol | None = None) -> float:
    """The number alone of `measure`."""
    return measure(model, val_data, protocol).value


def measure(model: nn.Module, val_data: HeldOut, protocol: str | Protocol | None = None) -> HeldOutResult:
    """A model's mAP, or its own metric, on held-out images, the same on all processes.

    Args:
        model: one prepared by `train_for_map`, or what holds one; any, where `val_data` is a function.
        val_data: batches as the model trains on them, each process its own part; or a function.
        protocol: None: the one that the model trains for.
    """
    with _aside(model):
        if callable(val_data):
            first: float = gather_objects(float(val_data()))[0]
            return HeldOutResult(first)
        detector, switch = find_prepared(model), find_switch(model)
        device = next(detector.parameters()).device
        mine = [switch.detections(detector, batch, device) for batch in val_data]
    objective = switch.loss_fn.objective
    evaluator = Evaluator(
        objective.num_classes, protocol or objective.protocol, metrics=[objective.metric], task=objective.overlap
    )
    for preds, targets in (pair for everyones in gather_objects(mine) for pair in everyones):
        evaluator.update(preds, targets)
    result = evaluator.compute()
    if not any(row.objects for row in result.classes):
        raise InputError(
            f"Expected val_data with objects to find but there are none in its {result.images} images. An iterator or "
            "generator can be read only once: give a list of batches or a DataLoader."
        )
    value = value_of(result, objective)
    value = value if objective.metric.higher_is_better else -value
    plain_mean = objective.classes == "mean" and objective.class_weights is None
    return HeldOutResult(value, result, objective.metric) if plain_mean else HeldOutResult(value)


def value_of(result: EvaluationResult, objective: Objective) -> float:
    """What the objective measures of judged detections."""
    metric = objective.metric
    if metric == AVERAGE_PRECISION and objective.classes == "mean" and objective.class_weights is None:
        return result.map
    by_size = metric.area is not None
    found = (
        result.metrics[metric.name]
        if by_size
        else result.metric(metric, classes=objective.classes, class_weights=objective.class_weights)
    )
    return found.value


class RandomNumbers:
    """Where Python's, NumPy's and torch's global random numbers stand."""

    def __init__(self) -> None:
        self.python = random.getstate()
        self.numpy = np.random.get_state()  # noqa: NPY002  # whatever users' datasets draw from
        self.torch = torch.get_rng_state()
        self.cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []

    def put_back(self) -> None:
        """Draw from here on what was drawn after this was made."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)  # noqa: NPY002
        torch.set_rng_state(self.torch)
        if self.cuda:
            torch.cuda.set_rng_state_all(self.cuda)


@contextmanager
def as_used(model: nn.Module) -> Iterator[None]:
    """Eval mode without gradients; then every module is in the mode it was in."""
    training = {module: module.training for module in model.modules()}  # some may be frozen in eval mode
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, was in training.items():
            module.training = was


@contextmanager
def _aside(model: nn.Module) -> Iterator[None]:
    """As used; then the random numbers are what they were, too."""
    randomness = RandomNumbers()  # a DataLoader draws one for its workers even where it does not shuffle
    try:
        with as_used(model):
            yield
    finally:
        randomness.put_back()
