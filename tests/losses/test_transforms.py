"""torch.func, vmap and forward-mode derivatives: refused in plain words wherever a pseudogradient is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import stepgrad as sg
from experiments.baselines import SmoothAPLoss
from stepgrad.errors import StepgradError, UnsupportedTransformError
from stepgrad.losses.ragged import ScoredPairs, ragged_map_loss

BOXES = torch.tensor([[0.0, 0.0, 10.0, 10.0], [1.0, 0.0, 11.0, 10.0], [20.0, 0.0, 30.0, 10.0]])
TARGET = {"boxes": BOXES[:1], "labels": torch.tensor([0])}
FIRST = torch.zeros(3, dtype=torch.long)
SCORES = torch.tensor([0.5, 0.0, 2.0])

CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "MAPLoss": lambda s: sg.MAPLoss(1)([s[:, None]], [BOXES], [TARGET]),
    "MAPLoss of boxes": lambda s: sg.MAPLoss(1)([SCORES[:, None]], [BOXES + s[:, None]], [TARGET]),
    "DistributedMAPLoss": lambda s: sg.DistributedMAPLoss(1)([s[:, None]], [BOXES], [TARGET]),
    "ragged_map_loss": lambda s: ragged_map_loss(sg.MAPLoss(1), ScoredPairs(s, BOXES, FIRST, FIRST), [TARGET]),
    "baseline": lambda s: SmoothAPLoss(1)([s[:, None]], [BOXES], [TARGET]),
    "APLoss": lambda s: sg.APLoss()(s, torch.tensor([1, 0, 1])),
    "step_function": lambda s: sg.step_function(lambda x: (x > 0.5).double().mean(), candidates=0.5)(s),
    "Sign": lambda s: sg.layers.Sign()(s).sum(),
    "TopKMask": lambda s: sg.layers.TopKMask(1)(s).sum(),
    "NMSLayer": lambda s: sg.layers.NMSLayer()(s, BOXES).sum(),
    "map_pseudogradient": lambda s: sg.map_pseudogradient([s[:, None]], [BOXES], [TARGET])[0].sum(),
}


def dual(f: Callable[[Tensor], Tensor], x: Tensor) -> Any:
    with forward_ad.dual_level():
        return f(forward_ad.make_dual(x, torch.ones_like(x)))


TRANSFORMS: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Any]] = {
    "grad": lambda f, x: torch.func.grad(f)(x),
    "jacrev": lambda f, x: torch.func.jacrev(f)(x),
    "vmap": lambda f, x: torch.vmap(f)(x[None]),
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (torch.ones_like(x),)),
    "forward mode": dual,
}


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:FutureWarning")  # torch's own, on its first jvp
@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS.keys())
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_a_transform_is_refused_with_what_to_do_instead(
    call: Callable[[Tensor], Tensor], transform: Callable[[Callable[[Tensor], Tensor], Tensor], Any]
) -> None:
    with pytest.raises(UnsupportedTransformError, match=r"loss\.backward\(\) or torch\.autograd\.grad") as caught:
        transform(call, SCORES)
    assert isinstance(caught.value, StepgradError)


@pytest.mark.parametrize("name", [name for name in CALLS if name not in ("MAPLoss of boxes", "map_pseudogradient")])
def test_the_plain_call_is_not_nor_are_several_gradients_at_once(name: str) -> None:
    x = SCORES.clone().requires_grad_()
    value = CALLS[name](x)
    (one,) = torch.autograd.grad(value, x, retain_graph=True)
    outer = torch.tensor([1.0, 2.0], dtype=value.dtype)
    if name == "NMSLayer":  # its kernels are run by backward, which has only stand-ins here
        with pytest.raises(UnsupportedTransformError):
            torch.autograd.grad(value, x, outer, is_grads_batched=True)
    else:
        (both,) = torch.autograd.grad(value, x, outer, is_grads_batched=True)
        torch.testing.assert_close(both, torch.stack([one, 2 * one]))
