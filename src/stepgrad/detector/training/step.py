"""One step of training: forward, loss, backward, update; nothing that is not finite gets past it."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from stepgrad.detector.training.config import Phase, PhaseConfig, RunConfig
from stepgrad.detector.training.inputs import Example, mix
from stepgrad.errors import NonFiniteError
from stepgrad.losses.large_batch import large_batch
from stepgrad.processes import average_gradients, sum_over_processes

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from stepgrad.detector import FastRCNN

DROPOUT, WINDOWS = 2, 3
"""Streams of randomness within a step."""


@dataclass(frozen=True)
class Stepper:
    """Takes steps with a model; every process of a run has one, and its share of each minibatch."""

    fabric: Fabric
    model: FastRCNN
    run: RunConfig

    def step(self, phase: Phase, optimizer: Any, examples: Sequence[Example], number: int) -> dict[str, Any]:
        """Take step `number` of the run, in this phase, on this process's examples; returns its log line.

        Raises:
            NonFiniteError: a NaN or an infinity came up; the weights are as they were.
        """
        began = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        torch.manual_seed(mix(self.run.seed, number, self.fabric.global_rank, DROPOUT))
        try:
            losses = self._backward(phase.config, examples)
            average_gradients(self.model.parameters(), timeout=self.run.timeout)
            longest = math.inf if phase.config.max_gradient_norm is None else phase.config.max_gradient_norm
            clipped: Any = self.fabric.clip_gradients(self.model, optimizer, max_norm=longest, error_if_nonfinite=False)
            norm = float(clipped)
            skips_overflow = self.run.precision == "16-mixed"  # its scaler leaves such steps out, and continues
            if not math.isfinite(norm) and not skips_overflow:
                raise NonFiniteError(f"the gradient's norm is {norm}, with losses {_listed(losses)}")
        except NonFiniteError as error:
            optimizer.zero_grad(set_to_none=True)
            images = ", ".join(str(e.target["image_id"]) for e in examples)
            raise NonFiniteError(f"{error}; images {images}") from error
        rate = set_learning_rate(
            optimizer, phase.config, number - phase.first
        )  # last: may change the optimizer's memory
        optimizer.step()
        seconds = time.perf_counter() - began
        return {
            "loss": sum(losses.values()),
            "losses": losses,
            "lr": rate,
            "images": phase.config.images,
            "gradient_norm": norm,
            **_facts(self.model.metrics, seconds),
            "seconds": seconds,
        }

    def _backward(self, phase: PhaseConfig, examples: Sequence[Example]) -> dict[str, float]:
        """Fill the gradients, all images at once or in chunks; returns the losses of the minibatch of all processes.

        The mAP loss is one over all processes already. Cross-entropy and the loss of boxes are sums over this process's
        windows, divided by the mean number of windows per process: their mean over processes is that of the minibatch.
        """
        targets = [e.target for e in examples]
        generators = [torch.Generator().manual_seed(mix(self.run.seed, e.place, WINDOWS)) for e in examples]
        samples = self.model.draw([e.windows for e in examples], targets, generators)
        world = self.fabric.world_size
        (total,) = sum_over_processes([sum(len(s.windows) for s in samples)], self.run.timeout)
        shown: dict[str, float] = {}

        def activate(chunk: range) -> list[Tensor]:
            with self.fabric.autocast():
                return self.model.activate([examples[i].image for i in chunk], [samples[i].windows for i in chunk])

        def objective(activations: list[Tensor]) -> Tensor:
            losses = self.model.losses_of(activations, samples, targets, total / world)
            sums = sum_over_processes([float(loss.detach()) for loss in losses.values()], self.run.timeout)
            shown.update({name.removeprefix("loss_"): s / world for name, s in zip(losses, sums, strict=True)})
            if not all(math.isfinite(value) for value in shown.values()):
                raise NonFiniteError(f"the losses are {_listed(shown)}")
            return torch.stack([*losses.values()]).sum()

        size = phase.chunk_images
        if size is None or size >= len(examples):
            self.fabric.backward(objective(activate(range(len(examples)))))
        else:
            chunks = [range(i, min(i + size, len(examples))) for i in range(0, len(examples), size)]
            large_batch(activate, chunks, objective, model=self.model, backward=self.fabric.backward)
        return shown


def _facts(metrics: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """What the model found out about the minibatch; None where the objective has no such number."""
    facts = {
        name: metrics.get(name) for name in ("windows", "positives", "map", "nonzero", "positive_sum", "negative_sum")
    }
    if "metric" in metrics:  # another than mAP: by its name, as in the lines of validations
        facts["metrics"] = {metrics["metric"]: metrics["value"]}
    return {**facts, "loss_share": metrics.get("loss_seconds", 0.0) / max(seconds, 1e-9)}


def _listed(losses: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in losses.items())


BIAS_LR = 2.0
"""Biases learn twice as fast in the original, and do not decay."""


def parameter_groups(model: nn.Module, phase: PhaseConfig) -> list[dict[str, Any]]:
    """Trainable parameters: those that decay, and biases and scales of normalisation, which do not."""
    trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    weights = [p for _, p in trainable if p.ndim > 1]
    scales = [p for name, p in trainable if p.ndim <= 1 and not name.endswith("bias")]
    biases = [p for name, p in trainable if p.ndim <= 1 and name.endswith("bias")]
    groups = [(weights, 1.0, phase.weight_decay), (scales, 1.0, 0.0), (biases, BIAS_LR, 0.0)]
    return [{"params": p, "lr_factor": factor, "weight_decay": decay} for p, factor, decay in groups if p]


def make_optimizer(model: nn.Module, phase: PhaseConfig) -> torch.optim.Optimizer:
    """A fresh optimizer for the trainable parameters."""
    groups = parameter_groups(model, phase)
    if phase.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=phase.lr)
    return torch.optim.SGD(groups, lr=phase.lr, momentum=phase.momentum)


def learning_rate(phase: PhaseConfig, step: int) -> float:
    """The rate of a step of the phase, counted from 0.

    >>> phase = PhaseConfig(lr=1.0, drop_every=10, warmup=2)
    >>> [round(learning_rate(phase, step), 3) for step in (0, 1, 9, 10, 20)]
    [0.5, 1.0, 1.0, 0.1, 0.01]
    """
    drops = 0 if phase.drop_every is None else step // phase.drop_every
    rise = min(1.0, (step + 1) / phase.warmup) if phase.warmup else 1.0
    return phase.lr * phase.drop_factor**drops * rise


def set_learning_rate(optimizer: torch.optim.Optimizer, phase: PhaseConfig, step: int) -> float:
    """Set the rate of a step; returns it."""
    rate = learning_rate(phase, step)
    if phase.caffe_momentum and phase.optimizer == "sgd" and step > 0:
        _rescale_velocity(optimizer, learning_rate(phase, step - 1) / rate)
    for group in optimizer.param_groups:
        group["lr"] = rate * group["lr_factor"]
    return rate


def _rescale_velocity(optimizer: torch.optim.Optimizer, ratio: float) -> None:
    """Caffe's velocity contains the rate it was gathered at; PyTorch's does not."""
    if ratio == 1.0:
        return
    for state in optimizer.state.values():
        if state.get("momentum_buffer") is not None:
            state["momentum_buffer"].mul_(ratio)
