"""Three windows in a chain: how AP after NMS depends on the score of each, and what only the exact mode sees."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import stepgrad

NAMES = ("red", "green", "blue")
COLORS = ("#c8373a", "#2a8f4f", "#2f6fb5")
BOXES = torch.tensor([[0.0, 0.0, 10.0, 10.0], [4.6, 0.5, 14.6, 10.5], [9.2, 0.0, 19.2, 10.0]])
SCORES = torch.tensor([3.0, 2.0, 1.0])
OBJECT = torch.tensor([[10.0, -0.6, 20.0, 9.4]])
LOW, HIGH = 0.0, 4.2
TARGET = {"boxes": OBJECT, "labels": torch.tensor([0])}


def average_precision(scores: torch.Tensor) -> float:
    return stepgrad.mean_average_precision([scores[:, None]], [BOXES], [TARGET], nms_threshold=0.3).map


def plateaus(window: int) -> tuple[list[float], list[float]]:
    """Edges and AP of the pieces between the other scores: only there can anything change."""
    others = [score for i, score in enumerate(SCORES.tolist()) if i != window]
    edges = [LOW, *sorted(others), HIGH]
    values = []
    for left, right in pairwise(edges):
        moved = SCORES.clone()
        moved[window] = (left + right) / 2
        values.append(average_precision(moved))
    return edges, values


def pushes(mode: str) -> list[float]:
    """The pseudogradient (MEE) of AP in the three scores."""
    scores = [SCORES[:, None]]
    return stepgrad.map_pseudogradient(scores, [BOXES], [TARGET], through_nms=mode)[0].flatten().tolist()


def kept_names(window: int, score: float) -> str:
    """Who survives NMS when the window has this score."""
    moved = SCORES.clone()
    moved[window] = score
    keep, _ = stepgrad.nms(BOXES, moved, 0.3)
    return " and ".join(NAMES[i] for i in sorted(keep.tolist()))


def draw_cascade() -> Figure:
    figure = plt.figure(figsize=(9.6, 4.8))
    grid = figure.add_gridspec(
        3, 2, width_ratios=[1.0, 1.45], hspace=0.55, wspace=0.14, left=0.02, right=0.98, top=0.93, bottom=0.11
    )
    _draw_boxes(figure.add_subplot(grid[:, 0]))
    for window in range(3):
        _draw_line(figure.add_subplot(grid[window, 1]), window)
    return figure


def _draw_boxes(axis: Axes) -> None:
    _outline(axis, OBJECT[0].tolist(), edgecolor="#222222", linestyle="--", linewidth=1.6)
    for box, color, name, score in zip(BOXES.tolist(), COLORS, NAMES, SCORES.tolist(), strict=True):
        _outline(axis, box, edgecolor=color, linewidth=2)
        axis.text((box[0] + box[2]) / 2, 11.0, f"{name}\n{score:.0f}", color=color, ha="center", va="bottom")
    axis.text(20.0, -1.2, "object", ha="right", va="top")
    axis.text(10, 15.6, "red suppresses green, so blue survives", ha="center", va="bottom", fontsize=9.5)
    axis.set_xlim(-1, 22)
    axis.set_ylim(-4, 18)
    axis.set_aspect("equal")
    axis.axis("off")


def _outline(axis: Axes, box: list[float], **style: Any) -> None:
    x1, y1, x2, y2 = box
    axis.add_patch(Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, **style))


def _draw_line(axis: Axes, window: int) -> None:
    edges, values = plateaus(window)
    axis.stairs(values, edges, baseline=None, color=COLORS[window], linewidth=2)
    axis.plot([float(SCORES[window])], [average_precision(SCORES)], "o", color="#222222", zorder=4)
    for (left, right), level in _merged(edges, values):
        middle = (left + right) / 2
        axis.text(middle, level + 0.15, f"kept: {kept_names(window, middle)}", ha="center", fontsize=8, color="#555555")
    axis.set_xlim(LOW, HIGH)
    axis.set_ylim(-0.12, 1.3)
    axis.set_yticks([0, 0.5, 1])
    axis.set_xticks([0, 1, 2, 3, 4])
    exact, paper = (pushes(mode)[window] for mode in ("exact", "paper"))
    axis.set_title(f"AP as the score of {NAMES[window]} moves", loc="left", fontsize=9.5)
    axis.set_title(f"MEE: exact {exact:+.3f}, paper {paper:+.3f}", loc="right", fontsize=8.5, color="#555555")
    if window == 2:
        axis.set_xlabel("score")


def _merged(edges: list[float], values: list[float]) -> list[tuple[tuple[float, float], float]]:
    """Neighbouring pieces of one value as one."""
    pieces: list[tuple[tuple[float, float], float]] = []
    for ends, value in zip(pairwise(edges), values, strict=True):
        if pieces and pieces[-1][1] == value:
            ends = (pieces.pop()[0][0], ends[1])
        pieces.append((ends, value))
    return pieces
