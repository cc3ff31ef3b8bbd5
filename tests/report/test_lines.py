"""Logs, thinned lines and axes."""

from __future__ import annotations

import re
from importlib.resources import files
from xml.etree.ElementTree import Element

import numpy as np
import pytest

from stepgrad.evaluation.result import evaluate_under
from stepgrad.metric.protocol import get_protocol
from stepgrad.report.curves import curve_panel, describe_curve
from stepgrad.report.numbers import look_up
from stepgrad.report.scores import calibration_chart, score_chart
from stepgrad.report.svg import DIGIT, Chart, picture, thin, ticks
from stepgrad.report.training import (
    current_lines,
    map_chart,
    nonzero_chart,
    phases_of,
    smooth,
    summary,
    sums_chart,
    training_charts,
)
from tests.report.runs import log_lines, shapes_evidence


def test_thinned_line_is_short_a_part_of_the_line_and_keeps_ends_and_extremes() -> None:
    rng = np.random.default_rng(0)
    x, y = np.sort(rng.random(5000)), rng.random(5000)
    thin_x, thin_y = thin(x, y)
    assert len(thin_x) <= 200
    assert set(zip(thin_x, thin_y, strict=True)) <= set(zip(x, y, strict=True))
    assert (thin_x[0], thin_x[-1], thin_y.min(), thin_y.max()) == (x[0], x[-1], y.min(), y.max())


def test_thinned_line_covers_the_same_height_in_every_column() -> None:
    rng = np.random.default_rng(1)
    x, y = np.arange(4000.0), np.cumsum(rng.normal(size=4000))
    thin_x, thin_y = thin(x, y)
    for column in range(50):
        low, high = 3999 * column / 50, 3999 * (column + 1) / 50
        all_of, kept = y[(x >= low) & (x < high)], thin_y[(thin_x >= low) & (thin_x < high)]
        assert (all_of.min(), all_of.max()) == (kept.min(), kept.max())


@pytest.mark.parametrize("points", [0, 1, 2, 3])
def test_few_points_stay(points: int) -> None:
    x, y = np.arange(float(points)), np.arange(float(points)) ** 2
    assert [line.tolist() for line in thin(x, y)] == [x.tolist(), y.tolist()]
    assert len(smooth(y)) == points


def test_moving_mean_keeps_a_straight_line() -> None:
    line = np.linspace(-1, 5, 101)
    np.testing.assert_allclose(smooth(line, 0.2), line, atol=1e-12)


def test_staircase_under_a_curve_has_the_area_that_is_ap() -> None:
    _, evidence = shapes_evidence(12)
    for row in evaluate_under(evidence, get_protocol("voc12")).classes:
        curve = describe_curve(row, 0.5)
        x, y = np.array(curve["best_recall"]), np.array(curve["best_precision"])
        np.testing.assert_allclose(np.sum(np.diff(x) * (y[1:] + y[:-1]) / 2), row.ap, atol=1e-12)


def test_steps_taken_again_after_a_resume_replace_the_first_ones() -> None:
    lines = log_lines()
    cut = next(k for k, line in enumerate(lines) if line["step"] == 120 and line["kind"] == "train")
    broken = [*lines[:cut], {"kind": "start", "step": 80}, *[line for line in lines if line["step"] > 80]]
    assert summary(broken, "voc12") == summary(lines, "voc12")
    assert [line["step"] for line in current_lines(broken, "val")] == [40, 80, 120, 160, 200, 240, 280, 320]


def test_a_log_without_its_last_line_still_knows_steps_time_and_best_step() -> None:
    lines = log_lines()
    whole, broken = summary(lines, "voc12"), summary(lines[:-1], "voc12")
    for key in ("steps", "seconds", "best_step", "best_map"):
        assert broken[key] == whole[key]


def test_a_log_of_validations_alone_still_knows_how_many_steps_there_were() -> None:
    """A run that was stopped before its first line about training has been validated all the same."""
    lines = [{"kind": "val", "step": step, "map": {"voc12": 0.1 * step}} for step in (3, 6)]
    run = summary(lines, "voc12")
    assert (run["steps"], run["best_step"]) == (6, 6)


