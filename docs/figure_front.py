"""The README's picture: windows with the gradient of mAP on each, and mAP as one of their scores moves."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import stepgrad as sg

OBJECTS = ((8, 22, 34, 62), (52, 24, 80, 64), (104, 28, 128, 66))
WINDOWS = (
    (9, 20, 35, 61),
    (4, 28, 32, 68),
    (64, 14, 90, 56),  # too far off to count, and it suppresses the next
    (55, 23, 82, 63),
    (102, 31, 127, 69),
    (36, 66, 56, 90),
    (90, 4, 110, 24),
)
SCORES = (1.2, 0.2, 0.5, -0.7, -1.5, 0.0, -1.0)
MOVED, RADIUS = 4, 3.0
"""The window whose score the second panel moves."""
UP, DOWN, PLAIN, DARK = "#2a8f4f", "#c8373a", "#2f6fb5", "#22252a"


def scene(scores: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor], list[dict[str, torch.Tensor]]]:
    objects = torch.tensor(OBJECTS, dtype=torch.float64)
    return (
        [scores[:, None]],
        [torch.tensor(WINDOWS, dtype=torch.float64)],
        [{"boxes": objects, "labels": torch.zeros(len(objects), dtype=torch.long)}],
    )


def gradients() -> list[float]:
    """What each score should do for mAP to rise."""
    scores = torch.tensor(SCORES, dtype=torch.float64, requires_grad=True)
    loss = sg.MAPLoss(1, nms_threshold=0.3, log=False, balance="none", radius=RADIUS)(*scene(scores))
    loss.backward()
    assert scores.grad is not None
    return [-g for g in scores.grad.tolist()]


def map_at(score: float) -> float:
    scores = torch.tensor(SCORES, dtype=torch.float64)
    scores[MOVED] = score
    return sg.mean_average_precision(*scene(scores), nms_threshold=0.3).map


def draw_front() -> Figure:
    figure, (picture, curve) = plt.subplots(1, 2, figsize=(8.8, 3.4), width_ratios=[1.25, 1])
    _draw_windows(picture, gradients())
    _draw_steps(curve, gradients()[MOVED])
    figure.tight_layout(w_pad=2.5)
    return figure


def _draw_windows(axes: Axes, slopes: list[float]) -> None:
    axes.set_title("mAP's gradient on every window,\nincluding those that NMS removes", fontsize=9.5, loc="left")
    for x0, y0, x1, y1 in OBJECTS:
        axes.add_patch(Rectangle((x0, y0), x1 - x0, y1 - y0, facecolor="#e6eaf0", edgecolor="none"))
        axes.text((x0 + x1) / 2, y1 - 4, "object", ha="center", color="#7a828c", fontsize=7.5)
    largest = max(abs(slope) for slope in slopes)
    for (x0, y0, x1, y1), score, slope in zip(WINDOWS, SCORES, slopes, strict=True):
        colour = UP if slope > 0 else DOWN if slope < 0 else "#8b929b"
        axes.add_patch(Rectangle((x0, y0), x1 - x0, y1 - y0, fill=False, edgecolor=colour, linewidth=1.4))
        axes.text(x0 + 1, y0 - 1, f"{score:+.1f}", fontsize=7.5, color=colour, va="bottom")
        if slope:
            at, length = (x1 - 4, (y0 + y1) / 2 + 9 * slope / largest), -18 * slope / largest
            axes.annotate("", (at[0], at[1] + length), at, arrowprops={"arrowstyle": "-|>", "color": colour, "lw": 2})
    axes.text(115, 74, "its score changes on the right", ha="center", va="top", fontsize=7.5, color=DARK)
    axes.set(xlim=(0, 136), ylim=(94, 0), xticks=[], yticks=[], aspect="equal")
    axes.spines[:].set_visible(False)


def _draw_steps(axes: Axes, slope: float) -> None:
    axes.set_title("mAP when one of these scores changes", fontsize=9.5, loc="left")
    here = SCORES[MOVED]
    scores = np.linspace(here - RADIUS - 0.4, here + RADIUS + 0.4, 1500)
    values = np.array([map_at(float(score)) for score in scores])
    jumps = np.flatnonzero(np.diff(values)) + 1
    for part in np.split(np.arange(len(scores)), jumps):
        axes.plot(scores[part], 100 * values[part], color=DARK, linewidth=2, solid_capstyle="butt")
    for jump in jumps:
        axes.plot([scores[jump]] * 2, 100 * values[jump - 1 : jump + 1], color=DARK, linewidth=0.8, linestyle=":")
    value = map_at(here)
    axes.axvspan(here - RADIUS, here + RADIUS, color="#eaf1f9", zorder=0)
    ends = np.array([here - 1.8, here + 1.8])
    axes.plot(ends, 100 * (value + slope * (ends - here)), color=UP, linewidth=2)
    axes.plot(here, 100 * value, "o", color=DARK, markersize=6)
    axes.text(here, 100 * value - 4, "slope 0", fontsize=8, color=DARK, ha="center", va="top")
    right = 100 * (value + slope * 1.8) - 3
    axes.text(ends[1] + 0.1, right, "pseudogradient", fontsize=8, color=UP, va="top")
    axes.set(xlabel="score of the window", ylabel="mAP (%)", ylim=(30, 75))
