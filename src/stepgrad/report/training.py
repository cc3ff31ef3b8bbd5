"""The charts of a training: losses, mAP, and how the gradient of mAP behaved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from xml.etree.ElementTree import Element

from stepgrad.number_text import per_cent
from stepgrad.report.numbers import Numbers, escape_key
from stepgrad.report.svg import DIGIT, Chart, draw_legend, large_chart, percent_text, tick_text, ticks


def training_charts(run: Numbers) -> dict[str, tuple[str, Element]]:
    """By the name of its file, the heading of a chart and the chart; only those that the log has numbers for."""
    losses = {
        f"loss-{k + 1}-{part['phase']}": (f"Loss, phase {part['phase']}", loss_chart(part, f"/run/loss/{k}"))
        for k, part in enumerate(run["loss"])
    }
    others = {
        "map": ("mAP", map_chart(run)),
        "nonzero": ("Share of scores with a gradient", nonzero_chart(run)),
        "gradient-sums": ("Sum of the gradient of scores", sums_chart(run)),
    }
    return losses | {name: (heading, svg) for name, (heading, svg) in others.items() if svg is not None}


def loss_chart(part: Numbers, key: str) -> Element:
    """The loss of one phase, on a scale of its own: a cross-entropy and a -log(mAP) are not to be compared."""
    total, kind = part["total"], "map" if part["phase"] == "map" else "nll"  # the class that colours it
    chart = _step_chart(f"Loss of phase {part['phase']}", [total["values"]], total["steps"])
    for name, term in part["terms"].items():
        chart.line(f"{kind} term", term["mean_steps"], term["mean"], f"{name}, moving mean")
    _draw_series(chart, total, kind, f"{key}/total")
    names = [("each step", f"{kind} raw"), ("moving mean", kind)]
    draw_legend(chart, names + [("its terms", f"{kind} term")] * bool(part["terms"]))
    return chart.svg


def map_chart(run: Numbers) -> Element | None:
    """mAP on the validation images and on each minibatch."""
    batch, validated = run["batch_map"], run["validation"]
    series = [*validated.values(), *([batch] if batch else [])]
    if not series:
        return None
    steps = [step for points in series for step in points["steps"]]
    bounds = [phase[end] for phase in run["phases"] for end in ("first", "last")]
    values = [[0.0], *(points["values"] for points in series)]
    chart = _step_chart("mAP in per cent over steps", values, [*steps, *bounds], percent_text)
    _draw_phases(chart, run["phases"])
    names = []
    if batch:
        _draw_series(chart, batch, "batch", "/run/batch_map")
        names.append(("minibatch", "batch"))
    for k, (name, points) in enumerate(validated.items()):
        kind = f"val val{k % 3}"
        chart.line(kind, points["steps"], points["values"], data_line=f"/run/validation/{escape_key(name)}/values")
        _draw_validations(chart, points, f"{kind} point", name, run["best_step"] if k == 0 else None)
        names.append((name, f"{kind} point"))
    draw_legend(chart, names)
    return chart.svg


def nonzero_chart(run: Numbers) -> Element | None:
    """The share of scores that got a gradient."""
    part = run["nonzero"]
    if not part:
        return None
    chart = _step_chart("Share of scores with a gradient", [part["values"], [0.0]], part["steps"])
    _draw_series(chart, part, "map", "/run/nonzero")
    draw_legend(chart, [("each step", "map raw"), ("moving mean", "map")])
    return chart.svg


def sums_chart(run: Numbers) -> Element | None:
    """Sums of the positive gradients, which push scores down, and of the negative ones."""
    names = {"positive": "positive: scores down", "negative": "negative: scores up"}
    parts = {kind: part for kind in names if (part := run[f"{kind}_sum"])}
    if not parts:
        return None
    steps = [step for part in parts.values() for step in part["steps"]]
    values = [[0.0], *(part["values"] for part in parts.values())]
    chart = _step_chart("Sums of positive and of negative gradients", values, steps)
    chart.line("zero", chart.x_range, [0, 0])
    for kind, part in parts.items():
        _draw_series(chart, part, kind, f"/run/{kind}_sum")
    draw_legend(chart, [(names[kind], kind) for kind in parts])
    return chart.svg


def _step_chart(
    title: str,
    values: Iterable[Sequence[float]],
    steps: Sequence[float],
    y_text: Callable[[float], str] = tick_text,
) -> Chart:
    """Axes that hold all values, rounded outward a little."""
    every = [value for line in values for value in line]
    low, high = min(every), max(every)
    room = 0.06 * (high - low) or max(abs(high) * 0.1, 0.05)
    bottom, top = low if low == 0.0 else low - room, high + room
    left = max(46.0, 12 + DIGIT * max(len(tick_text(value)) for value in ticks(bottom, top)))
    return large_chart(title, (min(steps), max(steps)), (bottom, top), "step", left=left, y_text=y_text)


def _draw_series(chart: Chart, part: Numbers, kind: str, key: str) -> None:
    """The values as they were logged, faint, and their moving mean."""
    chart.line(f"{kind} raw", part["steps"], part["values"], data_line=f"{key}/values")
    chart.line(kind, part["mean_steps"], part["mean"], data_line=f"{key}/mean")


def _draw_validations(chart: Chart, points: Numbers, kind: str, name: str, best: int | None) -> None:
    """A point each, with its number as a tooltip; the best one ringed."""
    for k, (step, value) in enumerate(zip(points["steps"], points["values"], strict=True)):
        if step == best:
            chart.point("ring", step, value, 7)
        key = {"data_key": f"/run/validation/{escape_key(name)}/values/{k}", "data_value": repr(value)}
        words = f"step {step}: {name} mAP {per_cent(value, 2)}{' (best)' if step == best else ''}"
        chart.point(kind, step, value, 3.5, words, **key)


def _draw_phases(chart: Chart, phases: Sequence[Numbers]) -> None:
    """A dashed line where a phase begins, and its name."""
    for phase in phases if len(phases) > 1 else []:
        if phase is not phases[0]:
            chart.line("bound", [phase["first"]] * 2, chart.y_range)
        chart.text(str(phase["name"]), "legend", chart.x(phase["first"]) + 5, chart.top + 11)
