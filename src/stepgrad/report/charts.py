"""The charts of a report, drawn from its numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np

from stepgrad.number_text import per_cent
from stepgrad.report.history import thin
from stepgrad.report.svg import DIGIT, Scale, draw_axes, draw_legend, element, percent_text, tick_text, ticks

WIDTH, HEIGHT = 480, 250
PANEL = 150
LEGEND_LINE = 20
LONGEST_NAME = 46
"""Letters of an arm's name that have room in a legend or a sentence; a tooltip has them all."""
Numbers = Mapping[str, Any]


def loss_charts(run: Numbers) -> dict[str, Element]:
    """One per phase, each on its own scale: a cross-entropy and a -log(mAP) are not to be compared."""
    charts = {}
    for k, part in enumerate(run["loss"]):
        total, phase = part["total"], str(part["phase"])
        key = f"/run/loss/{k}/total"
        scale = _scale([total["values"]], total["steps"])
        svg = _chart(f"Loss of phase {phase}", scale)
        kind = "map" if phase == "map" else "nll"  # the class that colours it
        _line(svg, scale, total["steps"], total["values"], f"{kind} raw", f"{key}/values")
        for name, term in part["terms"].items():
            _line(svg, scale, term["mean_steps"], term["mean"], f"{kind} term", "", f"{name}, moving mean")
        _line(svg, scale, total["mean_steps"], total["mean"], kind, f"{key}/mean")
        names = [("each step", f"{kind} raw"), ("moving mean", kind)]
        draw_legend(svg, names + [("its terms", f"{kind} term")] * bool(part["terms"]), scale.left, 14)
        charts[f"loss-{k + 1}-{phase}"] = svg
    return charts


def map_chart(run: Numbers) -> Element | None:
    """mAP on the validation images and on each minibatch."""
    batch, validated = run["batch_map"], run["validation"]
    values = [points["values"] for points in validated.values()] + [batch["values"] if batch else []]
    steps = [step for points in validated.values() for step in points["steps"]] + (batch["steps"] if batch else [])
    if not steps:
        return None
    bounds = [phase[end] for phase in run["phases"] for end in ("first", "last")]
    scale = _scale([*values, [0.0]], [*steps, *bounds])
    svg = _chart("mAP in per cent over steps", scale, percent_text)
    _phases(svg, scale, run["phases"])
    names = []
    if batch:
        _line(svg, scale, batch["steps"], batch["values"], "batch raw", "/run/batch_map/values")
        _line(svg, scale, batch["mean_steps"], batch["mean"], "batch", "/run/batch_map/mean")
        names.append(("minibatch", "batch"))
    for k, (name, points) in enumerate(validated.items()):
        kind = f"val val{k % 3}"
        _line(svg, scale, points["steps"], points["values"], kind, f"/run/validation/{name}/values")
        _points(svg, scale, points, f"{kind} point", name, run["best_step"] if k == 0 else None)
        names.append((f"{name}", f"{kind} point"))
    draw_legend(svg, names, scale.left, 14)
    return svg


def nonzero_chart(run: Numbers) -> Element | None:
    """The share of scores that got a gradient."""
    part = run["nonzero"]
    if not part:
        return None
    scale = _scale([part["values"], [0.0]], part["steps"])
    svg = _chart("Share of scores with a gradient", scale)
    _line(svg, scale, part["steps"], part["values"], "map raw", "/run/nonzero/values")
    _line(svg, scale, part["mean_steps"], part["mean"], "map", "/run/nonzero/mean")
    draw_legend(svg, [("each step", "map raw"), ("moving mean", "map")], scale.left, 14)
    return svg


def sums_chart(run: Numbers) -> Element | None:
    """Sums of the positive gradients, which push scores down, and of the negative ones."""
    parts = [(name, run[name]) for name in ("positive_sum", "negative_sum") if run[name]]
    if not parts:
        return None
    scale = _scale([*(part["values"] for _, part in parts), [0.0]], [s for _, part in parts for s in part["steps"]])
    svg = _chart("Sums of positive and of negative gradients", scale)
    zero = scale.y(0.0)
    element(svg, "line", class_="zero", x1=scale.left, x2=scale.left + scale.width, y1=zero, y2=zero)
    for name, part in parts:
        kind = name.removesuffix("_sum")
        _line(svg, scale, part["steps"], part["values"], f"{kind} raw", f"/run/{name}/values")
        _line(svg, scale, part["mean_steps"], part["mean"], kind, f"/run/{name}/mean")
    names = {"positive_sum": ("positive: scores down", "positive"), "negative_sum": ("negative: scores up", "negative")}
    draw_legend(svg, [names[name] for name, _ in parts], scale.left, 14)
    return svg


