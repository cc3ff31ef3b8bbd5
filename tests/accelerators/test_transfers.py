"""What a training step copies between a device and the CPU: scores, boxes and objects down once, the gradient up once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

import stepgrad as sg
from stepgrad.check_device.transfers import CountTransfers
from tests.accelerators.test_losses import CPU, LOSSES, K, Place, assert_same, numbers, on, scene

CALLS: dict[str, Any] = {
    "call": lambda loss_fn, *given: loss_fn(*given),
    "start": lambda loss_fn, *given: loss_fn.start(*given).finish(),
}


def step(device: Place, call: str, targets_there: bool, dtype: torch.dtype = torch.float32) -> Counter[str]:
    """What one step copies: forward and backward, with the network on the device."""
    scores, boxes, targets = scene(31).tensors(dtype, requires_grad=True)
    scores, boxes = on(device, scores), on(device, boxes)
    targets = on(device, targets) if targets_there else targets
    loss_fn = sg.MAPLoss(K)
    with CountTransfers() as count:
        loss = CALLS[call](loss_fn, scores, boxes, targets)
        loss.backward()
    assert {(s.grad.device.type, s.grad.dtype) for s in scores} == {(device.type, dtype)}
    return Counter(map(str, count.seen))


@pytest.mark.parametrize("call", CALLS)
def test_a_step_copies_scores_and_boxes_down_once_and_the_gradient_up_once(device: Place, call: str) -> None:
    scores, boxes, _ = scene(31).tensors(torch.float32)
    windows = sum(map(len, scores))
    box = f"down ({windows}, 4) {str(boxes[0].dtype).removeprefix('torch.')}"
    expected = {f"down ({windows}, {K}) float32": 1, box: 1, f"up ({windows}, {K}) float32": 1}
    assert step(device, call, targets_there=False) == expected


@pytest.mark.parametrize("call", CALLS)
def test_of_objects_on_the_device_each_field_comes_down_once_for_all_images(device: Place, call: str) -> None:
    _, _, targets = scene(31).tensors(torch.float32)
    extra = step(device, call, targets_there=True) - step(device, call, targets_there=False)
    assert sum(extra.values()) == len(targets[0])
    assert all(line.startswith("down") for line in extra)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_goes_up_as_it_came_down(device: Place, dtype: torch.dtype) -> None:
    found = step(device, "call", targets_there=False, dtype=dtype)
    assert next(line for line in found if line.startswith("up")).endswith(str(dtype).removeprefix("torch."))
    assert sum(found.values()) == 3


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "several processes"])
def test_a_started_loss_is_the_cpus(device: Place, name: str) -> None:
    given = scene(32).tensors(torch.float32, requires_grad=True)
    loss_fn, expected = LOSSES[name](), numbers(LOSSES[name](), CPU, *given)
    scores, boxes, targets = (on(device, part) for part in given)
    started = loss_fn.start(scores, boxes, targets)
    ahead = sum((s.detach().sum() for s in scores), torch.zeros((), dtype=scores[0].dtype, device=scores[0].device))
    loss = started.finish()
    gradients = torch.autograd.grad(loss, scores)
    assert ahead.device.type == device.type
    assert (loss.device.type, loss.dtype) == (device.type, torch.float32)
    assert_same([loss.detach().cpu(), *(g.cpu() for g in gradients)], expected[: 1 + len(scores)])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast_the_gradient_has_the_dtype_of_the_scores(device: Place, dtype: torch.dtype) -> None:
    if device.type == "lazy":
        pytest.skip("autocast knows no such device")
    _, boxes, targets = scene(33).tensors(torch.float32)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        features = [torch.randn(len(b), 8) for b in boxes]
        weight = torch.randn(8, K)
    there = on(device, weight).requires_grad_()
    try:
        with torch.autocast(device.type, dtype=dtype):
            scores = [x @ there for x in on(device, features)]
            loss = sg.MAPLoss(K)(scores, on(device, boxes), targets)
    except RuntimeError as error:
        pytest.skip(f"no autocast to {dtype} there: {error}")
    if scores[0].dtype != dtype:
        pytest.skip(f"no autocast to {dtype} there")
    gradients = torch.autograd.grad(loss, scores, retain_graph=True)
    assert {g.dtype for g in gradients} == {dtype}
    (of_weight,) = torch.autograd.grad(loss, there)
    assert (of_weight.dtype, of_weight.device.type) == (torch.float32, device.type)
    expected = numbers(sg.MAPLoss(K), CPU, [s.detach().cpu().requires_grad_() for s in scores], boxes, targets)
    assert_same([loss.detach().cpu(), *(g.cpu() for g in gradients)], expected[: 1 + len(scores)])
