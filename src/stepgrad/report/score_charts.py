"""Charts of a detector's scores: hits and false alarms by score, precision, recall and F1 by score, and calibration."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree.ElementTree import Element

import numpy as np
from numpy.typing import NDArray

from stepgrad.number_text import per_cent
from stepgrad.report.charts import HEIGHT, PANEL, WIDTH, Numbers, arm_class, chart_svg
from stepgrad.report.history import thin
from stepgrad.report.svg import Scale, draw_axes, draw_bars, draw_legend, element, ticks


def score_chart(scores: Numbers, threshold: float) -> Element | None:
    """Two bars per range of scores: hits, false alarms. Heights are square roots, so that few hits among many show."""
    most = max([*scores["hits"], *scores["alarms"]])
    if most == 0:
        return None
    bars = len(scores["hits"])
    scale = Scale((scores["from"], scores["to"]), (0, most**0.5), 52, 28, WIDTH - 52 - 14, HEIGHT - 28 - 40)
    svg = chart_svg("Hits and false alarms by score", WIDTH, HEIGHT)
    draw_axes(svg, scale, ticks(scores["from"], scores["to"]), [])
    draw_counts(svg, scale, most)
    lows = [scores["from"] + (scores["to"] - scores["from"]) * k / bars for k in range(bars)]
    for side, (name, word) in enumerate((("hits", "hits"), ("alarms", "false alarms"))):
        words = [f"from score {low:.2f}: {count} {word}" for low, count in zip(lows, scores[name], strict=True)]
        draw_bars(svg, scale, scores[name], f"{name} bar", f"/scores/{name}", words, (0.08 + 0.42 * side, 0.42))
    at = scale.x(threshold)
    element(svg, "line", class_="bound", x1=at, x2=at, y1=scale.top, y2=scale.top + scale.height)
    element(svg, "text", "score", class_="tick end", x=scale.left + scale.width, y=HEIGHT - 4)
    draw_legend(svg, [("hits", "hits"), ("false alarms", "alarms")], scale.left, 14)
    return svg


RATES = (("F1", 0), ("precision", 1), ("recall", 2))
"""The lines of a chart by score, and the style of each."""


def rates_chart(by_score: Numbers, objects: int, common: Numbers) -> Element | None:
    """Precision, recall and F1 of all classes together over the score from which detections count."""
    right, wrong = (np.array(by_score[side]).sum(axis=0) for side in ("right", "wrong"))
    if not objects or not right.any():
        return None
    scale = _score_scale(by_score, 46, 28, WIDTH - 46 - 14, HEIGHT - 28 - 40)
    svg = chart_svg("Precision, recall and F1 over the score from which detections count", WIDTH, HEIGHT)
    draw_axes(svg, scale, ticks(*scale.x_range), ticks(0, 1))
    _draw_rates(svg, scale, by_score["scores"], right, wrong, objects)
    words = f"F1 {per_cent(common['f1'])} at {common['threshold']:.2f}, the best"
    value = {"data_key": "/common/f1", "data_value": repr(common["f1"])}
    _draw_best(svg, scale, common["threshold"], common["f1"], words, **value)
    element(svg, "text", "score", class_="tick end", x=scale.left + scale.width, y=HEIGHT - 4)
    draw_legend(svg, [(name, arm_class(style)) for name, style in RATES], scale.left, 14)
    return svg


def rates_panel(by_score: Numbers, label: int, row: Numbers, empty: str) -> Element:
    """The same for one class, with its own best F1; `empty` is what to say when nothing is right."""
    scale = _score_scale(by_score, 26, 8, PANEL - 34, PANEL - 32)
    svg = chart_svg(f"Precision, recall and F1 of {row['name']} over the score", PANEL, PANEL)
    low, high = scale.x_range
    draw_axes(svg, scale, [low, (low + high) / 2, high], [0, 0.5, 1], 15)
    if row["threshold"] is None:
        element(svg, "text", empty, class_="legend middle", x=scale.x((low + high) / 2), y=scale.y(0.75) + 4)
        return svg
    right, wrong = (np.array(by_score[side][label]) for side in ("right", "wrong"))
    _draw_rates(svg, scale, by_score["scores"], right, wrong, row["objects"])
    _draw_best(svg, scale, row["threshold"], row["f1"], f"F1 {per_cent(row['f1'])} at {row['threshold']:.3g}, the best")
    return svg


def _score_scale(by_score: Numbers, left: float, top: float, width: float, height: float) -> Scale:
    return Scale((by_score["scores"][0], by_score["scores"][-1]), (0, 1), left, top, width, height)


def _draw_rates(
    svg: Element,
    scale: Scale,
    scores: Sequence[float],
    right: NDArray[np.int64],
    wrong: NDArray[np.int64],
    objects: int,
) -> None:
    """The three lines; precision ends where no detection is left."""
    left = np.flatnonzero(right + wrong)
    lines = {
        "F1": 2 * right / (right + wrong + objects),
        "precision": right[left] / (right + wrong)[left],
        "recall": right / objects,
    }
    for name, style in reversed(RATES):
        xs, ys = thin(np.array(scores)[: len(lines[name])], lines[name])
        element(svg, "path", class_=arm_class(style), d=scale.path(xs.tolist(), ys.tolist()))


def _draw_best(svg: Element, scale: Scale, score: float, f1: float, words: str, **key: str) -> None:
    dot = element(svg, "circle", class_="hue0 point", cx=scale.x(score), cy=scale.y(f1), r=4, **key)
    element(dot, "title", words)


def _round_counts(most: int) -> list[int]:
    """Counts to mark on an axis of square roots: one digit, then zeros.

    >>> _round_counts(2345), _round_counts(3)
    ([100, 500, 2000], [3])
    """
    parts = [part for part in (most // 20, most // 4, most) if part]
    return sorted({int(str(part)[0]) * 10 ** (len(str(part)) - 1) for part in parts})


def draw_counts(svg: Element, scale: Scale, most: int) -> None:
    """Round counts along an axis of square roots."""
    for count in _round_counts(most):
        at = scale.y(count**0.5)
        element(svg, "line", class_="grid", x1=scale.left, x2=scale.left + scale.width, y1=at, y2=at)
        element(svg, "text", f"{count}", class_="tick end", x=scale.left - 6, y=at + 4)


def calibration_chart(calibration: Numbers) -> Element:
    """The share that is right over the mean score, with the line where both are equal."""
    side = HEIGHT - 28 - 40
    scale = Scale((0, 1), (0, 1), 46, 28, WIDTH - 46 - 14, side)
    svg = chart_svg("Share of detections that are right over their score", WIDTH, HEIGHT)
    draw_axes(svg, scale, ticks(0, 1), ticks(0, 1))
    element(svg, "path", class_="bound", d=scale.path([0, 1], [0, 1]))
    points = calibration["points"]
    scores, right = [p["score"] for p in points], [p["right"] for p in points]
    if len(points) > 1:
        element(svg, "path", class_="map", d=scale.path(scores, right))
    for k, point in enumerate(points):
        x, y = scale.x(point["score"]), scale.y(point["right"])
        key = {"data_key": f"/calibration/points/{k}/right", "data_value": repr(point["right"])}
        drawn = element(svg, "circle", class_="map point", cx=x, cy=y, r=4, **key)
        words = f"{point['count']} detections, mean score {point['score']:.2f}: {per_cent(point['right'])} % right"
        element(drawn, "title", words)
    element(svg, "text", "score", class_="tick end", x=scale.left + scale.width, y=HEIGHT - 4)
    draw_legend(svg, [("share that is right", "map"), ("perfect calibration", "bound")], scale.left, 14)
    return svg