def curve_panel(curve: Numbers, name: str, empty: str) -> Element:
    """Precision over recall of one class; `empty` is what to say when there is no curve."""
    scale = Scale((0, 1), (0, 1), 26, 8, PANEL - 34, PANEL - 32)
    svg = chart_svg(f"Precision over recall of {name}", PANEL, PANEL)
    draw_axes(svg, scale, [0, 0.5, 1], [0, 0.5, 1], 15)
    if not curve["recall"]:
        element(svg, "text", empty, class_="legend middle", x=scale.x(0.5), y=scale.y(0.75) + 4)
        return svg
    area = scale.path([0.0, *curve["best_recall"]], [0.0, *curve["best_precision"]])
    element(svg, "path", class_="area", d=area)
    element(svg, "path", class_="pr raw", d=scale.path(curve["recall"], curve["precision"]))
    element(svg, "path", class_="pr", d=scale.path(curve["best_recall"], curve["best_precision"]))
    return svg


def arms_chart(curves: Numbers, key: str, names: Sequence[str], styles: Sequence[int]) -> Element:
    """Precision over recall of several arms, the mean over classes, with a legend that has a line for each."""
    top = 26.0 + LEGEND_LINE * len(names)
    scale = Scale((0, 1), (0, 1), 46, top, WIDTH - 46 - 14, 300)
    maps = [(name, "" if value is None else per_cent(value)) for name, value in zip(names, curves["maps"], strict=True)]
    spoken = "; ".join(f"{name}: mAP {value or 'none'}" for name, value in maps)
    title = f"Precision over recall, mean over classes, at IoU {curves['iou']:g}. {spoken}"
    svg = chart_svg(title, WIDTH, round(top + 300 + 40))
    draw_axes(svg, scale, ticks(0, 1), ticks(0, 1))
    element(svg, "text", "recall", class_="tick end", x=scale.left + scale.width, y=top + 300 + 36)
    element(svg, "text", "precision", class_="tick", x=4, y=top - 8)
    for line, (k, style) in enumerate(_in_order(styles)):
        at = 14 + LEGEND_LINE * line
        element(svg, "line", class_=arm_class(style), x1=scale.left, x2=scale.left + 36, y1=at - 4, y2=at - 4)
        text = element(svg, "text", shortened(names[k]), class_="legend", x=scale.left + 44, y=at)
        if curves["maps"][k] is not None:
            value = {"data_key": f"{key}/maps/{k}", "data_value": repr(curves["maps"][k])}
            element(svg, "text", maps[k][1], class_="legend end", x=scale.left + scale.width, y=at, **value)
        element(text, "title", names[k])
    _draw_arms(svg, scale, curves["mean"], styles, "no objects")
    return svg


def arms_panel(curves: Numbers, styles: Sequence[int]) -> Element:
    """Precision over recall of one class, for several arms."""
    scale = Scale((0, 1), (0, 1), 26, 8, PANEL - 34, PANEL - 32)
    svg = chart_svg(f"Precision over recall of {curves['name']}", PANEL, PANEL)
    draw_axes(svg, scale, [0, 0.5, 1], [0, 0.5, 1], 15)
    found = any(ap for ap in curves["aps"])
    _draw_arms(svg, scale, curves["precision"], styles, "no objects" if curves["objects"] == 0 else "none found", found)
    return svg


def arm_swatch(style: int) -> Element:
    """A piece of an arm's line, for a list next to the charts."""
    svg = element(None, "svg", xmlns="http://www.w3.org/2000/svg", viewBox="0 0 36 8", aria_hidden="true")
    element(svg, "line", class_=arm_class(style), x1=0, x2=36, y1=4, y2=4)
    return svg


