"""One step of training: forward, loss, backward, update; nothing that is not finite gets past it."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from stepgrad.errors import NonFiniteError
from stepgrad.train.config import PhaseConfig
from stepgrad.train.inputs import Example, mix

if TYPE_CHECKING:
    from lightning_fabric import Fabric

DROPOUT, WINDOWS = 2, 3
"""Streams of randomness within a step."""


def training_step(
    fabric: Fabric,
    model: Any,
    optimizer: Any,
    phase: PhaseConfig,
    examples: Sequence[Example],
    key: tuple[int, ...],
    skips_overflow: bool = False,
) -> dict[str, Any]:
    """Take one step on `examples`; returns what the log holds of it.

    Args:
        model: the detector, as Fabric wrapped it.
        key: seed, step and rank: all that the step's randomness depends on.
        skips_overflow: half precision's scaler leaves out steps whose gradient overflows, and goes on.

    Raises:
        NonFiniteError: a NaN or an infinity came up; the weights are as they were.
    """
    began = time.perf_counter()
    torch.manual_seed(mix(*key, DROPOUT))
    generator = torch.Generator().manual_seed(mix(*key, WINDOWS))
    optimizer.zero_grad(set_to_none=True)
    losses = _forward(model, examples, generator)
    total = torch.stack([*losses.values()]).sum()
    shown = {name.removeprefix("loss_"): float(value.detach()) for name, value in losses.items()}
    if not all(math.isfinite(value) for value in shown.values()):
        raise NonFiniteError(f"the losses are {_listed(shown)}{_of_images(examples)}")
    fabric.backward(total)
    norm = _gradient_norm(fabric, model, optimizer, phase)
    if not math.isfinite(norm) and not skips_overflow:
        optimizer.zero_grad(set_to_none=True)
        raise NonFiniteError(f"the gradient's norm is {norm}, with losses {_listed(shown)}{_of_images(examples)}")
    optimizer.step()
    seconds = time.perf_counter() - began
    return {
        "loss": sum(shown.values()),
        "losses": shown,
        "lr": optimizer.param_groups[0]["lr"],
        "images": len(examples),
        "gradient_norm": norm,
        **_facts(model.metrics, seconds),
        "seconds": seconds,
    }


def _forward(model: Any, examples: Sequence[Example], generator: torch.Generator) -> dict[str, Tensor]:
    try:
        losses: dict[str, Tensor] = model(
            [e.image for e in examples],
            [e.windows for e in examples],
            [e.target for e in examples],
            generator=generator,
        )
    except NonFiniteError as error:
        raise NonFiniteError(f"{error}{_of_images(examples)}") from error
    return losses


def _gradient_norm(fabric: Fabric, model: Any, optimizer: Any, phase: PhaseConfig) -> float:
    """The norm of the gradient of all weights, which is scaled down where it is longer than allowed."""
    longest = math.inf if phase.max_gradient_norm is None else phase.max_gradient_norm
    return float(fabric.clip_gradients(model, optimizer, max_norm=longest, error_if_nonfinite=False))


def _facts(metrics: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """What the model found out about the minibatch; None where the objective has no such number."""
    facts = {
        name: metrics.get(name) for name in ("windows", "positives", "map", "nonzero", "positive_sum", "negative_sum")
    }
    return {**facts, "loss_share": metrics.get("loss_seconds", 0.0) / max(seconds, 1e-9)}


def _listed(losses: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in losses.items())


def _of_images(examples: Sequence[Example]) -> str:
    return f"; images {', '.join(str(e.target['image_id']) for e in examples)}"
