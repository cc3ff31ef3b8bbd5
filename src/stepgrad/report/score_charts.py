"""Charts of a detector's scores: hits and false alarms by score, and what a score is worth."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from stepgrad.number_text import per_cent
from stepgrad.report.charts import HEIGHT, WIDTH, Numbers, chart_svg
from stepgrad.report.svg import Scale, draw_axes, draw_legend, element, ticks


def score_chart(scores: Numbers, threshold: float) -> Element | None:
    """Two bars per range of scores: hits, false alarms. Heights are square roots, so that few hits among many show."""
    most = max([*scores["hits"], *scores["alarms"]])
    if most == 0:
        return None
    bars = len(scores["hits"])
    scale = Scale((scores["from"], scores["to"]), (0, most**0.5), 52, 28, WIDTH - 52 - 14, HEIGHT - 28 - 40)
    svg = chart_svg("Hits and false alarms by score", WIDTH, HEIGHT)
    draw_axes(svg, scale, ticks(scores["from"], scores["to"]), [])
    for count in _round_counts(most):
        at = scale.y(count**0.5)
        element(svg, "line", class_="grid", x1=scale.left, x2=scale.left + scale.width, y1=at, y2=at)
        element(svg, "text", f"{count}", class_="tick end", x=scale.left - 6, y=at + 4)
    wide = scale.width / bars
    for side, name in enumerate(("hits", "alarms")):
        for k, count in enumerate(scores[name]):
            if count:
                x, y = scale.left + wide * (k + 0.08 + 0.42 * side), scale.y(count**0.5)
                height = scale.top + scale.height - y
                key = f"/scores/{name}/{k}"
                bar = {"data_key": key, "data_value": repr(count), "class_": f"{name} bar"}
                drawn = element(svg, "rect", x=x, y=y, width=0.42 * wide, height=height, **bar)
                low = scores["from"] + (scores["to"] - scores["from"]) * k / bars
                element(drawn, "title", f"from score {low:.2f}: {count} {'hits' if side == 0 else 'false alarms'}")
    at = scale.x(threshold)
    element(svg, "line", class_="bound", x1=at, x2=at, y1=scale.top, y2=scale.top + scale.height)
    element(svg, "text", "score", class_="tick end", x=scale.left + scale.width, y=HEIGHT - 4)
    draw_legend(svg, [("hits", "hits"), ("false alarms", "alarms")], scale.left, 14)
    return svg


def _round_counts(most: int) -> list[int]:
    """Counts to mark on an axis of square roots: one digit, then zeros.

    >>> _round_counts(2345), _round_counts(3)
    ([100, 500, 2000], [3])
    """
    parts = [part for part in (most // 20, most // 4, most) if part]
    return sorted({int(str(part)[0]) * 10 ** (len(str(part)) - 1) for part in parts})


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
