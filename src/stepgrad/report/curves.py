"""Precision over recall: the curve of each class, and those of several detectors on one axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np

from stepgrad.evaluation.class_result import ClassResult
from stepgrad.evaluation.result import EvaluationResult
from stepgrad.metric.protocol import Protocol
from stepgrad.number_text import per_cent
from stepgrad.report.numbers import Numbers
from stepgrad.report.svg import Chart, element, large_chart, panel, say_empty, thin

LEVELS = 101
"""Recalls at which curves of several detectors are read, 0 and 1 among them."""
STRICT_IOU = 0.75
"""The second threshold that these are drawn at, or the one nearest to it."""
LEGEND_LINE = 20
LONGEST_NAME = 46
"""Letters of an arm's name that have room in a legend or a sentence; a tooltip has them all."""


def describe_curves(result: EvaluationResult) -> dict[str, Any]:
    """The curves of all classes at the first match threshold, with the APs that belong to them."""
    iou = result.protocol.match_thresholds[0]
    return {
        "iou": iou,
        "names": [f"AP{100 * iou:g}", ap_name(result.protocol)],
        "aps": [row.ap_by_threshold[iou] if row.objects else None for row in result.classes],
        "classes": [describe_curve(row, iou) for row in result.classes],
    }


def ap_name(protocol: Protocol) -> str:
    """AP under a protocol, named after its IoU thresholds.

    >>> from stepgrad.metric.protocol import COCO, VOC12
    >>> ap_name(COCO), ap_name(VOC12)
    ('AP50:95', 'AP50')
    """
    ends = dict.fromkeys(f"{100 * protocol.match_thresholds[end]:.3g}" for end in (0, -1))
    return f"AP{':'.join(ends)}"


def describe_curve(row: ClassResult, threshold: float) -> dict[str, list[float]]:
    """Precision and recall, and the best precision at each recall or beyond (whose area is AP), thinned."""
    curve = row.curve(threshold)
    if row.objects == 0 or not curve.recall[-1:].any():
        return {"recall": [], "precision": [], "best_recall": [], "best_precision": []}
    recall, precision = thin(curve.recall, curve.precision)
    # A staircase: level up to each recall, then down to the next best precision.
    steps = np.flatnonzero(np.append(np.diff(curve.interpolated) != 0, True))
    ends, heights = curve.recall[steps], curve.interpolated[steps]
    best_recall = np.append(np.column_stack([np.append(0.0, ends[:-1]), ends]).ravel(), ends[-1])
    best_recall, best = thin(best_recall, np.append(np.repeat(heights, 2), 0.0))
    return {
        "recall": recall.tolist(),
        "precision": precision.tolist(),
        "best_recall": best_recall.tolist(),
        "best_precision": best.tolist(),
    }


def curve_panel(curve: Numbers, row: Numbers) -> Element:
    """Precision over recall of one class."""
    chart = panel(f"Precision over recall of {row['name']}")
    if not curve["recall"]:
        say_empty(chart, row["objects"])
        return chart.svg
    area = chart.path([0.0, *curve["best_recall"]], [0.0, *curve["best_precision"]])
    element(chart.svg, "path", class_="area", d=area)
    element(chart.svg, "path", class_="pr raw", d=chart.path(curve["recall"], curve["precision"]))
    element(chart.svg, "path", class_="pr", d=chart.path(curve["best_recall"], curve["best_precision"]))
    return chart.svg


def compare_curves(results: Sequence[EvaluationResult], reference: int, chosen: int) -> list[dict[str, Any]]:
    """Precision at evenly spaced recalls, for one or two IoU thresholds: mean over classes, then class by class."""
    return [_curves_at(iou, results, reference, chosen) for iou in curve_thresholds(results[0].protocol)]


def curve_thresholds(protocol: Protocol) -> list[float]:
    """The first match threshold and, of several, the one nearest to 0.75.

    >>> from stepgrad.metric.protocol import COCO, VOC12
    >>> curve_thresholds(COCO), curve_thresholds(VOC12)
    ([0.5, 0.75], [0.5])
    """
    thresholds = protocol.match_thresholds
    return list(dict.fromkeys([thresholds[0], min(thresholds, key=lambda t: abs(t - STRICT_IOU))]))


def _curves_at(iou: float, results: Sequence[EvaluationResult], reference: int, chosen: int) -> dict[str, Any]:
    by_class = list(zip(*(result.classes for result in results), strict=True))  # one row per detector
    curves = [[_precision_at_levels(row, iou, results[0].protocol) for row in rows] for rows in by_class]
    return {
        "iou": iou,
        "maps": [result.map_at(iou) for result in results],
        "mean": [_mean_over_classes([lines[k] for lines in curves]) for k in range(len(results))],
        "classes": [
            _class_curves(rows, iou, lines, reference, chosen) for rows, lines in zip(by_class, curves, strict=True)
        ],
    }


