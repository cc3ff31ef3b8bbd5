"""The page: a template filled from the numbers of the report, and from nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.resources import files
from itertools import pairwise
from typing import Any
from xml.etree.ElementTree import Element

import jinja2
import yaml
from markupsafe import Markup, escape

from stepgrad.number_text import is_share, per_cent
from stepgrad.report.charts import Numbers, curve_panel, escape_key, loss_charts, map_chart, nonzero_chart, sums_chart
from stepgrad.report.diagnosis import ENOUGH
from stepgrad.report.image_data import as_script
from stepgrad.report.matrix import confusion_table, frequent_pairs
from stepgrad.report.objects import object_charts
from stepgrad.report.score_charts import calibration_chart, rates_chart, rates_panel, score_chart
from stepgrad.report.svg import element, markup, printable


class _ConfigDumper(yaml.SafeDumper):
    """Writes one key per line, lists included."""


_ConfigDumper.add_representer(
    list, lambda dumper, values: dumper.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=True)
)


def render(numbers: Numbers, images: Mapping[str, Any], name: str, with_plots: bool) -> str:
    """The page as text; `images` feeds the browser over them, `name` is that of the page without its suffix."""
    compared = _compared_protocols(numbers)
    calibration = numbers["calibration"]
    gains = numbers["mistakes"]["gains"]
    return fill_template(
        "page.html.jinja",
        numbers,
        name=name,
        with_plots=with_plots,
        image_data=as_script(images),
        least_drawn=images["scores"][images["least"]] if images["least"] else None,
        has_pictures=any(image["src"] for image in images["images"]),
        compared=compared,
        winners=_winners(numbers["comparison"], compared),
        charts=[{"heading": heading, "svg": inline(svg)} for heading, svg in _headed_charts(numbers["run"])],
        map_chart=inline(map_chart(numbers["run"])),
        unlogged=_unlogged(numbers["run"]),
        validated_steps=sorted({step for points in numbers["run"]["validation"].values() for step in points["steps"]}),
        panels={
            name: [
                inline(curve_panel(curve, row["name"], "no objects" if row["objects"] == 0 else "none found"))
                for row, curve in zip(numbers["classes"], numbers["curves"][name]["classes"], strict=True)
            ]
            for name in numbers["protocols"]
        },
        rate_panels=[
            inline(rates_panel(numbers["by_score"], label, row, "no objects" if row["objects"] == 0 else "none found"))
            for label, row in enumerate(numbers["classes"])
        ],
        headings=["class", "objects", "detections", "recall", "best F1", "at score"]
        + [f"{numbers['curves'][name]['names'][1]}, {name}" for name in numbers["protocols"]],
        kinds=sorted(gains, key=lambda kind: -(gains[kind] or 0.0)),
        most_gained=max([gain or 0.0 for gain in gains.values()]),
        kind_of_metric=lambda metric: "points" if is_share(metric) else "cost",
        breakable=breakable,
        meaning=MEANINGS,
        enough=ENOUGH,
        matrix=confusion_table(numbers),
        pairs=frequent_pairs(numbers),
        score_chart=inline(score_chart(numbers["scores"], numbers["common"]["threshold"])),
        rates_chart=inline(rates_chart(numbers["by_score"], numbers["dataset"]["objects"], numbers["common"])),
        object_charts=[{"heading": heading, "svg": inline(svg)} for heading, svg in object_charts(numbers["objects"])],
        calibration_chart=inline(calibration_chart(calibration) if calibration else None),
    )


def breakable(name: str) -> Markup:
    """The name of a metric, with places where a narrow tile may break it.

    >>> str(breakable("f1@threshold=0.25"))
    'f1@<wbr>threshold=<wbr>0.25'
    """
    return Markup(re.sub("(?<=[@,=])", "<wbr>", str(escape(printable(name)))))


MEANINGS = {
    "box": "on an object of its class, but overlapping too little",
    "class": "on an object of another class",
    "duplicate": "on an object that a better detection has found",
    "background": "on nothing",
    "both": "of the wrong class, and overlapping too little",
    "missed": "an object not found, and not part of another mistake",
}
"""Each type of mistake, after the word for it."""


def fill_template(template: str, numbers: Numbers, **parts: Any) -> str:
    """A page of these numbers, its text escaped; `parts` is what else the template needs."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_asset),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    return environment.get_template(template).render(
        r=numbers,
        num=partial(number_markup, numbers),
        esc=escape_key,
        config_text=yaml.dump(
            numbers["config"], Dumper=_ConfigDumper, sort_keys=False, allow_unicode=True, width=10**6
        ),
        **{name: Markup(_asset(file)) for name, file in ASSETS.items()},
        **parts,
    )