def _draw_arms(
    svg: Element, scale: Scale, lines: Sequence[Any], styles: Sequence[int], empty: str, found: bool = True
) -> None:
    """The lines, the first style last and so on top; `empty` is what to say when there are none."""
    if not found or None in lines:  # a class without objects has them in no arm
        element(svg, "text", empty, class_="legend middle", x=scale.x(0.5), y=scale.y(0.75) + 4)
        return
    for k, style in reversed(_in_order(styles)):
        recall, precision = thin(np.linspace(0, 1, len(lines[k])), np.array(lines[k]))
        element(svg, "path", class_=arm_class(style), d=scale.path(recall.tolist(), precision.tolist()))


def _in_order(styles: Sequence[int]) -> list[tuple[int, int]]:
    """(arm, style) by style: the chosen arm and the reference come first."""
    return sorted(enumerate(styles), key=lambda pair: pair[1])


def arm_class(style: int) -> str:
    """Six colours and five dash patterns: no two of thirty arms look the same."""
    return f"arm hue{style % 6} dash{style % 5}"


def shortened(name: str) -> str:
    """A name that leaves room for others."""
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"


def chart_svg(title: str, width: int, height: int) -> Element:
    size = f"0 0 {width} {height}"
    return element(None, "svg", xmlns="http://www.w3.org/2000/svg", viewBox=size, role="img", aria_label=title)


def _chart(title: str, scale: Scale, y_text: Callable[[float], str] = tick_text) -> Element:
    svg = chart_svg(title, WIDTH, HEIGHT)
    draw_axes(svg, scale, ticks(*scale.x_range), ticks(*scale.y_range), y_text=y_text)
    element(svg, "text", "step", class_="tick end", x=scale.left + scale.width, y=HEIGHT - 4)
    return svg


def _scale(values: Iterable[Sequence[float]], steps: Sequence[float]) -> Scale:
    """Axes that hold all values, rounded outward a little."""
    every = [value for line in values for value in line]
    low, high = min(every), max(every)
    room = 0.06 * (high - low) or max(abs(high) * 0.1, 0.05)
    bottom, top = low if low == 0.0 else low - room, high + room
    left = max(46.0, 12 + DIGIT * max(len(tick_text(value)) for value in ticks(bottom, top)))
    return Scale((min(steps), max(steps)), (bottom, top), left, 28, WIDTH - left - 14, HEIGHT - 28 - 40)


def _line(
    svg: Element, scale: Scale, xs: Sequence[float], ys: Sequence[float], kind: str, key: str, title: str = ""
) -> None:
    """A line, or a point where there is only one."""
    if len(xs) == 1:
        drawn = element(svg, "circle", class_=f"{kind} point", cx=scale.x(xs[0]), cy=scale.y(ys[0]), r=3)
    else:
        drawn = element(svg, "path", class_=kind, d=scale.path(xs, ys))
    if key:
        drawn.set("data-line", key)
    if title:
        element(drawn, "title", title)


def _points(svg: Element, scale: Scale, points: Numbers, kind: str, name: str, best: int | None) -> None:
    """Validations, each with its number as a tooltip; the best one ringed."""
    for k, (step, value) in enumerate(zip(points["steps"], points["values"], strict=True)):
        x, y = scale.x(step), scale.y(value)
        if step == best:
            element(svg, "circle", class_="ring", cx=x, cy=y, r=7)
        key = "/run/validation/" + escape_key(name) + f"/values/{k}"
        point = element(svg, "circle", class_=kind, r=3.5, data_key=key, data_value=repr(value), cx=x, cy=y)
        element(point, "title", f"step {step}: {name} mAP {per_cent(value, 2)}" + (" (best)" if step == best else ""))


def escape_key(name: str) -> str:
    """One step of a JSON Pointer (RFC 6901).

    >>> escape_key("a/b")
    'a~1b'
    """
    return name.replace("~", "~0").replace("/", "~1")


def _phases(svg: Element, scale: Scale, phases: Sequence[Numbers]) -> None:
    """A dashed line where a phase begins, and its name."""
    if len(phases) < 2:
        return
    for phase in phases:
        at = scale.x(phase["first"])
        if phase is not phases[0]:
            element(svg, "line", class_="bound", x1=at, x2=at, y1=scale.top, y2=scale.top + scale.height)
        element(svg, "text", str(phase["name"]), class_="legend", x=at + 5, y=scale.top + 11)
