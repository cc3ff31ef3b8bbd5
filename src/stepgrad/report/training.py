"""The training of a run, from its log: losses, mAP, and how the gradient of mAP behaved, in numbers and in charts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np

from stepgrad.number_text import per_cent
from stepgrad.report.numbers import Numbers, escape_key
from stepgrad.report.svg import DIGIT, Chart, Floats, draw_legend, large_chart, percent_text, thin, tick_text, ticks

Line = Mapping[str, Any]
MOST_POINTS = 400
MOST = 1e300  # numbers beyond it, and infinities, cannot be drawn


def current_lines(history: Sequence[Line], kind: str) -> list[Line]:
    """The lines of one kind, by step. Steps that a resumed run took again replace those of the first time.

    >>> lines = [{"kind": "train", "step": s, "try": t} for s, t in [(1, "a"), (2, "a"), (3, "a"), (2, "b")]]
    >>> [(line["step"], line["try"]) for line in current_lines(lines, "train")]
    [(1, 'a'), (2, 'b')]
    """
    kept: list[Line] = []
    for line in history:
        if not _is_whole_number(_of(line, "step")):
            continue
        if line.get("kind") == "start":
            while kept and kept[-1]["step"] > line["step"]:
                kept.pop()
        if line.get("kind") == kind:
            while kept and kept[-1]["step"] >= line["step"]:
                kept.pop()
            kept.append(line)
    return kept


def _of(line: Any, key: str) -> Any:
    return line.get(key) if isinstance(line, Mapping) else None


def _is_whole_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53


def number_in(line: Any, *keys: str) -> float | None:
    """The finite number under these keys, else None: whoever edits a log by hand may leave anything in it.

    >>> number_in({"losses": {"map": 0.5}}, "losses", "map")
    0.5
    """
    value = reduce(_of, keys, line)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < MOST:
        return None
    return value


def parts(line: Any, key: str) -> Line:
    """The dict that a line has under a key; empty where there is none."""
    value = _of(line, key)
    return value if isinstance(value, Mapping) else {}


def series(lines: Sequence[Line], *keys: str) -> dict[str, Any] | None:
    """Steps, the numbers under these keys and their moving mean, thinned; None if no line has such a number."""
    points = [(line["step"], value) for line in lines if (value := number_in(line, *keys)) is not None]
    if not points:
        return None
    steps, values = np.array(points, dtype=np.float64).T
    x, y = thin(steps, values, MOST_POINTS)
    smooth_x, smooth_y = thin(steps, smooth(values), MOST_POINTS)
    return {
        "steps": x.astype(int).tolist(),
        "values": y.tolist(),
        "mean_steps": smooth_x.astype(int).tolist(),
        "mean": smooth_y.tolist(),
    }


def phases_of(train: Sequence[Line], val: Sequence[Line]) -> list[dict[str, Any]]:
    """Name and first and last step of each phase, in order; a phase too short for a line of training has its validation."""
    phases: list[dict[str, Any]] = []
    for line in sorted([*train, *(line for line in val if "phase" in line)], key=lambda line: line["step"]):
        name = line.get("phase") if isinstance(line.get("phase"), str) else None
        if not phases or phases[-1]["name"] != name:
            phases.append({"name": name, "first": line["step"], "last": line["step"]})
        phases[-1]["last"] = line["step"]
    return phases


def losses(train: Sequence[Line], phases: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The loss of each phase, and its terms where there are several."""
    charted = []
    for phase in phases:
        lines = [line for line in train if phase["first"] <= line["step"] <= phase["last"]]
        total = series(lines, "loss")
        terms = sorted({term for line in lines for term in parts(line, "losses")})
        by_term = {term: series(lines, "losses", term) for term in terms}
        if total:
            charted.append({"phase": phase["name"], "total": total, "terms": by_term if len(terms) > 1 else {}})
    return charted


def validation(val: Sequence[Line], key: str = "map") -> dict[str, dict[str, list[Any]]]:
    """By protocol: steps and mAP; or, with the key "metrics", by metric: steps and its values."""
    names = list(dict.fromkeys(name for line in val for name in parts(line, key)))
    return {
        name: {"steps": [step for step, _ in points], "values": [value for _, value in points]}
        for name in names
        if (points := [(line["step"], v) for line in val if (v := number_in(line, key, name)) is not None])
    }


