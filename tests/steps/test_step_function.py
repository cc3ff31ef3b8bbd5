"""Step functions and layers on autograd's tape."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stepgrad as sg
from stepgrad.errors import ConfigError, InputError
from stepgrad.steps.nearest import SearchIncompleteWarning

BOXES = torch.tensor([[0.0, 0.0, 10.0, 10.0], [4.0, 0.0, 14.0, 10.0], [8.0, 0.0, 18.0, 10.0]])


def rounded_sums(x: Tensor) -> Tensor:
    return torch.stack([x.round().sum(), (2 * x).round().sum()])


def test_value_is_that_of_f_and_gradient_is_the_pullback_of_the_jacobian() -> None:
    x = torch.tensor([0.3, 1.3], dtype=torch.float64, requires_grad=True)
    outer = torch.tensor([2.0, -3.0], dtype=torch.float64)
    value = sg.step_function(rounded_sums)(x)
    assert torch.equal(value, rounded_sums(x.detach()))
    value.backward(outer)
    assert torch.equal(x.grad, outer @ sg.pseudogradient(rounded_sums, x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_value_and_gradient_have_the_dtype_of_x(dtype: torch.dtype) -> None:
    x = torch.tensor([0.25], dtype=dtype, requires_grad=True)
    for f in (
        sg.step_function(lambda v: v.round().sum()),
        sg.layers.Round(),
        sg.layers.Ranks(),
        sg.layers.ArgmaxOneHot(),
    ):
        value = f(x)
        value.sum().backward()
        assert value.dtype == x.grad.dtype == dtype


def test_steps_are_not_searched_for_without_need() -> None:
    calls: list[int] = []

    def f(v: Tensor) -> Tensor:
        calls.append(1)
        return v.round().sum()

    g = sg.step_function(f)
    g(torch.zeros(2))
    with torch.no_grad():
        g(torch.zeros(2, requires_grad=True))
    assert len(calls) == 2


def test_candidates_may_depend_on_x() -> None:
    def concordant(s: Tensor) -> Tensor:
        return (s[0] > s[1]).double()

    g = sg.step_function(concordant, candidates=lambda s: [s[1:], s[:1]])
    x = torch.tensor([1.0, 3.0], requires_grad=True)
    g(x).backward()
    assert x.grad.tolist() == [0.25, -0.25]


def test_a_search_without_enough_budget_warns() -> None:
    x = torch.zeros(1, requires_grad=True)
    with pytest.warns(SearchIncompleteWarning):
        sg.step_function(lambda v: v.round().sum(), budget=3)(x)


DIFFERENTIABLE = {
    "step_function": sg.step_function(lambda v: v.round().sum()),
    "Round": sg.layers.Round(),
    "Ranks": sg.layers.Ranks(),
    "NMSLayer": lambda x: sg.layers.NMSLayer()(x, BOXES),
}


@pytest.mark.parametrize("f", DIFFERENTIABLE.values(), ids=DIFFERENTIABLE.keys())
def test_a_second_derivative_is_refused_but_other_paths_may_have_one(f: Any) -> None:
    x = torch.tensor([0.25, 1.25, 2.75], requires_grad=True)
    (first,) = torch.autograd.grad((f(x) * x).sum(), x, create_graph=True)
    with pytest.raises(InputError, match="differentiated again"):
        first.sum().backward()
    (first,) = torch.autograd.grad((f(x.detach()) * x**2).sum(), x, create_graph=True)
    assert torch.autograd.grad(first.sum(), x)[0].isfinite().all()


@pytest.mark.parametrize("options", [{"estimator": "best"}, {"full": True}, {"buget": 3}], ids=str)
def test_unknown_options_are_refused_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="Expected"):
        sg.step_function(rounded_sums, **options)


@pytest.mark.parametrize("x", [torch.tensor([1]), [1.0]], ids=["long", "list"])
def test_only_floating_point_tensors_are_taken(x: Any) -> None:
    with pytest.raises(InputError, match="floating-point tensor"):
        sg.step_function(rounded_sums)(x)


def test_a_gradient_too_large_for_its_dtype_is_its_largest_number() -> None:
    x = torch.tensor([1.0, 1.0 + 2.0**-10], dtype=torch.float16, requires_grad=True)
    (1e4 * sg.layers.ArgmaxOneHot()(x))[0].backward()
    assert x.grad.isfinite().all()
    assert x.grad[0] == torch.finfo(torch.float16).max


class Parity(sg.layers.StepLayer):
    """Whether an even number of the row is above one half: steps at one half, each way."""

    def values(self, rows: Tensor) -> Tensor:
        return (rows > 0.5).sum(dim=1, keepdim=True).remainder(2).eq(0).to(rows.dtype)

    def candidates(self, row: Tensor) -> Any:
        return 0.5


@pytest.mark.parametrize("estimator", ["mee", "sde", "radius"])
def test_a_layer_of_the_users_own_needs_only_values_and_candidates(estimator: str) -> None:
    layer = Parity(estimator, radius=2.0)
    x = torch.tensor([[0.0, 1.0, 0.25], [2.0, 0.0, 3.0]], dtype=torch.float64, requires_grad=True)
    layer(x).sum().backward()
    for row, gradient in zip(x.detach(), x.grad, strict=True):
        expected = sg.pseudogradient(lambda r: layer.values(r[None])[0, 0], row, estimator, radius=2.0, candidates=0.5)
        assert torch.equal(gradient, expected)
    assert (x.grad != 0).sum() >= 5


def test_a_layer_without_candidates_searches() -> None:
    class Searching(Parity):
        def candidates(self, row: Tensor) -> Any:
            return None

    x = torch.tensor([[0.0, 1.0, 0.25]], dtype=torch.float64, requires_grad=True)
    found = torch.autograd.grad(Searching()(x).sum(), x)[0]
    torch.testing.assert_close(found, torch.autograd.grad(Parity()(x).sum(), x)[0], rtol=1e-6, atol=0)


class Half(sg.layers.ElementwiseLayer):
    """Values without steps: not enough for a gradient."""

    def values(self, x: Tensor) -> Tensor:
        return x.round()


def test_a_layer_without_values_says_what_is_missing() -> None:
    with pytest.raises(NotImplementedError, match="StepLayer needs a method values"):
        sg.layers.StepLayer()(torch.zeros(2))
    out = Half()(torch.zeros(2, requires_grad=True)).sum()
    with pytest.raises(NotImplementedError, match="Half needs a method steps"):
        out.backward()


def test_layers_stand_in_a_model_and_its_state_comes_back() -> None:
    model = nn.Sequential(nn.Linear(3, 4), sg.layers.Staircase([0.0], [0.0, 1.0]), nn.Linear(4, 1))
    again = nn.Sequential(nn.Linear(3, 4), sg.layers.Staircase([1.0], [0.0, 2.0]), nn.Linear(4, 1))
    again.load_state_dict(model.state_dict())
    x = torch.ones(5, 3)
    assert torch.equal(model(x), again(x))
    model(x).sum().backward()
    assert model[0].weight.grad.abs().sum() > 0
