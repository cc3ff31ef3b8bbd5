"""An optimiser restored from a checkpoint goes on as if it had never stopped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from stepgrad.detector.training.checkpoint import (
    Checkpoint,
    load_checkpoint,
    optimizer_tensors,
    restore_optimizer,
    save_checkpoint,
)
from stepgrad.errors import DataError

Make = Callable[[nn.Module], Optimizer]


def sgd(model: nn.Module) -> Optimizer:
    return SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=0.01)


def adamw(model: nn.Module) -> Optimizer:
    return AdamW(model.parameters(), lr=0.01)


def plain(model: nn.Module) -> Optimizer:
    return SGD(model.parameters(), lr=0.01)


EACH = pytest.mark.parametrize("make", [sgd, adamw, plain])


def make_model() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2), nn.Linear(2, 2))
    with torch.no_grad():
        for i, parameter in enumerate(model.parameters()):
            parameter.copy_(torch.linspace(-1, 1, parameter.numel()).reshape(parameter.shape) * (i + 1))
    return model


def names_of(model: nn.Module) -> dict[Tensor, str]:
    return {parameter: name for name, parameter in model.named_parameters()}


def take_steps(model: nn.Sequential, optimizer: Optimizer, first: int, last: int) -> None:
    """The last layer takes no part before step 5: like a layer that has not trained yet."""
    for step in range(first, last):
        inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        (model if step >= 5 else model[:3])(inputs).square().mean().backward()
        optimizer.step()


@EACH
@pytest.mark.parametrize("stop", [0, 1, 4, 7])
def test_resumed_optimiser_takes_the_same_steps_to_the_last_bit(tmp_path: Path, make: Make, stop: int) -> None:
    unbroken = make_model()
    take_steps(unbroken, make(unbroken), 0, 10)

    first = make_model()
    optimizer = make(first)
    take_steps(first, optimizer, 0, stop)
    saved = Checkpoint(stop, first.state_dict(), optimizer_tensors(optimizer, names_of(first)))
    found = load_checkpoint(save_checkpoint(tmp_path, saved, 1))

    second = make_model()
    second.load_state_dict(found.weights)
    optimizer = make(second)
    restore_optimizer(optimizer, names_of(second), found.optimizer)
    take_steps(second, optimizer, stop, 10)
    assert all(parameter.isfinite().all() for parameter in unbroken.parameters())
    assert all(torch.equal(a, b) for a, b in zip(unbroken.parameters(), second.parameters(), strict=True))


def test_old_memory_does_not_survive_a_restore() -> None:
    model = make_model()
    used = sgd(model)
    take_steps(model, used, 0, 7)
    restore_optimizer(used, names_of(model), {})
    assert optimizer_tensors(used, names_of(model)) == {}


def test_restored_state_does_not_share_memory_with_what_was_loaded() -> None:
    model = make_model()
    optimizer = sgd(model)
    take_steps(model, optimizer, 0, 7)
    tensors = {name: tensor.clone() for name, tensor in optimizer_tensors(optimizer, names_of(model)).items()}
    restore_optimizer(optimizer, names_of(model), tensors)
    for tensor in tensors.values():
        tensor.zero_()
    assert all(tensor.any() for tensor in optimizer_tensors(optimizer, names_of(model)).values())


@pytest.mark.parametrize(
    ("make", "change", "message"),
    [
        (sgd, lambda t: t | {"9.bias/momentum_buffer": torch.ones(2)}, r"state for 9\.bias, which this one"),
        (
            sgd,
            lambda t: t | {"0.bias/momentum_buffer": torch.ones(4)},
            r"\(4,\)} for 0\.bias but this one needs .*\(3,\)",
        ),
        (adamw, lambda t: {k: v for k, v in t.items() if k != "0.bias/exp_avg"}, r"for 0\.bias but this one needs"),
        (adamw, lambda t: {k.replace("exp_avg_sq", "square"): v for k, v in t.items()}, "the run began with"),
    ],
)
def test_state_that_does_not_fit_is_refused_and_changes_nothing(
    make: Make, change: Callable[[dict[str, Tensor]], dict[str, Tensor]], message: str
) -> None:
    model = make_model()
    optimizer = make(model)
    take_steps(model, optimizer, 0, 7)
    before = {name: tensor.clone() for name, tensor in optimizer_tensors(optimizer, names_of(model)).items()}
    with pytest.raises(DataError, match=message):
        restore_optimizer(optimizer, names_of(model), change(before))
    after = optimizer_tensors(optimizer, names_of(model))
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_marks_of_older_files_for_parameters_without_a_step_are_understood() -> None:
    model = make_model()
    optimizer = sgd(model)
    restore_optimizer(optimizer, names_of(model), {"0.bias/nothing": torch.empty(0)})
    assert optimizer_tensors(optimizer, names_of(model)) == {}


@pytest.mark.parametrize(("one", "other"), [(sgd, adamw), (adamw, sgd), (sgd, plain)])
def test_state_of_another_optimiser_is_refused(one: Make, other: Make) -> None:
    model = make_model()
    optimizer = one(model)
    take_steps(model, optimizer, 0, 7)
    with pytest.raises(DataError, match="optimiser that the run began with"):
        restore_optimizer(other(model), names_of(model), optimizer_tensors(optimizer, names_of(model)))