def summary(history: Sequence[Line], protocol: str) -> dict[str, Any]:
    """The curves and numbers of a run over its steps."""
    train, val = current_lines(history, "train"), current_lines(history, "val")
    phases = phases_of(train, val)
    validated = validation(val)
    return {
        "phases": phases,
        "loss": losses(train, phases),
        "validation": validated,
        "metrics": validation(val, "metrics"),
        "batch_map": series(train, "map"),
        **{key: series(train, key) for key in ("nonzero", "positive_sum", "negative_sum", "loss_share")},
        **_ending(history, train, val, validated.get(protocol, {"steps": [], "values": []})),
    }


def _ending(
    history: Sequence[Line], train: Sequence[Line], val: Sequence[Line], points: Mapping[str, list[Any]]
) -> dict[str, Any]:
    """Last step, training time and best step; what the log does not say outright is read off its other lines."""
    ends = current_lines(history, "end")
    last: Line = train[-1] if train else {}
    ended = ends[-1] if ends and ends[-1]["step"] >= last.get("step", 0) else {}
    keys = ("step", "seconds", "best_step", "best_map")
    end = {key: value for key in keys if (value := number_in(ended, key)) is not None}
    best = max(zip(points["values"], (-step for step in points["steps"]), strict=True), default=(None, None))
    return {
        "steps": end.get("step", max((line["step"] for line in (*train, *val)), default=None)),
        "seconds": end.get("seconds", number_in(last, "seconds")),
        "best_step": end.get("best_step", None if best[1] is None else -best[1]),
        "best_map": end.get("best_map", best[0]),
    }


def smooth(values: Floats, share: float = 0.08) -> Floats:
    """A centred moving mean over that share of the points, narrower at both ends.

    >>> smooth(np.array([0.0, 3.0, 0.0]), share=1.0)
    array([0., 1., 0.])
    """
    half = int(len(values) * share / 2)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    at = np.arange(len(values))
    reach = np.minimum(np.minimum(at, at[::-1]), half)
    return (sums[at + reach + 1] - sums[at - reach]) / (2 * reach + 1)


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
    chart = _step_chart(f"Loss of phase {part['phase']}", [total], from_zero=False)
    for name, term in part["terms"].items():
        chart.line(f"{kind} term", term["mean_steps"], term["mean"], f"{name}, moving mean")
    _draw_series(chart, total, kind, f"{key}/total")
    names = [("each step", f"{kind} raw"), ("moving mean", kind)]
    draw_legend(chart, names + [("its terms", f"{kind} term")] * bool(part["terms"]))
    return chart.svg


def map_chart(run: Numbers) -> Element | None:
    """mAP on the validation images and on each minibatch."""
    batch, validated = run["batch_map"], run["validation"]
    series = [*validated.values(), *filter(None, [batch])]
    if not series:
        return None
    bounds = [phase[end] for phase in run["phases"] for end in ("first", "last")]
    chart = _step_chart("mAP in per cent over steps", series, bounds, y_text=percent_text)
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
    chart = _step_chart("Share of scores with a gradient", [part])
    _draw_series(chart, part, "map", "/run/nonzero")
    draw_legend(chart, [("each step", "map raw"), ("moving mean", "map")])
    return chart.svg


def sums_chart(run: Numbers) -> Element | None:
    """Sums of the positive gradients, which push scores down, and of the negative ones."""
    names = {"positive": "positive: scores down", "negative": "negative: scores up"}
    parts = {kind: part for kind in names if (part := run[f"{kind}_sum"])}
    if not parts:
        return None
    chart = _step_chart("Sums of positive and of negative gradients", list(parts.values()))
    chart.line("zero", chart.x_range, [0, 0])
    for kind, part in parts.items():
        _draw_series(chart, part, kind, f"/run/{kind}_sum")
    draw_legend(chart, [(names[kind], kind) for kind in parts])
    return chart.svg


def _step_chart(
    title: str,
    series: Sequence[Numbers],
    more_steps: Sequence[int] = (),
    from_zero: bool = True,
    y_text: Callable[[float], str] = tick_text,
) -> Chart:
    """Axes that hold all steps and values, and zero if wanted, rounded outward a little."""
    steps = [*more_steps, *(step for points in series for step in points["steps"])]
    values = [*[0.0] * from_zero, *(value for points in series for value in points["values"])]
    low, high = min(values), max(values)
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
