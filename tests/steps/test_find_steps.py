"""The search: exact between candidates, within its tolerance without them, and honest about what it did not find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import stepgrad as sg
from stepgrad.steps.nearest import NearestSteps, SearchIncompleteWarning
from tests.oracles.steps import Line, lines
from tests.scenes import over_seeds

INF = np.inf
PARTS = ("up_at", "up_value", "down_at", "down_value")


class Table:
    """A random step function R^n -> R^m: thresholds cut every axis, and each cell has a value of its own, often the same."""

    def __init__(self, rng: np.random.Generator, n: int, m: int, cuts: int = 5) -> None:
        self.cuts = [np.sort(rng.choice(np.arange(-16, 17), cuts, replace=False)) / 4.0 for _ in range(n)]
        self.cells = rng.integers(0, 3, size=(*[cuts + 1] * n, m)).astype(np.float64)

    def __call__(self, x: Any) -> np.ndarray:
        """One point or, stacked, many."""
        x = np.asarray(x)
        cell = tuple(np.searchsorted(c, x[..., i], side="right") for i, c in enumerate(self.cuts))
        return self.cells[cell]


def expected(f: Callable[..., Any], x: np.ndarray, places: list[np.ndarray]) -> list[list[Line]]:
    """[coordinate][output]"""
    return [lines(lambda v: f(np.array(v)).tolist(), x.tolist(), i, places[i].tolist()) for i in range(len(x))]


def found_at(steps: NearestSteps, j: int, i: int) -> tuple[float, ...]:
    return tuple(float(getattr(steps, part)[j, i]) for part in PARTS)


@pytest.mark.parametrize("vectorized", [False, True])
@over_seeds(10, 200)
def test_between_candidates_the_steps_are_those_of_brute_force(seed: int, vectorized: bool) -> None:
    rng = np.random.default_rng([seed, 80])
    for _ in range(10):
        n, m = int(rng.integers(1, 5)), int(rng.integers(1, 4))
        f = Table(rng, n, m)
        x = rng.integers(-18, 19, size=n) / 4.0  # sometimes right on a step
        steps = sg.find_steps(f, x, candidates=f.cuts, vectorized=vectorized)
        assert steps.complete
        for i, outputs in enumerate(expected(f, x, f.cuts)):
            for j, line in enumerate(outputs):
                assert found_at(steps, j, i) == line.nearest()


@over_seeds(10, 200)
def test_search_finds_the_steps_of_brute_force(seed: int) -> None:
    """Plateaus are at least 1/4 wide and steps at most 8.5 away, so a growth of 1.02 cannot jump over one."""
    rng = np.random.default_rng([seed, 81])
    f = Table(rng, 2, 2)
    x = rng.integers(-36, 37, size=2) / 8.0
    steps = sg.find_steps(f, x, vectorized=True, growth=1.02, search_range=20.0)
    for i, outputs in enumerate(expected(f, x, f.cuts)):
        for j, line in enumerate(outputs):
            np.testing.assert_allclose(found_at(steps, j, i), line.nearest(), rtol=0, atol=2e-8)


@settings(max_examples=60, deadline=None)
@given(
    distance=st.floats(1e-6, 100.0),
    growth=st.floats(1.1, 4.0),
    spare=st.floats(1.0, 3.0),
    x=st.floats(-50.0, 50.0),
    down=st.booleans(),
)
def test_a_plateau_as_wide_as_promised_is_never_jumped_over(
    distance: float, growth: float, spare: float, x: float, down: bool
) -> None:
    sign = -1.0 if down else 1.0
    width = (growth - 1.0) * distance * spare + 1e-6

    def bump(v: np.ndarray) -> np.ndarray:
        away = sign * (v[:, 0] - x)
        return ((away > distance) & (away < distance + width)).astype(float)

    steps = sg.find_steps(bump, np.array([x]), vectorized=True, growth=growth)
    at = float(steps.down_at[0] if down else steps.up_at[0])
    assert sign * (at - x) == pytest.approx(distance, abs=2e-9 * max(1.0, abs(x)))
    assert float(steps.down_value[0] if down else steps.up_value[0]) == 1.0


@settings(max_examples=60, deadline=None)
@given(st.permutations(range(4)), st.integers(0, 10**6))
def test_permuting_the_coordinates_permutes_the_steps(order: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    f, x = Table(rng, 4, 2, cuts=3), rng.integers(-18, 19, size=4) / 4.0
    back = np.argsort(order)
    straight = sg.find_steps(f, x, vectorized=True)
    permuted = sg.find_steps(lambda v: f(v[:, back]), x[order], vectorized=True)
    for part in PARTS:
        np.testing.assert_array_equal(getattr(permuted, part), getattr(straight, part)[:, order])


def test_a_constant_function_has_no_steps_and_no_gradient() -> None:
    steps = sg.find_steps(lambda v: 3.0, np.zeros(4))
    assert not steps.up_found.any()
    assert not steps.down_found.any()
    assert steps.complete
    for estimator in ("mee", "sde", "radius"):
        assert sg.pseudogradient(lambda v: 3.0, np.zeros(4), estimator).tolist() == [0.0] * 4


def test_each_output_has_its_own_nearest_step() -> None:
    steps = sg.find_steps(lambda v: np.array([v[0] > 1, v[0] > 2, v[0] > -1]), np.array([0.0]), candidates=[1, 2, -1])
    assert steps.up_at[:, 0].tolist() == [1.0, 2.0, INF]
    assert steps.down_at[:, 0].tolist() == [-INF, -INF, -1.0]


def test_a_value_at_a_single_point_is_no_step_unless_x_is_that_point() -> None:
    def spike(v: np.ndarray) -> float:
        return float(v[0] == 3.0)

    for options in ({"tolerance": 2.0**-30}, {"candidates": [3.0]}):  # powers of two from 1 hit 3 exactly
        away = sg.find_steps(spike, np.array([1.0]), **options)
        assert not away.up_found.any()
        on = sg.find_steps(spike, np.array([3.0]), **options)
        assert (on.up_at[0], on.up_value[0], on.down_at[0], on.down_value[0]) == (3.0, 0.0, 3.0, 0.0)


def test_the_search_goes_on_beyond_a_value_at_a_single_point() -> None:
    steps = sg.find_steps(lambda v: float(v[0] == 3.0) + 2.0 * (v[0] > 7.5), np.array([1.0]), tolerance=2.0**-30)
    assert float(steps.up_at[0]) == pytest.approx(7.5, abs=1e-8)
    assert steps.up_value[0] == 2.0


def test_a_step_within_the_tolerance_of_x_lies_at_x() -> None:
    steps = sg.find_steps(lambda v: float(v[0] > 1.0), np.array([1.0]))
    assert steps.up_at[0] == 1.0
    assert sg.pseudogradient(lambda v: float(v[0] > 1.0), np.array([1.0])).tolist() == [0.0]
    assert sg.pseudogradient(lambda v: float(v[0] > 1.0), np.array([1.0]), min_step=0.25).tolist() == [2.0]


def test_steps_closer_than_the_tolerance_count_as_one() -> None:
    def double(v: np.ndarray) -> float:
        return float(v[0] > 1.0) + float(v[0] > 1.0 + 1e-5)

    assert sg.find_steps(double, np.zeros(1), tolerance=1e-3).up_value[0] == 2.0
    assert sg.find_steps(double, np.zeros(1), tolerance=1e-7).up_value[0] == 1.0


def test_values_within_the_value_tolerance_are_equal() -> None:
    def noisy(v: np.ndarray) -> float:
        return float(v[0] > 2.0) + 1e-7 * (hash(v[0]) % 5)

    assert sg.find_steps(noisy, np.array([0.1]), value_tolerance=1e-5).up_at[0] == pytest.approx(2.0, abs=1e-8)


def test_far_steps_are_found_only_within_the_range() -> None:
    def far(v: np.ndarray) -> float:
        return float(v[0] > 500.0)

    assert sg.find_steps(far, np.zeros(1)).up_at[0] == pytest.approx(500.0, abs=1e-6)
    near = sg.find_steps(far, np.zeros(1), search_range=100.0)
    assert not near.up_found.any()
    assert near.complete  # it was looked for


@pytest.mark.parametrize("options", [{}, {"candidates": np.arange(-9.5, 10.0)}], ids=["search", "candidates"])
def test_what_the_budget_did_not_allow_is_reported_and_not_guessed(options: dict[str, Any]) -> None:
    whole = sg.find_steps(lambda v: np.floor(v + 0.5).sum(), np.zeros(3), **options)
    for budget in range(1, whole.evaluations, 1 + whole.evaluations // 40):
        part = sg.find_steps(lambda v: np.floor(v + 0.5).sum(), np.zeros(3), budget=budget, **options)
        assert part.evaluations <= budget
        assert not part.complete
        assert (part.up_unresolved | (part.up_at == whole.up_at)).all()
        assert (part.up_at[part.up_unresolved] == INF).all()
    assert sg.find_steps(lambda v: np.floor(v + 0.5).sum(), np.zeros(3), budget=whole.evaluations, **options).complete


def test_running_out_of_budget_warns_unless_the_report_is_asked_for() -> None:
    with pytest.warns(SearchIncompleteWarning, match="budget ran out after .* 2 nearest steps"):
        gradient = sg.pseudogradient(lambda v: np.round(v).sum(), np.zeros(1), budget=5)
    assert gradient.tolist() == [0.0]
    report = sg.pseudogradient(lambda v: np.round(v).sum(), np.zeros(1), budget=5, full=True)
    assert report.steps.up_unresolved.all()
    assert report.evaluations <= 5


def test_evaluations_are_counted_and_batched() -> None:
    sizes: list[int] = []

    def f(points: np.ndarray) -> np.ndarray:
        sizes.append(len(points))
        return np.round(points).sum(axis=1)

    steps = sg.find_steps(f, np.linspace(0.0, 5.0, 50), vectorized=True)
    assert steps.evaluations == sum(sizes)
    assert len(sizes) < 90  # rounds, whatever the number of coordinates


def test_an_oracle_is_believed() -> None:
    calls: list[int] = []

    def f(v: np.ndarray) -> float:
        calls.append(1)
        return float(np.round(v).sum())

    def oracle(v: np.ndarray) -> tuple[np.ndarray, ...]:
        k = np.round(v)
        return k + 0.5, np.full(2, k.sum() + 1), k - 0.5, np.full(2, k.sum() - 1)

    assert sg.pseudogradient(f, np.array([0.25, 3.0]), oracle=oracle).tolist() == [1.0, 1.0]
    assert len(calls) == 1


def test_shapes_and_kinds_follow_x_and_f() -> None:
    x = torch.tensor([[0.25, 1.25, 2.25]])
    report = sg.pseudogradient(lambda v: torch.stack([v.round().sum(), (v > 1).sum()]), x, full=True)
    assert report.gradient.shape == (2, 1, 3)
    assert report.gradient.dtype == torch.float32
    assert report.value.tolist() == [3.0, 2.0]
    assert report.steps.up_at.dtype == torch.float64
    assert isinstance(sg.pseudogradient(lambda v: np.round(v).sum(), [0.25, 1.0]), np.ndarray)
    assert sg.pseudogradient(np.round, 0.25, candidates=[-0.5, 0.5]).shape == ()
    assert sg.pseudogradient(lambda v: v.sum() * 0, np.zeros((0,))).shape == (0,)


def test_points_given_to_f_are_its_own() -> None:
    def spoil(v: np.ndarray) -> float:
        answer = float(np.round(v).sum())
        v[:] = 77.0
        return answer

    x = np.array([0.25, 3.0])
    np.testing.assert_allclose(sg.pseudogradient(spoil, x), [1.0, 1.0], atol=1e-7)
    assert x.tolist() == [0.25, 3.0]