ASSETS = {
    "theme": "theme.css",
    "chart_style": "chart.css",
    "style": "style.css",
    "script": "sort.js",
    "marks_script": "marks.js",
    "images_script": "images.js",
    "images_style": "images.css",
}


def _asset(name: str) -> str:
    return files("stepgrad.report").joinpath(name).read_text(encoding="utf-8")


def inline(svg: Element | None) -> Markup:
    """The chart as a part of a page."""
    return Markup("") if svg is None else Markup(markup(svg))


def plots(numbers: Numbers) -> dict[str, str]:
    """The charts as SVG files: name and text, each with its own style."""
    run = numbers["run"]
    named: dict[str, Element | None] = {
        **loss_charts(run),
        "map": map_chart(run),
        "nonzero": nonzero_chart(run),
        "gradient-sums": sums_chart(run),
    }
    return {f"{name}.svg": standalone(svg) for name, svg in named.items() if svg is not None}


def standalone(svg: Element) -> str:
    """The chart as a file of its own, with its style."""
    background = element(None, "rect", width="100%", height="100%", style="fill: var(--card)")
    style = element(None, "style", _asset("theme.css") + _asset("chart.css"))
    svg.insert(0, background)
    svg.insert(0, style)
    return markup(svg)


def _headed_charts(run: Numbers) -> list[tuple[str, Element]]:
    losses = zip(run["loss"], loss_charts(run).values(), strict=True)
    headed: list[tuple[str, Element | None]] = [
        *((f"Loss, phase {part['phase']}", svg) for part, svg in losses),
        ("Share of scores with a gradient", nonzero_chart(run)),
        ("Sum of the gradient of scores", sums_chart(run)),
    ]
    return [(heading, svg) for heading, svg in headed if svg is not None]


def _unlogged(run: Numbers) -> list[str]:
    """Sentences that say why a chart is missing."""
    notes = []
    if run["loss"] and not run["validation"]:
        notes.append("No validation was logged.")
    if run["loss"] and not run["nonzero"]:
        notes.append("No training step for mAP was logged, so there are no charts of gradients.")
    return notes


def _compared_protocols(numbers: Numbers) -> list[str]:
    """Protocols of the report first, then any others that a row brings."""
    named = [name for row in numbers["comparison"] for name in row["maps"]]
    return list(dict.fromkeys([name for name in numbers["protocols"] if name in named] + named))


def _winners(rows: Sequence[Numbers], compared: Sequence[str]) -> list[str]:
    """Names of the rows with the largest mAP under the first protocol; none if there is only one row."""
    maps = [(row["maps"].get(compared[0]), row["name"]) for row in rows] if compared else []
    measured = [(value, name) for value, name in maps if value is not None]
    return [name for value, name in measured if value == max(measured)[0]] if len(measured) > 1 else []


def look_up(numbers: Any, key: str) -> Any:
    """The value that a JSON Pointer points at; None where there is nothing.

    >>> look_up({"maps": [0.5]}, "/maps/0")
    0.5
    """
    for step in key.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        numbers = numbers[int(name)] if isinstance(numbers, list) else numbers.get(name)
    return numbers


def number_markup(numbers: Numbers, key: str, kind: str = "points") -> Markup:
    """The number at that key: rounded to read, exact in `value`, and its key for whoever wants to check it."""
    value = look_up(numbers, key)
    if value is None:
        return Markup('<span data-key="{}">–</span>').format(key)
    return Markup('<data value="{}" data-key="{}" data-kind="{}">{}</data>').format(
        json.dumps(value), key, kind, number_text(value, kind)
    )


def number_text(value: float, kind: str) -> str:
    """A number to read.

    >>> number_text(0.72138, "points"), number_text(12345, "count"), number_text(0.05, "gain"), number_text(252, "duration")
    ('72.1', '12\\u202f345', '+5.0', '4 min 12 s')
    """
    if kind == "count":
        return f"{value:,}".replace(",", "\u202f")
    if kind == "duration":
        return duration_text(value)
    if kind in ("points", "gain"):
        return per_cent(value, sign=kind == "gain")
    return {"hundredths": "{:.2f}", "short": "{:.3g}", "cost": "{:.4g}"}[kind].format(value)


def duration_text(seconds: float) -> str:
    """Two units at most.

    >>> duration_text(7.25), duration_text(59.97), duration_text(4000), duration_text(200000)
    ('7.2 s', '1 min 0 s', '1 h 7 min', '2 d 8 h')
    """
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    for (large, many), (small, few) in pairwise(units):
        if round(seconds / few) * few >= many:
            whole, rest = divmod(round(seconds / few), many // few)
            return f"{whole} {large} {rest} {small}"
    raise AssertionError("a minute is the least left here")
