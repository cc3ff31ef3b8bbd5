"""The step function, its envelopes, and the slopes that SDE, MEE and the radius estimator read off it."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from stepgrad import mee, sde

AT = np.array([1.0, 2.6, 5.0, 6.4])  # where the steps are
VALUES = np.array([0.15, 0.35, 0.30, 0.62, 0.80])  # between them
X = 4.1  # the point at which slopes are drawn
RADIUS = 1.8
LEFT, RIGHT = 0.0, 7.4

BLACK, GREEN, BROWN, RED, BLUE = "#222222", "#2a8f4f", "#a5682a", "#c8373a", "#2f6fb5"


def value_at(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """The step function."""
    return VALUES[np.searchsorted(AT, x, side="right")]


def nearest_steps(x: NDArray[np.float64]) -> tuple[Any, ...]:
    """x, f, x+, f+, x-, f- in the order the estimators take them; a missing step is at infinity."""
    above = np.searchsorted(AT, x, side="right")
    places = np.concatenate([[-np.inf], AT, [np.inf]])
    beyond = np.concatenate([VALUES[:1], VALUES, VALUES[-1:]])
    return x, value_at(x), places[above + 1], beyond[above + 2], places[above], beyond[above]


def draw_steps() -> Figure:
    figure, axes = plt.subplots(2, 3, figsize=(10.2, 5.6), sharey=False)
    for axis, draw in zip(axes.flat, PANELS, strict=True):
        draw(axis)
    figure.tight_layout(w_pad=2.0, h_pad=2.0)
    return figure


def _function(axis: Axes, title: str) -> None:
    edges = np.concatenate([[LEFT], AT, [RIGHT]])
    for i, value in enumerate(VALUES):
        axis.plot(edges[i : i + 2], [value, value], color=BLACK, linewidth=2, solid_capstyle="butt", zorder=3)
    axis.vlines(AT, VALUES[:-1], VALUES[1:], color=BLACK, linewidth=0.8, linestyle=":", zorder=2)
    axis.set_title(title, loc="left", fontsize=10)
    axis.set_xlim(LEFT, RIGHT)
    axis.set_ylim(0.0, 1.0)
    axis.set_xticks([AT[1], X, AT[2]], ["$x^-$", "$x$", "$x^+$"])
    axis.set_yticks([VALUES[1], VALUES[2], VALUES[3]], ["$f^-$", "$f$", "$f^+$"])
    axis.get_yticklabels()[0].set_verticalalignment("bottom")
    axis.get_yticklabels()[1].set_verticalalignment("top")


def _mark_x(axis: Axes) -> None:
    axis.plot([X], value_at(np.array([X])), "o", color=BLACK, markersize=6, zorder=5)


def _derivative(axis: Axes) -> None:
    _function(axis, "(a) the derivative is zero")
    _mark_x(axis)
    level = float(value_at(np.array([X]))[0])
    axis.plot([X - 1.2, X + 0.75], [level - 0.035] * 2, "--", color=RED, linewidth=1.6)
    axis.text(X - 0.2, level - 0.10, "slope 0", color=RED, ha="center", va="center")


def _symmetric(axis: Axes) -> None:
    _function(axis, "(b) SDE: the two nearest steps, mean slope")
    _mark_x(axis)
    level = float(value_at(np.array([X]))[0])
    for place, value, color in ((AT[2], VALUES[3], GREEN), (AT[1], VALUES[1], BROWN)):
        axis.plot([X, place], [level, value], color=color, linewidth=1.8, zorder=4)
        axis.plot([place], [value], "o", color=color, markersize=5, zorder=5)
    axis.text(4.35, 0.52, "up", color=GREEN, ha="right")
    axis.text(3.35, 0.385, "down", color=BROWN, ha="center")


def _envelopes(axis: Axes) -> None:
    _function(axis, "(c) linear envelopes of the steps")
    _draw_envelopes(axis, 1.0)
    axis.text(3.0, 0.56, "upper", color=GREEN, ha="center")
    axis.text(6.55, 0.42, "lower", color=BROWN, ha="center")


def _draw_envelopes(axis: Axes, strength: float) -> None:
    upper = np.maximum(VALUES[:-1], VALUES[1:])
    lower = np.minimum(VALUES[:-1], VALUES[1:])
    for heights, color in ((upper, GREEN), (lower, BROWN)):
        places = np.concatenate([[LEFT], AT, [RIGHT]])
        ends = np.concatenate([heights[:1], heights, heights[-1:]])
        axis.plot(places, ends, color=color, linewidth=1.6, alpha=strength, zorder=4)
        axis.plot(AT, heights, "o", color=color, markersize=4, alpha=strength, zorder=5)


def _mean_envelope(axis: Axes) -> None:
    _function(axis, "(d) MEE: mean slope of the envelopes at x")
    _draw_envelopes(axis, 0.3)
    middle = (AT[1] + AT[2]) / 2
    slope = float(mee(*nearest_steps(np.array([X])))[0])
    centre = (VALUES[1:4].max() + VALUES[2] + VALUES[1:3].max() + VALUES[2]) / 4
    axis.plot(
        [AT[1], AT[2]],
        [centre + slope * (AT[1] - middle), centre + slope * (AT[2] - middle)],
        color=BLUE,
        linewidth=2.2,
        zorder=6,
    )
    axis.text(3.9, 0.60, r"$\frac{f^+ - f^-}{2\,(x^+ - x^-)}$", color=BLUE, ha="right", fontsize=12)


def _radius(axis: Axes) -> None:
    _function(axis, "(e) radius: all steps within $\\rho$")
    _mark_x(axis)
    ends = np.array([X - RADIUS, X + RADIUS])
    heights = value_at(ends)
    axis.axvspan(*ends, color=BLUE, alpha=0.08, linewidth=0)
    axis.plot(ends, heights, "o-", color=BLUE, linewidth=1.8, markersize=5, zorder=5)
    axis.annotate("", (ends[1], 0.08), (X, 0.08), arrowprops={"arrowstyle": "<->", "color": BLUE})
    axis.text(X + RADIUS / 2, 0.10, r"$\rho$", color=BLUE, ha="center", va="bottom")


def _along_the_line(axis: Axes) -> None:
    """Each estimator as x moves, over the same steps."""
    x = np.linspace(LEFT, RIGHT, 2001)
    x = x[np.abs(x[:, None] - AT).min(axis=1) > 1e-3]
    steps = nearest_steps(x)
    radius = (value_at(x + RADIUS) - value_at(x - RADIUS)) / (2 * RADIUS)
    broken = np.searchsorted(AT, x)
    for values, color, name in (
        (sde(*steps), RED, "SDE"),
        (mee(*steps, min_step=0.5), GREEN, "MEE"),
        (radius, BLUE, "radius"),
    ):
        for piece in range(len(AT) + 1):
            inside = broken == piece
            axis.plot(x[inside], values[inside], color=color, linewidth=1.6, label=name if piece == 0 else None)
    axis.vlines(AT, -1, 1, color="#bbbbbb", linewidth=0.8, linestyle=":", zorder=0)
    axis.axhline(0, color="#bbbbbb", linewidth=0.8, zorder=0)
    axis.set_ylim(-0.22, 0.55)
    axis.set_xlim(LEFT, RIGHT)
    axis.set_xticks(AT, ["step"] * len(AT))
    axis.set_yticks([0, 0.25, 0.5])
    axis.set_title("(f) the three estimators as x moves", loc="left", fontsize=10)
    axis.legend(frameon=False, loc="upper left", bbox_to_anchor=(0.16, 1.0), fontsize=8)


PANELS = (_derivative, _symmetric, _envelopes, _mean_envelope, _radius, _along_the_line)
