"""How far scores can be trusted: calibration error, and precision where scores pass a threshold."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stepgrad.deploy.ranked import RankedList
from stepgrad.evaluation.intervals import Interval, interval_of
from stepgrad.evaluation.plots import save_figure
from stepgrad.extras import need
from stepgrad.number_text import per_cent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]
BINS = 15
SHOWN = (0.25, 0.5, 0.75)
"""Thresholds at which precision is told."""
LEAST = 0.05
"""Of what scores less a detector has thousands, all wrong; they would hide the error of all others."""


@dataclass(frozen=True)
class AtThreshold:
    """Detections that reach a fixed threshold."""

    threshold: float
    passing: int
    said: float
    """The mean of their scores: the precision that they promise."""
    precision: float
    interval: Interval


@dataclass(frozen=True, eq=False)
class Reliability:
    """Expected calibration error over 15 bins of equal width, of scores from 0.05 on, and precision at fixed thresholds."""

    error: float
    interval: Interval
    at: tuple[AtThreshold, ...]
    counts: Floats  # (bins,) detections
    said: Floats  # (bins,) their mean score; nan in an empty bin
    right: Floats  # (bins,) the share of right ones

    def heads(self) -> list[str]:
        """What `cells` tells."""
        return [
            "calibration error (ECE)",
            *(f"precision of scores >= {one.threshold:g} (mean score; detections)" for one in self.at),
        ]

    def cells(self) -> list[str]:
        """Each number with its interval."""
        precise = (
            f"{_sure(one.precision, one.interval)} ({per_cent(one.said)}; {one.passing})" if one.passing else "-"
            for one in self.at
        )
        return [_sure(self.error, self.interval), *precise]

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for json."""
        return {
            "ece": _or_none(self.error),
            "interval": self.interval.to_list(),
            "least_score": LEAST,
            "at": [
                {
                    "threshold": one.threshold,
                    "detections": one.passing,
                    "mean_score": _or_none(one.said),
                    "precision": _or_none(one.precision),
                    "interval": one.interval.to_list(),
                }
                for one in self.at
            ],
            "bins": [
                {"detections": int(n), "mean_score": _or_none(s), "precision": _or_none(r)}
                for n, s, r in zip(self.counts, self.said, self.right, strict=True)
            ],
        }


def reliability_of(ranked: RankedList, weights: NDArray[np.uint8], level: float) -> Reliability:
    """How far the scores of a list, all in [0, 1], can be trusted; `weights` (R, units) draw the units anew."""
    units = weights.shape[1]
    bins = np.minimum((ranked.scores * BINS).astype(np.int64), BINS - 1)
    counted = ranked.scores >= LEAST
    columns = np.ones(len(bins)), ranked.scores, ranked.hits.astype(np.float64)
    sums = [np.zeros((units, BINS)) for _ in columns]
    for total, column in zip(sums, columns, strict=True):
        np.add.at(total, (ranked.units[counted], bins[counted]), column[counted])
    count, said, right = (total.sum(axis=0) for total in sums)
    drawn = [weights.astype(np.float64) @ total for total in sums]
    error = float(_errors(*(total[None] for total in (count, said, right)))[0])
    with np.errstate(invalid="ignore"):
        return Reliability(
            error,
            interval_of(_errors(*drawn), level, error),
            tuple(_at(ranked, threshold, weights, level) for threshold in SHOWN),
            count,
            said / count,
            right / count,
        )


def _errors(count: Floats, said: Floats, right: Floats) -> Floats:
    """(R,) the mean distance of score and precision, from (R, bins) sums; nan without detections."""
    total = count.sum(axis=1)
    return np.divide(np.abs(said - right).sum(axis=1), total, out=np.full(len(total), np.nan), where=total > 0)


def _at(ranked: RankedList, threshold: float, weights: NDArray[np.uint8], level: float) -> AtThreshold:
    passing = ranked.passing(threshold)
    counts = ranked.counts(passing, weights.shape[1])[:2]
    right, all_of_them = counts @ weights.T.astype(np.float64)
    shares = np.divide(right, all_of_them, out=np.full(len(right), np.nan), where=all_of_them > 0)
    number = int(np.count_nonzero(passing))
    precision = float(ranked.hits[passing].mean()) if number else math.nan
    said = float(ranked.scores[passing].mean()) if number else math.nan
    return AtThreshold(threshold, number, said, precision, interval_of(shares, level, precision))


def plot_reliability(before: Reliability | None, after: Reliability, path: str | Path | None = None) -> Figure:
    """The share of right detections against their score, before and after; below it how many there are."""
    need("matplotlib.figure", purpose="plots")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.8, 5.4), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[4, 1])
    above.plot([0, 1], [0, 1], color="#9aa5b1", linewidth=0.8, linestyle="--")
    for name, colour, found in (("before", "#c0562b", before), ("after", "#1f5fa8", after)):
        if found is not None:
            there = found.counts > 0
            label = f"{name}: ECE {per_cent(found.error)}"
            above.plot(found.said[there], found.right[there], "o-", color=colour, label=label, markersize=4)
            below.step(np.arange(BINS + 1) / BINS, [*found.counts, found.counts[-1]], where="post", color=colour)
    above.set(ylabel="precision", xlim=(0, 1), ylim=(0, 1))
    above.legend(frameon=False)
    below.set(xlabel="score", ylabel="detections", yscale="symlog")
    if path is not None:
        save_figure(figure, Path(path))
    return figure


def _sure(value: float, interval: Interval) -> str:
    if math.isnan(value):
        return "-"
    return per_cent(value) + ("" if math.isnan(interval.low) else f" ({interval.text()})")


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