def test_numbers_that_are_missing_leave_a_line_without_them() -> None:
    lines = [{"kind": "train", "step": s, "phase": "nll", "loss": None if s == 2 else 1.0 * s} for s in (1, 2, 3)]
    assert summary(lines, "voc12")["loss"][0]["total"]["steps"] == [1, 3]


def test_lines_drawn_pass_through_the_numbers_of_the_json() -> None:
    run = summary(log_lines(), "voc12")
    for chart in (map_chart(run), sums_chart(run)):
        assert chart is not None
        drawn = [path for path in chart.iter("path") if path.get("data-line")]
        assert len(drawn) >= 4
        numbers = [look_up({"run": run}, path.attrib["data-line"]) for path in drawn]
        points = [np.array(re.findall(r"[-\d.]+", path.attrib["d"]), dtype=float).reshape(-1, 2) for path in drawn]
        heights = np.concatenate([at[:, 1] for at in points])
        values = np.concatenate(numbers)
        slope, offset = np.polyfit(values, heights, 1)
        assert slope < 0  # larger is higher up
        np.testing.assert_allclose(heights, slope * values + offset, atol=0.11)


def charts() -> list[Element]:
    """One of each kind."""
    curve = {"recall": [0.5, 1.0], "precision": [1.0, 0.5], "best_recall": [0.0, 1.0], "best_precision": [1.0, 0.5]}
    points = [{"count": 2, "score": 0.25, "right": 0.5}, {"count": 1, "score": 0.75, "right": 1}]
    by_score = score_chart({"from": 0.0, "to": 1.0, "hits": [0, 3], "alarms": [40, 1]}, 0.5)
    assert by_score is not None
    return [
        *(svg for _, svg in training_charts(summary(log_lines(), "voc12")).values()),
        curve_panel(curve, {"name": "dog", "objects": 1}),
        by_score,
        calibration_chart({"points": points}),
    ]


def test_the_theme_of_the_page_decides_every_colour_of_a_chart() -> None:
    style = files("stepgrad.report").joinpath("chart.css").read_text()
    drawn = charts()
    assert len(drawn) == 8
    for part in (part for chart in drawn for part in chart.iter()):
        assert not {"style", "fill", "stroke", "color"} & set(part.attrib)
        if part.tag in ("path", "line", "circle", "text", "rect"):
            assert any(f".{name}" in style for name in part.attrib["class"].split()), part.attrib


@pytest.mark.parametrize("size", [1e-5, 1e-3, 1.0, 1e4])
def test_labels_of_the_axis_lie_inside_the_picture(size: float) -> None:
    steps = [0.0, 10.0]
    values = [0.0, 1.5 * size]
    chart = nonzero_chart({"nonzero": {"steps": steps, "values": values, "mean_steps": steps, "mean": values}})
    assert chart is not None
    labels = [text for text in chart.iter("text") if text.get("class") == "tick end" and text.text != "step"]
    assert len(labels) >= 2
    assert all(float(text.attrib["x"]) - DIGIT * len(text.text or "") > 0 for text in labels)


def test_ticks_are_round_inside_the_range_and_at_least_two() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        low = float(rng.normal() * 10.0 ** rng.integers(-3, 4))
        high = low + float(rng.random() * 10.0 ** rng.integers(-2, 5)) + 1e-3
        found = ticks(low, high)
        assert 2 <= len(found) <= 8
        assert min(found) >= low - 1e-6 * (high - low)
        assert max(found) <= high + 1e-6 * (high - low)
    assert ticks(3.0, 3.0) == [3.0]


def test_a_chart_puts_the_ends_of_the_range_on_the_edges_and_a_range_of_one_number_in_the_middle() -> None:
    chart = Chart(picture("", 480, 250), (10, 20), (5, 5), 40, 30, 400, 200)
    assert (chart.x(10), chart.x(20), chart.y(5)) == (40, 440, 130)


def test_a_phase_too_short_for_a_line_of_training_is_there_by_its_validation() -> None:
    train = [{"kind": "train", "phase": "nll", "step": 10}, {"kind": "train", "phase": "nll", "step": 60}]
    val = [{"kind": "val", "phase": "nll", "step": 60}, {"kind": "val", "phase": "map", "step": 64}]
    assert phases_of(train, val) == [
        {"name": "nll", "first": 10, "last": 60},
        {"name": "map", "first": 64, "last": 64},
    ]
