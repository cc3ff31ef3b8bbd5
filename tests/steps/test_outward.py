"""Candidates from a point outwards, and the points between them at which f is asked."""

from __future__ import annotations

import numpy as np
import pytest

from stepgrad.errors import InputError
from stepgrad.steps import evaluate
from stepgrad.steps.nearest import find_steps
from stepgrad.steps.search import outward


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_candidates_are_walked_outwards_each_once(sign: float) -> None:
    x = np.array([0.5, -2.0, 7.0])
    candidates = [np.array([3.0, 0.5, 1.0, 1.0, -4.0]), np.array([-2.5]), np.zeros(0)]
    ends, points = outward(x, candidates, sign)
    assert ends.shape == points.shape == (3, 6)
    for row, at, own in zip(ends, x, candidates, strict=True):
        ahead = sorted({c for c in own.tolist() if sign * c >= sign * at}, key=lambda c: sign * c)
        expected = [at, *ahead]
        assert row[: len(expected)].tolist() == expected
        assert np.isnan(row[len(expected) :]).all()


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_points_lie_inside_the_gaps_and_close_beyond_the_last_candidate(sign: float) -> None:
    x = np.array([0.0, 1000.0])
    ends, points = outward(x, [sign * np.array([2.0, 5.0]), x[1] + sign * np.array([10.0])], sign)
    assert points[0, :2].tolist() == [sign * 1.0, sign * 3.5]
    assert points[0, 2] == pytest.approx(ends[0, 2] + sign * 5e-6, rel=1e-12)
    assert points[1, 0] == x[1] + sign * 5.0
    assert points[1, 1] == pytest.approx(ends[1, 1] + sign * 1e-6 * abs(ends[1, 1]), rel=1e-14)
    assert np.isnan(points[1, 2])


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("at", [0.0, 0.25, -300.0])
def test_without_candidates_the_point_is_at_some_distance(at: float, sign: float) -> None:
    ends, points = outward(np.array([at]), [np.zeros(0)], sign)
    assert ends.tolist() == [[at]]
    assert points.tolist() == [[at + sign * max(1.0, abs(at))]]


def test_without_coordinates_there_is_nothing_to_walk() -> None:
    ends, points = outward(np.zeros(0), [], 1.0)
    assert ends.shape == points.shape == (0, 1)


def test_a_gap_without_a_number_inside_has_no_point() -> None:
    tight = np.nextafter(1.0, 2.0)
    ends, points = outward(np.array([0.0]), [np.array([1.0, tight])], 1.0)
    assert ends.tolist() == [[0.0, 1.0, tight]]
    assert np.isnan(points[0]).tolist() == [False, True, False]
    own, beyond = outward(np.array([1.0]), [np.array([1.0])], 1.0)  # a candidate at x: no gap before it
    assert own.tolist() == [[1.0, 1.0]]
    assert np.isnan(beyond[0]).tolist() == [True, False]


@pytest.mark.parametrize("candidates", [None, [1.0]], ids=["searched", "candidates"])
@pytest.mark.parametrize("base", [0.0, 0.5, -0.5, 8.0, -8.0])
def test_a_change_is_measured_against_the_value_tolerance_times_the_value_or_one(
    base: float, candidates: list[float] | None
) -> None:
    scale = max(1.0, abs(base))
    for share, seen in ((0.9, False), (1.1, True)):
        jump = share * 0.25 * scale
        steps = find_steps(
            lambda p, jump=jump: base + jump * float(p[0] > 1.0),
            np.zeros(1),
            candidates=candidates,
            value_tolerance=0.25,
        )
        assert np.isfinite(steps.up_at[0]) == seen
        assert steps.up_value[0] == (base + jump if seen else base)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("x", [0.0, 40.0])
def test_a_step_is_located_to_the_tolerance_on_the_side_of_x(x: float, sign: float) -> None:
    width = 0.125 * max(1.0, x)
    for distance in np.linspace(0.3, 9.7, 40).tolist():
        place = x + sign * distance
        steps = find_steps(lambda p, place=place: float(sign * p[0] > sign * place), np.array([x]), tolerance=0.125)
        found = float((steps.up_at if sign > 0 else steps.down_at)[0])
        assert 0.0 <= sign * (place - found) <= width


@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_points_asked_together_are_bounded_and_answers_are_the_same(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate, "_NUMBERS_AT_ONCE", at_once)
    rows = []

    def f(points: np.ndarray) -> np.ndarray:
        rows.append(len(points))
        return (points > [1.0, 2.0, 3.0]).sum(axis=1)

    steps = find_steps(f, np.zeros(3), vectorized=True, candidates=[[1.0], [2.0], [3.0]])
    assert steps.up_at.tolist() == [1.0, 2.0, 3.0]
    assert max(rows) == (1 if at_once < 6 else 6)


@pytest.mark.parametrize("candidates", [None, [1.0]], ids=["searched", "candidates"])
def test_a_point_without_coordinates_has_a_value_and_no_steps(candidates: list[float] | None) -> None:
    steps = find_steps(lambda p: 7.0, np.zeros(0), candidates=candidates)
    assert float(steps.value) == 7.0
    assert len(steps.up_at) == len(steps.down_at) == 0


def test_a_change_before_any_candidate_is_refused_with_the_first_of_them() -> None:
    said = "coordinate 0 moved from 0 to 2.5, past no candidate, it changes from 1 to 26;"
    with pytest.raises(InputError, match=said):
        find_steps(lambda p: 10.0 * p[0] + p[1], np.array([0.0, 1.0]), candidates=[5.0])
