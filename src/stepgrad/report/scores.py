"""What scores are worth: hits and false alarms by score, precision, recall and F1 by score, and calibration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np
from numpy.typing import NDArray

from stepgrad.metric.list_metric import f1_of
from stepgrad.number_text import per_cent
from stepgrad.report.findings import STEPS, Findings, are_probabilities
from stepgrad.report.numbers import Numbers
from stepgrad.report.svg import Chart, draw_bars, draw_counts, draw_legend, large_chart, panel, say_empty, thin

BARS = 20
"""Bars of the histogram of scores."""
BINS = 10
"""Points of the calibration curve."""
ENOUGH = 30
"""Detections of a point from which its share of right ones is known to 10 points or so: sqrt(0.25 / 30) = 0.09."""
RATES = {"F1": "arm hue0 dash0", "precision": "arm hue1 dash1", "recall": "arm hue2 dash2"}
"""The lines of a chart by score, and the look of each."""


def describe_scores(findings: Findings) -> dict[str, Any]:
    """Rates at the best scores, and counts by score, from which follow precision, recall and F1."""
    common = findings.common_level()
    hits, alarms = findings.counts(findings.right), findings.counts(findings.wrong)
    return {
        "working": {"thresholds": [cut.threshold for cut in findings.cuts], **findings.rates(findings.passing)},
        "common": {
            "level": common,
            "threshold": float(findings.values[common]),
            **findings.rates(findings.levels >= common),
        },
        "by_score": {
            "scores": findings.values.tolist(),
            "right": _reaching(hits).tolist(),
            "wrong": _reaching(alarms).tolist(),
        },
        "scores": {
            "from": float(findings.values[0]),
            "to": float(findings.values[-1]),
            "hits": _bars(hits.sum(axis=0)),
            "alarms": _bars(alarms.sum(axis=0)),
        },
        "calibration": calibration(findings),
    }


def _reaching(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many detections reach each level, from how many have it as their highest."""
    return np.cumsum(counts[:, ::-1], axis=1)[:, ::-1]


def _bars(counts: NDArray[np.int64]) -> list[int]:
    """Counts in bars of equal width; the last one has the highest score in it too."""
    wide: list[int] = counts[:STEPS].reshape(BARS, -1).sum(axis=1).tolist()
    wide[-1] += int(counts[STEPS])
    return wide


def calibration(findings: Findings) -> dict[str, Any] | None:
    """Mean score against the share that is right, by score; None where scores are no probabilities.

    `error` is the expected calibration error: the mean distance between the two, every detection counting alike. Most
    detections have scores near 0, so it can be small where high scores are far off. `worst` is the place of the point that is
    furthest off among those with enough detections to say so, None where no point has.
    """
    counted = findings.right | findings.wrong
    scores, right = findings.evidence.detections.scores[counted], findings.right[counted]
    if not (len(scores) and are_probabilities(findings.evidence.detections.scores)):
        return None
    places = np.minimum((scores * BINS).astype(np.int64), BINS - 1)
    points = [
        {"count": int(np.count_nonzero(of)), "score": float(scores[of].mean()), "right": float(right[of].mean())}
        for of in (places == place for place in range(BINS))
        if of.any()
    ]
    error = sum(point["count"] * abs(point["score"] - point["right"]) for point in points) / len(scores)
    sure = [k for k, point in enumerate(points) if point["count"] >= ENOUGH]
    worst = max(sure, key=lambda k: abs(points[k]["score"] - points[k]["right"]), default=None)
    return {"points": points, "count": len(scores), "error": error, "worst": worst}


def score_chart(scores: Numbers, threshold: float) -> Element | None:
    """Two bars per range of scores: hits, false alarms. Heights are square roots, so that few hits among many show."""
    most = max([*scores["hits"], *scores["alarms"]])
    if most == 0:
        return None
    low, high, bars = scores["from"], scores["to"], len(scores["hits"])
    chart = large_chart("Hits and false alarms by score", (low, high), (0, most**0.5), "score", left=52, y_text=None)
    draw_counts(chart, most)
    for side, (name, word) in enumerate((("hits", "hits"), ("alarms", "false alarms"))):
        words = [f"from score {low + (high - low) * k / bars:.2f}: {n} {word}" for k, n in enumerate(scores[name])]
        draw_bars(chart, scores[name], f"{name} bar", f"/scores/{name}", words, (0.08 + 0.42 * side, 0.42))
    chart.line("bound", [threshold] * 2, chart.y_range)
    draw_legend(chart, [("hits", "hits"), ("false alarms", "alarms")])
    return chart.svg


def rates_chart(by_score: Numbers, objects: int, common: Numbers) -> Element | None:
    """Precision, recall and F1 of all classes together over the score from which detections count."""
    right, wrong = (np.array(by_score[side]).sum(axis=0) for side in ("right", "wrong"))
    if not objects or not right.any():
        return None
    title = "Precision, recall and F1 over the score from which detections count"
    chart = large_chart(title, _ends(by_score), (0, 1), "score")
    key = {"data_key": "/common/f1", "data_value": repr(common["f1"])}
    _draw_rates(chart, by_score["scores"], right, wrong, {**common, "objects": objects}, **key)
    draw_legend(chart, list(RATES.items()))
    return chart.svg


def rates_panel(by_score: Numbers, label: int, row: Numbers) -> Element:
    """The same for one class, with its own best F1."""
    chart = panel(f"Precision, recall and F1 of {row['name']} over the score", _ends(by_score))
    if row["threshold"] is None:
        say_empty(chart, row["objects"])
    else:
        right, wrong = (np.array(by_score[side][label]) for side in ("right", "wrong"))
        _draw_rates(chart, by_score["scores"], right, wrong, row)
    return chart.svg


def _ends(by_score: Numbers) -> tuple[float, float]:
    return by_score["scores"][0], by_score["scores"][-1]


def _draw_rates(
    chart: Chart,
    scores: Sequence[float],
    right: NDArray[np.int64],
    wrong: NDArray[np.int64],
    best: Numbers,
    **key: str,
) -> None:
    """The three lines, precision as far as there are detections, and a ring at the best F1 with its number and score."""
    left = np.flatnonzero(right + wrong)
    lines = {
        "F1": f1_of(right, right + wrong, best["objects"]),
        "precision": right[left] / (right + wrong)[left],
        "recall": right / best["objects"],
    }
    for name, kind in reversed(RATES.items()):
        xs, ys = thin(np.array(scores)[: len(lines[name])], lines[name])
        chart.line(kind, xs.tolist(), ys.tolist())
    words = f"F1 {per_cent(best['f1'])} at {best['threshold']:.3g}, the best"
    chart.point("hue0 point", best["threshold"], best["f1"], 4, words, **key)


def calibration_chart(calibration: Numbers) -> Element:
    """The share that is right over the mean score, with the line where both are equal."""
    chart = large_chart("Share of detections that are right over their score", (0, 1), (0, 1), "score")
    chart.line("bound", [0, 1], [0, 1])
    points = calibration["points"]
    if len(points) > 1:
        chart.line("map", [point["score"] for point in points], [point["right"] for point in points])
    for k, point in enumerate(points):
        key = {"data_key": f"/calibration/points/{k}/right", "data_value": repr(point["right"])}
        words = f"{point['count']} detections, mean score {point['score']:.2f}: {per_cent(point['right'])} % right"
        chart.point("map point", point["score"], point["right"], 4, words, **key)
    draw_legend(chart, [("share that is right", "map"), ("perfect calibration", "bound")])
    return chart.svg
