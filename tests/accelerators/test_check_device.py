"""`python -m stepgrad.check_device`: what a device must do is looked at, and what it does wrong is seen."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import stepgrad as sg
from stepgrad.check_device import checks
from stepgrad.check_device.__main__ import main
from stepgrad.check_device.cost import StepCost
from stepgrad.losses.objective import Objective
from tests.accelerators.test_losses import K, Place, scene


def test_a_device_that_works_passes_every_check_and_copies_three_times(device: Place) -> None:
    found = list(checks.check_all(device))
    assert [str(check) for check in found if check.problem] == []
    assert len({check.name for check in found}) == len(found)
    directions = [line.split()[0] for line in checks.step_transfers(device)]
    assert directions == ["down", "down", "up"]


def test_a_gradient_that_is_wrong_on_the_device_is_told(monkeypatch: pytest.MonkeyPatch, device: Place) -> None:
    right = Objective.as_loss

    def wrong(self: Any, measured: Any, scores: Any, values: Any) -> Any:
        factor = 1.0 if scores.device.type == "cpu" else 2.0
        return factor * right(self, measured, scores, values)

    monkeypatch.setattr(Objective, "as_loss", wrong)
    problems = [check for check in checks.check_all(device) if check.problem]
    assert len(problems) == 2 * len(checks.LOSSES) * len(checks.DTYPES)
    assert all(str(check).startswith("WRONG") and "differs by up to" in check.problem for check in problems)


def test_the_command_ends_with_0_where_all_is_well_and_2_without_the_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cpu", "--no-cost"]) == 0
    assert capsys.readouterr().out.endswith("one step copies: nothing\nall equal to the CPU\n")
    assert main(["nonsense"]) == 2
    assert "expected one that is there, such as cpu, cuda" in capsys.readouterr().err


def test_costs_with_more_threads_are_computed_from_one_and_two() -> None:
    """Of 10 seconds 8 can be shared: 6 with two threads, 3 with eight."""
    cost = StepCost({1: 10.0, 2: 6.0}, 0.0)
    assert cost.computed(8) == pytest.approx(3.0)
    assert cost.computed(2) == pytest.approx(6.0)
    assert StepCost({1: 10.0, 2: 11.0}, 0.0).computed(8) == 10.0
    assert StepCost({1: 10.0}, 0.0).computed(8) is None


@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor:UserWarning"
)  # torch asks for it where a graph ends
def test_a_loss_inside_a_compiled_function_breaks_its_graph_once() -> None:
    _, boxes, targets = scene(41).tensors(torch.float32)
    weight, features = torch.linspace(-1, 1, 4 * K).reshape(4, K), [torch.rand(len(b), 4) for b in boxes]
    for how in ("called", "started"):
        loss_fn, graphs = sg.MAPLoss(K), []

        def step(weight: Any, loss_fn: Any = loss_fn, how: str = how) -> Any:
            scores = [x @ weight for x in features]
            given = scores, boxes, targets
            loss = loss_fn(*given) if how == "called" else loss_fn.start(*given).finish()
            return 2.0 * loss + weight.square().sum()

        def count(graph: Any, inputs: Any, graphs: list[Any] = graphs) -> Any:
            graphs.append(graph)
            return graph

        leaf, plain = weight.clone().requires_grad_(), weight.clone().requires_grad_()
        torch.compiler.reset()
        (compiled,) = torch.autograd.grad(torch.compile(step, backend=count)(leaf), leaf)
        assert torch.equal(compiled, torch.autograd.grad(step(plain), plain)[0])
        assert len(graphs) == 2, how  # the network before it, and what follows
