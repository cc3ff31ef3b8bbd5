"""A ranked list, its precision/recall curve, and which moves of a false positive change AP."""

from __future__ import annotations

from dataclasses import dataclass

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

RANKED = "TFTFTTTFFFTF"  # by decreasing score; T = true positive, F = false positive
OBJECTS = 6

TRUE, FALSE, PLAIN, CHANGE, FILLED, UNDER = "#2a8f4f", "#c8373a", "#2f6fb5", "#e07b16", "#f6c6d3", "#cfdef0"


@dataclass(frozen=True)
class Move:
    """The detection at `rank` (from 0) rises until it stands before the one at `to`."""

    name: str
    rank: int
    to: float
    height: float

    def apply(self, ranked: str) -> str:
        """The list after the move; a move that ends between ranks changes no order."""
        place = int(np.ceil(self.to))
        rest = ranked[: self.rank] + ranked[self.rank + 1 :]
        return rest[:place] + ranked[self.rank] + rest[place:]


MOVES = (
    Move("a", 11, 10.5, 0.62),
    Move("b", 9, 7.7, 0.62),
    Move("c", 3, 1.55, 0.62),
    Move("d", 3, -0.45, 1.08),
    Move("e", 7, 5.55, 0.62),
)


def precisions(ranked: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Precision k / r_k of each true positive, and the interpolated p_k = max over l >= k."""
    ranks = np.flatnonzero(np.array(list(ranked)) == "T") + 1
    precision = np.arange(1, len(ranks) + 1) / ranks
    return precision, np.maximum.accumulate(precision[::-1])[::-1]


def average_precision(ranked: str, objects: int = OBJECTS) -> float:
    """Area under the filled-in curve: the mean of p_k over all objects, a missed one counting 0.

    >>> round(average_precision("TFTFTTTFFFTF"), 4)
    0.7338
    """
    return float(precisions(ranked)[1].sum() / objects)


def draw_pr_curve() -> Figure:
    figure, (strip, curve) = plt.subplots(2, 1, figsize=(7.6, 6.2), height_ratios=[1.0, 2.3])
    _draw_strip(strip)
    _draw_curve(curve)
    figure.tight_layout(h_pad=1.2)
    return figure


def _draw_strip(axis: Axes) -> None:
    for rank, kind in enumerate(RANKED):
        axis.plot([rank], [0], "o", markersize=17, color=TRUE if kind == "T" else FALSE)
        axis.text(rank, -0.01, "TP" if kind == "T" else "FP", color="white", ha="center", va="center", fontsize=7.5)
    for move in MOVES:
        color = CHANGE if _changes(move) else PLAIN
        axis.annotate(
            "",
            xy=(move.to, 0.30),
            xytext=(move.rank, 0.27),
            arrowprops={
                "arrowstyle": "-|>",
                "color": color,
                "linewidth": 1.5,
                "connectionstyle": f"arc3,rad={0.9 * move.height / max(1.0, move.rank - move.to):.3f}",
            },
        )
        label = (move.rank + move.to) / 2, 0.85 if move.name == "d" else 0.68
        axis.text(*label, move.name, color=color, ha="center", fontweight="bold")
    axis.text(6, -0.33, "f", ha="center", va="top", fontweight="bold")
    axis.annotate("", xy=(11.6, -0.75), xytext=(-0.6, -0.75), arrowprops={"arrowstyle": "-|>", "color": "#555555"})
    axis.text(5.5, -0.82, "decreasing score", color="#555555", ha="center", va="top")
    axis.set_xlim(-0.9, 11.9)
    axis.set_ylim(-1.15, 1.25)
    axis.axis("off")


def _changes(move: Move) -> bool:
    return average_precision(move.apply(RANKED)) != average_precision(RANKED)


def _draw_curve(axis: Axes) -> None:
    precision, filled = precisions(RANKED)
    edges = np.arange(OBJECTS + 1) / OBJECTS
    axis.stairs(filled, edges, fill=True, color=FILLED, linewidth=0)
    recall, along = _walk(RANKED)
    axis.fill_between(recall, along, color=UNDER, linewidth=0)
    axis.plot(recall, along, color="#222222", linewidth=1.4, zorder=3)
    axis.plot(edges[1:], precision, "o", color=TRUE, markersize=6, zorder=4)
    axis.text(edges[5], precision[4] + 0.03, "f", ha="center", fontweight="bold")
    for name, style in (("d", (0, (5, 2))), ("e", (0, (2, 1.5)))):
        move = next(m for m in MOVES if m.name == name)
        after = move.apply(RANKED)
        label = f"filled-in curve after ({name}): AP {average_precision(after):.3f}"
        axis.stairs(
            precisions(after)[1],
            edges,
            baseline=None,
            color=CHANGE,
            linewidth=1.8,
            linestyle=style,
            zorder=5,
            label=label,
        )
    axis.set_title(f"AP = {average_precision(RANKED):.3f}", loc="left", fontsize=10)
    axis.set_xlabel("recall")
    axis.set_ylabel("precision")
    axis.set_xlim(0, 1.02)
    axis.set_ylim(0, 1.05)
    axis.set_xticks(edges, ["0", *[f"{k}/{OBJECTS}" for k in range(1, OBJECTS)], "1"])
    axis.legend(frameon=False, loc="lower left", fontsize=8.5)


def _walk(ranked: str) -> tuple[list[float], list[float]]:
    """Recall and precision after every detection."""
    hits = np.cumsum(np.array(list(ranked)) == "T")
    recall = [0.0, *(hits / OBJECTS)]
    return recall, [1.0, *(hits / np.arange(1, len(ranked) + 1))]
