"""Functions, points and options that cannot work: a clear error that says where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import stepgrad as sg
from stepgrad.errors import ConfigError, InputError, NonFiniteError
from stepgrad.steps.estimators import Method

NAN = float("nan")

SMOOTH: dict[str, Callable[[np.ndarray], Any]] = {
    "linear": lambda v: v.sum(),
    "quadratic": lambda v: (v**2).sum(),
    "tanh": lambda v: np.tanh(v).sum(),
    "relu": lambda v: np.maximum(v, 0.0).sum(),
    "hardly sloping": lambda v: 1e-5 * v.sum(),
    "stairs on a slope": lambda v: (np.round(v) + 0.01 * v).sum(),
    "one of two outputs": lambda v: np.array([np.round(v).sum(), v.sum()]),
}


@pytest.mark.parametrize("f", SMOOTH.values(), ids=SMOOTH.keys())
@pytest.mark.parametrize("x", [-1.3, 0.2, 3.0, 17.0])
def test_a_function_that_is_not_piecewise_constant_is_refused(f: Callable[..., Any], x: float) -> None:
    with pytest.raises(InputError, match=r"piecewise constant, but in coordinate \d it keeps changing near"):
        sg.pseudogradient(f, np.array([x, x]))


def test_a_function_that_changes_between_candidates_is_refused() -> None:
    with pytest.raises(InputError, match=r"coordinate 0 moved from 0 to .* past no candidate"):
        sg.pseudogradient(lambda v: v.sum(), np.zeros(1), candidates=[-1.0, 1.0])
    with pytest.raises(InputError, match="past no candidate"):
        sg.pseudogradient(lambda v: np.round(v).sum(), np.zeros(1), candidates=[])


def test_nan_at_x_is_refused() -> None:
    with pytest.raises(NonFiniteError, match="got nan at x itself"):
        sg.pseudogradient(lambda v: NAN, np.zeros(2))


@pytest.mark.parametrize("bad", [NAN, np.inf, -np.inf])
@pytest.mark.parametrize("vectorized", [False, True])
def test_a_value_that_is_not_finite_is_refused_with_coordinate_and_place(bad: float, vectorized: bool) -> None:
    def f(v: np.ndarray) -> Any:
        return np.where(v[..., 1] > 5.0, bad, 0.0)

    with pytest.raises(NonFiniteError, match=rf"got {bad} with coordinate 1 set to [5-9]\.\d+ \(it is 0.5 in x\)"):
        sg.find_steps(f, np.array([0.0, 0.5]), vectorized=vectorized)


def test_the_coordinate_of_a_matrix_is_named_by_row_and_column() -> None:
    with pytest.raises(NonFiniteError, match=r"coordinate \(1, 0\) set to"):
        sg.find_steps(lambda v: NAN if v[1, 0] > 3 else 0.0, np.zeros((2, 2)))


BAD_FUNCTIONS: dict[str, tuple[Any, bool, str]] = {
    "no function": (3.0, False, "Expected f to be a function but got float"),
    "text": (lambda v: "high", False, "real numbers"),
    "nothing": (lambda v: None, False, "real numbers"),
    "complex numbers": (lambda v: 1j, False, "real numbers"),
    "one number for many points": (lambda v: 1.0, True, "1 rows for 1 points"),
    "a function of one point": (lambda v: np.round(v).sum(), True, "needs vectorized=False"),
    "shapes that change": (
        lambda v: np.zeros(1 + int(v[0] > 2)),
        False,
        r"return shape \(1,\) everywhere but got \(2,\)",
    ),
}


@pytest.mark.parametrize(("f", "vectorized", "message"), BAD_FUNCTIONS.values(), ids=BAD_FUNCTIONS.keys())
def test_functions_that_return_something_else_are_refused(f: Any, vectorized: bool, message: str) -> None:
    with pytest.raises(InputError, match=message):
        sg.find_steps(f, np.zeros(3), vectorized=vectorized)


@pytest.mark.parametrize("x", [np.array([0.0, NAN]), torch.tensor([0.0, float("inf")])], ids=["nan", "inf"])
def test_points_that_are_not_finite_are_refused(x: Any) -> None:
    with pytest.raises(NonFiniteError, match=r"Expected x to be finite but got (nan|inf) at index \(1,\)"):
        sg.pseudogradient(lambda v: 0.0, x)


@pytest.mark.parametrize("x", [torch.tensor([1, 2]), np.array(["a"]), np.array([1j])], ids=["long", "text", "complex"])
def test_points_of_other_kinds_are_refused(x: Any) -> None:
    with pytest.raises(InputError, match="Expected x"):
        sg.pseudogradient(lambda v: 0.0, x)


BAD_OPTIONS: dict[str, dict[str, Any]] = {
    "estimator": {"estimator": "me"},
    "radius": {"estimator": "radius", "radius": 0.0},
    "radius of 400 digits": {"estimator": "radius", "radius": 10**400},
    "min_step": {"min_step": -1.0},
    "search_range": {"search_range": 0.0},
    "tolerance": {"tolerance": 0.0},
    "value_tolerance": {"value_tolerance": -1e-9},
    "growth": {"growth": 1.0},
    "budget": {"budget": 0},
    "both": {"candidates": [0.0], "oracle": lambda v: v},
    "unknown": {"tolerence": 1e-3},
    "unknown with radius": {"estimator": "radius", "tolerence": 1e-3},
    "budget too small for a radius": {"estimator": "radius", "budget": 4},
}


@pytest.mark.parametrize("options", BAD_OPTIONS.values(), ids=BAD_OPTIONS.keys())
def test_impossible_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="Expected"):
        sg.pseudogradient(lambda v: 0.0, np.zeros(2), **options)


@pytest.mark.parametrize("kind", [torch.tensor, np.float32, np.array], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("option", ["radius", "min_step"])
def test_options_of_any_type_of_number_are_numbers(option: str, kind: Any) -> None:
    estimator = "radius" if option == "radius" else "sde"
    found, expected = (
        sg.pseudogradient(np.round, np.array([0.25]), estimator, candidates=[-0.5, 0.5], **{option: given})
        for given in (kind(1.0), 1.0)
    )
    assert type(found) is np.ndarray
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("candidates", "message"), [([[0.0]] * 3, "a list of 2 arrays but got 3"), ([0.0, NAN], "coordinate 0 has a nan")]
)
def test_impossible_candidates_are_refused(candidates: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        sg.find_steps(lambda v: 0.0, np.zeros(2), candidates=candidates)


def test_an_oracle_with_other_shapes_or_steps_on_the_wrong_side_is_refused() -> None:
    x, none = np.array([1.0, 2.0]), np.zeros(2)
    with pytest.raises(InputError, match=r"of shape \(2,\)"):
        sg.find_steps(lambda v: 0.0, x, oracle=lambda v: (v, v, v))
    with pytest.raises(InputError, match="the one below 2 in coordinate 1 is at 3"):
        sg.find_steps(lambda v: 0.0, x, oracle=lambda v: (v, none, np.array([1.0, 3.0]), none))


LAYERS: dict[str, Callable[[], Any]] = {
    "estimator": lambda: sg.layers.Sign(estimator="ste"),
    "radius": lambda: sg.layers.Round(radius=-1.0),
    "min_step": lambda: sg.layers.Ranks(min_step=NAN),
    "step": lambda: sg.layers.UniformQuantizer(0.0),
    "low above high": lambda: sg.layers.UniformQuantizer(1.0, low=2.0, high=1.0),
    "k": lambda: sg.layers.TopKMask(0),
    "fraction of k": lambda: sg.layers.TopKMask(1.5),
    "threshold": lambda: sg.layers.NMSLayer(1.5),
    "no threshold": lambda: sg.layers.NMSLayer(None),
    "levels": lambda: sg.layers.Staircase([0.0], [1.0]),
    "locations": lambda: sg.layers.Staircase([1.0, 0.0], [1.0, 2.0, 3.0]),
    "nan location": lambda: sg.layers.Threshold(NAN),
}


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS.keys())
def test_impossible_layers_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(ConfigError, match="Expected"):
        make()


@pytest.mark.parametrize(
    "layer",
    [sg.layers.Sign(), sg.layers.Round(), sg.layers.ArgmaxOneHot(), sg.layers.TopKMask(2), sg.layers.Ranks()],
    ids=repr,
)
def test_layers_refuse_what_is_not_a_finite_float(layer: Any) -> None:
    with pytest.raises(NonFiniteError, match=r"got nan at index \(1, 0\)"):
        layer(torch.tensor([[0.0], [NAN]]))
    with pytest.raises(InputError, match="floating-point"):
        layer(torch.tensor([1, 2]))
    with pytest.raises(InputError, match="floating-point"):
        layer([1.0, 2.0])


def test_row_layers_need_rows() -> None:
    with pytest.raises(InputError, match=r"\(\.\.\., n\) but got torch.float32 of shape \(\)"):
        sg.layers.Ranks()(torch.tensor(1.0))


def test_nms_layer_refuses_boxes_that_do_not_fit() -> None:
    with pytest.raises(InputError, match=r"boxes \(N, 4\)"):
        sg.layers.NMSLayer()(torch.zeros(2), torch.zeros(3, 4))
    with pytest.raises(InputError, match=r"boxes\[1\]"):
        sg.layers.NMSLayer()(torch.zeros(2), torch.tensor([[0.0, 0.0, 1.0, 1.0], [2.0, 2.0, 1.0, 3.0]]))


@pytest.mark.parametrize("boxes", [None, np.zeros((2, 4)), torch.zeros(2, 4).to_sparse(), torch.zeros(2, 4).to("meta")])
def test_nms_layer_refuses_boxes_that_cannot_be_read(boxes: Any) -> None:
    with pytest.raises(InputError, match="Expected"):
        sg.layers.NMSLayer()(torch.zeros(2), boxes)


@pytest.mark.parametrize("make", [lambda t: t.to("meta"), lambda t: t.to_sparse()], ids=["meta", "sparse"])
def test_tensors_without_readable_numbers_are_refused(make: Any) -> None:
    for ask in (sg.find_steps, sg.pseudogradient, lambda f, x: sg.step_function(f)(x)):
        with pytest.raises(InputError, match="Expected a"):
            ask(lambda v: 0.0, make(torch.ones(2)))


def test_of_several_slopes_the_first_coordinate_is_named() -> None:
    with pytest.raises(InputError, match="but in coordinate 0 it keeps changing"):
        sg.pseudogradient(lambda v: v.sum(), np.zeros(3))


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"search_range": 0.0}, "search_range to be a finite number > 0"),
        ({"tolerance": 0.0}, "tolerance to be a finite number >= 1e-15"),
        ({"value_tolerance": -1.0}, "value_tolerance to be a finite number >= 0"),
    ],
)
def test_a_limit_of_the_search_says_whether_its_bound_is_allowed(option: dict[str, float], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        sg.find_steps(lambda v: np.round(v).sum(), np.zeros(1), **option)


def test_a_method_names_the_one_number_that_its_estimator_uses() -> None:
    assert str(Method("radius", radius=2.5, min_step=7.0)) == "estimator='radius', radius=2.5"
    assert str(Method("sde", radius=2.5, min_step=7.0)) == "estimator='sde', min_step=7"
