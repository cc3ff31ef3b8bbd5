"""What an optimiser remembers (momentum and the like) as named tensors, and back, exactly.

Learning rates and other settings are not part of it: they follow from the config and the step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from stepgrad.errors import DataError, InputError

_NOTHING = "nothing"  # marks a parameter that has not had a step yet, to tell it from one that is missing


def optimizer_tensors(optimizer: Optimizer, names: Mapping[Tensor, str]) -> dict[str, Tensor]:
    """The state of each parameter as `name/key`; `names` maps each parameter of the optimiser to its name.

    >>> weight = torch.nn.Parameter(torch.ones(2))
    >>> optimizer = SGD([weight], lr=0.1, momentum=0.9)
    >>> weight.sum().backward(); optimizer.step()
    >>> optimizer_tensors(optimizer, {weight: "weight"})
    {'weight/momentum_buffer': tensor([1., 1.])}
    """
    tensors: dict[str, Tensor] = {}
    for parameter, _ in _parameters(optimizer):
        name = _name(parameter, names)
        state = {key: value for key, value in optimizer.state.get(parameter, {}).items() if value is not None}
        for key, value in (state or {_NOTHING: torch.empty(0)}).items():
            if not isinstance(value, Tensor):
                raise InputError(f"Expected {key} of {name} to be a tensor but got {type(value).__name__}.")
            tensors[f"{name}/{key}"] = value.detach()
    return tensors


def restore_optimizer(optimizer: Optimizer, names: Mapping[Tensor, str], tensors: Mapping[str, Tensor]) -> None:
    """Give each parameter the state saved under its name; DataError, and no change, if anything is missing or over."""
    by_name: dict[str, dict[str, Tensor]] = {}
    for path, tensor in tensors.items():
        name, _, key = path.rpartition("/")
        by_name.setdefault(name, {})[key] = tensor
    restored = {}
    for parameter, group in _parameters(optimizer):
        name = _name(parameter, names)
        if name not in by_name:
            raise DataError(f"the saved optimiser has no state for {name}; was it saved by a run with another model?")
        state = by_name.pop(name)
        if _NOTHING not in state:
            _check(name, state, parameter, _slots(optimizer, group))
            restored[parameter] = {key: _place(key, value, parameter, group) for key, value in state.items()}
    if by_name:
        raise DataError(f"the saved optimiser has state for {sorted(by_name)}, which this one does not train")
    optimizer.state.clear()
    optimizer.state.update(restored)


def _parameters(optimizer: Optimizer) -> Iterator[tuple[Tensor, dict[str, Any]]]:
    return ((parameter, group) for group in optimizer.param_groups for parameter in group["params"])


def _name(parameter: Tensor, names: Mapping[Tensor, str]) -> str:
    if parameter not in names:
        raise InputError(f"Expected names of all parameters, but one of shape {tuple(parameter.shape)} has none.")
    return names[parameter]


def _slots(optimizer: Optimizer, group: Mapping[str, Any]) -> set[str] | None:
    """What the optimiser remembers of a parameter; None if it is not one of those known here."""
    if isinstance(optimizer, SGD):
        return {"momentum_buffer"} if group["momentum"] else set()
    if isinstance(optimizer, (Adam, AdamW)):
        return {"step", "exp_avg", "exp_avg_sq"} | ({"max_exp_avg_sq"} if group["amsgrad"] else set())
    return None


def _check(name: str, state: Mapping[str, Tensor], parameter: Tensor, slots: set[str] | None) -> None:
    if slots is not None and set(state) != slots:
        raise DataError(
            f"the saved optimiser has {sorted(state)} for {name} but this one needs {sorted(slots)}; "
            "use the optimiser the run began with"
        )
    for key, value in state.items():
        if key != "step" and value.shape != parameter.shape:
            raise DataError(
                f"the saved {key} of {name} has shape {tuple(value.shape)} but {name} has {tuple(parameter.shape)}"
            )


def _place(key: str, value: Tensor, parameter: Tensor, group: Mapping[str, Any]) -> Tensor:
    """A copy where the optimiser wants it: its counter of steps stays on the CPU unless it runs on the device."""
    stays = key == "step" and not (group.get("capturable") or group.get("fused"))
    return value.detach().clone() if stays else value.detach().to(parameter.device, copy=True)
