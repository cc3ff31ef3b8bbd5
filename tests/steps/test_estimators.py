"""SDE and MEE: the closed forms against the definitions, integrated over brute-force step functions."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

import stepgrad as sg
from stepgrad.errors import ConfigError
from stepgrad.reference import estimators
from stepgrad.reference.mean_ap import scene_of
from stepgrad.reference.steps import NearestSteps, StepFunction, step_function
from tests.oracles.options import Options
from tests.scenes import over_seeds, small_batch

INF = math.inf


def closed_form(estimator: Callable[..., torch.Tensor], x: float, steps: NearestSteps, min_step: float = 0.0) -> float:
    numbers = (x, steps.value.rounded, steps.up_at, steps.up_value.rounded, steps.down_at, steps.down_value.rounded)
    arguments = [torch.tensor([v], dtype=torch.float64) for v in numbers]
    return float(estimator(*arguments, min_step=min_step))


def random_step_functions(seed: int, count: int) -> list[StepFunction]:
    """AP as a function of one score, from small scenes in which something happens."""
    rng = np.random.default_rng([seed, 30])
    found: list[StepFunction] = []
    while len(found) < count:
        batch = small_batch(rng)
        options = Options(str(rng.choice(["voc07", "voc12", "coco"])), [None, 0.3, 0.5][rng.integers(3)], 0.5)
        i, b, c = batch.windows()[rng.integers(len(batch.windows()))]
        f = step_function(scene_of(batch, c, options, 0.5), batch.column(c), i, b)
        if f.steps():
            found.append(f)
    return found


@pytest.mark.parametrize("min_step", [0.0, 0.25, 3.0])
@over_seeds(10, 200)
def test_sde_is_the_mean_of_both_adaptive_differences(seed: int, min_step: float) -> None:
    for f in random_step_functions(seed, 50):
        expected = float(estimators.sde(f.x, f.nearest_steps(), min_step))
        assert closed_form(sg.sde, f.x, f.nearest_steps(), min_step) == pytest.approx(expected, rel=0, abs=1e-12)


@pytest.mark.parametrize("min_step", [0.0, 0.25, 3.0])
@over_seeds(10, 200)
def test_mee_is_the_mean_slope_of_the_envelopes(seed: int, min_step: float) -> None:
    for f in random_step_functions(seed, 50):
        expected = estimators.mee(f, min_step)
        value = closed_form(sg.mee, f.x, f.nearest_steps(), min_step)
        assert math.isfinite(value)
        if expected is not None:
            assert value == pytest.approx(float(expected), rel=0, abs=1e-12)


@over_seeds(5, 50)
def test_mee_is_the_average_slope_between_the_midpoints_of_its_two_steps(seed: int) -> None:
    """Integrate the slope of (upper + lower) / 2 over the constant region on a fine grid: the same number."""
    for f in random_step_functions(seed, 20):
        near = f.nearest_steps()
        if not (-INF < near.down_at < near.up_at < INF):
            continue
        steps = [(y, below.rounded, above.rounded) for y, below, above in f.steps()]
        grid = np.linspace(near.down_at, near.up_at, 1001)
        middle = np.interp(grid, [y for y, *_ in steps], [(below + above) / 2 for _, below, above in steps])
        integral = np.diff(middle).sum() / (near.up_at - near.down_at)
        assert closed_form(sg.mee, f.x, near) == pytest.approx(integral, rel=0, abs=1e-12)


def tensors(*numbers: float) -> list[torch.Tensor]:
    return [torch.tensor([v], dtype=torch.float64) for v in numbers]


@pytest.mark.parametrize("estimator", [sg.sde, sg.mee])
def test_no_step_gives_zero(estimator: Callable[..., torch.Tensor]) -> None:
    assert float(estimator(*tensors(0.0, 0.5, INF, 0.5, -INF, 0.5))) == 0.0


@pytest.mark.parametrize("estimator", [sg.sde, sg.mee])
def test_one_missing_side_contributes_nothing(estimator: Callable[..., torch.Tensor]) -> None:
    assert float(estimator(*tensors(0.0, 0.5, 2.0, 0.75, -INF, 0.5))) == 0.25 / 2 / 2
    assert float(estimator(*tensors(0.0, 0.5, INF, 0.5, -4.0, 0.75))) == -0.25 / 4 / 2


def test_one_sided_distances_are_bounded_below_by_min_step() -> None:
    near = tensors(0.0, 0.5, 0.001, 0.75, -INF, 0.5)
    assert float(sg.mee(*near, min_step=0.5)) == float(sg.sde(*near, min_step=0.5)) == 0.25 / 0.5 / 2


def test_mee_does_not_depend_on_where_x_lies_between_its_steps() -> None:
    values = [float(sg.mee(*tensors(x, 0.5, 2.0, 0.75, -2.0, 0.25))) for x in (-1.9, 0.0, 1.9)]
    assert values == [0.5 / 4 / 2] * 3


def test_mee_of_a_peak_or_valley_of_equal_sides_is_zero() -> None:
    assert float(sg.mee(*tensors(0.0, 0.5, 1.0, 0.25, -3.0, 0.25))) == 0.0


@pytest.mark.parametrize("estimator", [sg.sde, sg.mee])
@pytest.mark.parametrize("min_step", [0.0, 0.1])
@pytest.mark.parametrize(("up_at", "down_at"), [(0.0, -1.0), (1.0, 0.0), (0.0, 0.0), (0.0, -INF), (INF, 0.0)])
def test_zero_distances_give_finite_numbers(
    estimator: Callable[..., torch.Tensor], up_at: float, down_at: float, min_step: float
) -> None:
    up_value = 0.75 if up_at < INF else 0.5
    down_value = 0.25 if down_at > -INF else 0.5
    value = float(estimator(*tensors(0.0, 0.5, up_at, up_value, down_at, down_value), min_step=min_step))
    assert math.isfinite(value)
    assert value >= 0.0  # f rises on both sides


@pytest.mark.parametrize("estimator", [sg.sde, sg.mee])
def test_distances_too_small_to_divide_by_give_finite_numbers(estimator: Callable[..., torch.Tensor]) -> None:
    smallest = 5e-324
    for up_at, down_at in [(smallest, -smallest), (smallest, -INF), (INF, -smallest)]:
        up_value, down_value = (0.75 if up_at < INF else 0.5), (0.25 if down_at > -INF else 0.5)
        assert math.isfinite(float(estimator(*tensors(0.0, 0.5, up_at, up_value, down_at, down_value))))


@pytest.mark.parametrize("estimator", [sg.sde, sg.mee])
def test_estimators_work_elementwise_on_any_shape(estimator: Callable[..., torch.Tensor]) -> None:
    generator = torch.Generator().manual_seed(0)
    x, value, up, up_value, down, down_value = torch.rand(6, 3, 4, 5, generator=generator, dtype=torch.float64)
    arguments = (x, value, x + up, up_value, x - down, down_value)
    whole = estimator(*arguments, min_step=0.1)
    assert whole.shape == x.shape
    assert torch.equal(whole[1, 2, 3], estimator(*(a[1, 2, 3] for a in arguments), min_step=0.1))


@pytest.mark.parametrize("min_step", [-1e-9, math.inf, math.nan])
def test_the_least_step_is_a_finite_number_of_at_least_zero(min_step: float) -> None:
    steps = [torch.tensor(v) for v in (0.0, 0.5, 1.0, 0.75, -3.0, 0.25)]
    for estimator in (sg.sde, sg.mee):
        assert torch.isfinite(estimator(*steps, min_step=0.0))
        with pytest.raises(ConfigError, match="min_step"):
            estimator(*steps, min_step=min_step)
