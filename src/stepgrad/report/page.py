"""The page: a template filled from the numbers of the report, and from nothing else."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from importlib.resources import files
from typing import Any
from xml.etree.ElementTree import Element

import jinja2
import yaml
from markupsafe import Markup, escape

from stepgrad.number_text import is_share
from stepgrad.report.confusion import confusion_table, frequent_pairs
from stepgrad.report.curves import curve_panel
from stepgrad.report.image_data import as_script
from stepgrad.report.numbers import Numbers, escape_key, number_markup, printable
from stepgrad.report.objects import object_charts
from stepgrad.report.scores import ENOUGH, calibration_chart, rates_chart, rates_panel, score_chart
from stepgrad.report.sentence import MISTAKES
from stepgrad.report.svg import element, markup
from stepgrad.report.training import training_charts


def render(numbers: Numbers, images: Mapping[str, Any], name: str, with_plots: bool) -> str:
    """The page as text; `images` feeds the browser over them, `name` is that of the page without its suffix."""
    run, classes, calibration = numbers["run"], numbers["classes"], numbers["calibration"]
    gains = numbers["mistakes"]["gains"]
    return fill_template(
        "page.html.jinja",
        numbers,
        name=name,
        with_plots=with_plots,
        image_data=as_script(images),
        least_drawn=images["scores"][images["least"]] if images["least"] else None,
        outlined=images["outlined"],
        has_pictures=any(image["src"] for image in images["images"]),
        charts=training_charts(run),
        validated_steps=sorted({step for points in run["validation"].values() for step in points["steps"]}),
        panels={
            name: [curve_panel(curve, row) for curve, row in zip(curves["classes"], classes, strict=True)]
            for name, curves in numbers["curves"].items()
        },
        rate_panels=[rates_panel(numbers["by_score"], label, row) for label, row in enumerate(classes)],
        kinds=sorted(gains, key=lambda kind: -(gains[kind] or 0.0)),
        most_gained=max(gain or 0.0 for gain in gains.values()),
        kind_of_metric=lambda metric: "points" if is_share(metric) else "cost",
        breakable=breakable,
        meaning=MISTAKES,
        enough=ENOUGH,
        matrix=confusion_table(numbers),
        pairs=frequent_pairs(numbers),
        score_chart=score_chart(numbers["scores"], numbers["common"]["threshold"]),
        rates_chart=rates_chart(numbers["by_score"], numbers["dataset"]["objects"], numbers["common"]),
        object_charts=object_charts(numbers["objects"]),
        calibration_chart=calibration_chart(calibration) if calibration else None,
    )


def breakable(name: str) -> Markup:
    """The name of a metric, with places where a narrow tile may break it.

    >>> str(breakable("f1@threshold=0.25"))
    'f1@<wbr>threshold=<wbr>0.25'
    """
    return Markup(re.sub("(?<=[@,=])", "<wbr>", str(escape(printable(name)))))


def standalone(svg: Element) -> str:
    """The chart as a file of its own, with its style."""
    background = element(None, "rect", width="100%", height="100%", style="fill: var(--card)")
    style = element(None, "style", _asset("theme.css") + _asset("chart.css"))
    svg.insert(0, background)
    svg.insert(0, style)
    return markup(svg)


def fill_template(template: str, numbers: Numbers, **parts: Any) -> str:
    """A page of these numbers, its text escaped and its charts inside; `parts` is what else the template needs."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_asset),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        finalize=_shown,
    )
    return environment.get_template(template).render(
        r=numbers,
        num=partial(number_markup, numbers),
        esc=escape_key,
        config_text=yaml.dump(
            numbers["config"], Dumper=_ConfigDumper, sort_keys=False, allow_unicode=True, width=10**6
        ),
        asset=lambda name: Markup(_asset(name)),
        **parts,
    )


def _shown(value: Any) -> Any:
    """What a template writes for a value: a chart as SVG, text without what a page cannot hold."""
    if isinstance(value, Element):
        return Markup(markup(value))
    return printable(value) if type(value) is str else value


class _ConfigDumper(yaml.SafeDumper):
    """Writes one key per line, lists included."""


_ConfigDumper.add_representer(
    list, lambda dumper, values: dumper.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=True)
)


def _asset(name: str) -> str:
    return files("stepgrad.report").joinpath(name).read_text(encoding="utf-8")