def _mean_over_classes(lines: Sequence[list[float] | None]) -> list[float] | None:
    """The mean over the classes that have objects; None if none has."""
    present = [line for line in lines if line is not None]
    return [fmean(values) for values in zip(*present, strict=True)] if present else None


def _precision_at_levels(row: ClassResult, iou: float, protocol: Protocol) -> list[float] | None:
    """The best precision at each recall or beyond, 0 where it is never reached; None for a class without objects."""
    if row.objects == 0:
        return None
    curve = row.curve(iou)
    counts, _ = replace(protocol, recall_levels=LEVELS).level_counts(row.objects)
    needed = np.repeat(np.arange(len(counts)), counts)  # true positives that each level asks for
    true_positives = np.rint(curve.recall * row.objects)
    best = np.append(curve.interpolated, 0.0)[np.searchsorted(true_positives, needed)]
    return [float(value) for value in best]


def _class_curves(
    rows: Sequence[ClassResult], iou: float, lines: Sequence[list[float] | None], reference: int, chosen: int
) -> dict[str, Any]:
    aps = [row.ap_by_threshold[iou] if row.objects else None for row in rows]
    before, after = aps[reference], aps[chosen]
    return {
        "name": rows[0].name,
        "objects": rows[0].objects,
        "aps": aps,
        "change": None if before is None or after is None or chosen == reference else after - before,
        "precision": lines,
    }


def arms_chart(curves: Numbers, key: str, names: Sequence[str], styles: Sequence[int], overlap: str = "IoU") -> Element:
    """Precision over recall of several arms, the mean over classes, with a legend that has a line for each."""
    maps = [(name, "" if value is None else per_cent(value)) for name, value in zip(names, curves["maps"], strict=True)]
    spoken = "; ".join(f"{name}: mAP {value or 'none'}" for name, value in maps)
    title = f"Precision over recall, mean over classes, at {overlap} {curves['iou']:g}. {spoken}"
    chart = large_chart(title, (0, 1), (0, 1), "recall", top=26.0 + LEGEND_LINE * len(names), plot=300)
    chart.text("precision", "tick", 4, chart.top - 8)
    for line, (k, style) in enumerate(_in_order(styles)):
        at = 14 + LEGEND_LINE * line
        element(chart.svg, "line", class_=_look(style), x1=chart.left, x2=chart.left + 36, y1=at - 4, y2=at - 4)
        chart.text(shortened(names[k]), "legend", chart.left + 44, at, names[k])
        if curves["maps"][k] is not None:
            value = {"data_key": f"{key}/maps/{k}", "data_value": repr(curves["maps"][k])}
            chart.text(maps[k][1], "legend end", chart.left + chart.width, at, **value)
    _draw_arms(chart, curves["mean"], styles, objects=0)
    return chart.svg


def arms_panel(curves: Numbers, styles: Sequence[int]) -> Element:
    """Precision over recall of one class, for several arms."""
    chart = panel(f"Precision over recall of {curves['name']}")
    _draw_arms(chart, curves["precision"] if any(curves["aps"]) else [None], styles, curves["objects"])
    return chart.svg


def arm_swatch(style: int) -> Element:
    """A piece of an arm's line, for a list next to the charts."""
    svg = element(None, "svg", xmlns="http://www.w3.org/2000/svg", viewBox="0 0 36 8", aria_hidden="true")
    element(svg, "line", class_=_look(style), x1=0, x2=36, y1=4, y2=4)
    return svg


def _draw_arms(chart: Chart, lines: Sequence[Any], styles: Sequence[int], objects: int) -> None:
    """The lines, the first style last and so on top; None among them stands for nothing to draw."""
    if None in lines:
        say_empty(chart, objects)
        return
    for k, style in reversed(_in_order(styles)):
        recall, precision = thin(np.linspace(0, 1, len(lines[k])), np.array(lines[k]))
        chart.line(_look(style), recall.tolist(), precision.tolist())


def _in_order(styles: Sequence[int]) -> list[tuple[int, int]]:
    """(arm, style) by style: the chosen arm and the reference come first."""
    return sorted(enumerate(styles), key=lambda pair: pair[1])


def _look(style: int) -> str:
    """Six colours and five dash patterns: no two of thirty arms look the same."""
    return f"arm hue{style % 6} dash{style % 5}"


def shortened(name: str) -> str:
    """A name that leaves room for others."""
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"
