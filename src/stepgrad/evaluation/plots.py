"""Precision-recall curves, types of mistakes and bounds of mAP as pictures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stepgrad.errors import ConfigError
from stepgrad.evaluation.class_result import ClassResult
from stepgrad.extras import need
from stepgrad.number_text import per_cent

if TYPE_CHECKING:
    from matplotlib.figure import Figure


CURVE, ENVELOPE = "#9aa5b1", "#1f5fa8"


def plot_curves(rows: Sequence[ClassResult], threshold: float, title: str, path: str | Path | None = None) -> Figure:
    """A small panel per class: the curve at a threshold, and the interpolated curve whose mean is AP."""
    need("matplotlib.figure", purpose="plots")
    from matplotlib.figure import Figure

    if not rows:
        raise ConfigError("Expected at least one class to plot but got none.")
    columns = min(len(rows), 5)
    lines = -(-len(rows) // columns)
    figure = Figure(figsize=(1.2 + 2.1 * columns, 1.1 + 2.1 * lines), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True)
    for panel, row in zip(panels.flat, rows, strict=False):
        _draw(panel, row, threshold)
    for panel in panels.flat[len(rows) :]:
        panel.set_axis_off()
    figure.supxlabel("recall")
    figure.supylabel("precision")
    figure.suptitle(title)
    if path is not None:
        save_figure(figure, Path(path))
    return figure


def _draw(panel: Any, row: ClassResult, threshold: float) -> None:
    curve = row.curve(threshold)
    ap = math.nan if math.isnan(row.ap) else row.ap_by_threshold[curve.threshold]
    panel.set_title(f"{row.name}  {per_cent(ap)}", fontsize=9)
    panel.set(xlim=(0, 1), ylim=(0, 1.04), xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
    panel.tick_params(labelsize=8)
    panel.grid(alpha=0.25, linewidth=0.6)
    panel.set_axisbelow(True)
    if row.objects == 0:
        panel.text(0.5, 0.5, "no objects", ha="center", va="center", fontsize=8, color="#666666")
        return
    if len(curve.recall) == 0:
        panel.text(0.5, 0.5, "nothing found", ha="center", va="center", fontsize=8, color="#666666")
        return
    best = np.concatenate([curve.interpolated[:1], curve.interpolated, [0.0]])
    reached = np.concatenate([[0.0], curve.recall, curve.recall[-1:]])
    panel.plot(curve.recall, curve.precision, color=CURVE, linewidth=0.8)
    panel.step(reached, best, where="pre", color=ENVELOPE, linewidth=1.3)


def save_figure(figure: Figure, path: Path) -> None:
    """Write the picture, whole or not at all; the suffix chooses the format."""
    from stepgrad.files import write_whole

    kinds = figure.canvas.get_supported_filetypes()
    kind = path.suffix.lstrip(".").lower()
    if kind not in kinds:
        raise ConfigError(f"{path}: expected a name that ends in one of {sorted(kinds)}.")
    content = BytesIO()
    figure.savefig(content, format=kind, dpi=150)
    write_whole(path, content.getvalue())


def plot_error_types(
    gains: Sequence[float], counts: Sequence[int], names: Sequence[str], title: str, path: str | Path | None = None
) -> Figure:
    """A bar per type of mistake: the mAP that fixing it would gain."""
    need("matplotlib.figure", purpose="plots")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.0, 3.2), layout="constrained")
    axes = figure.subplots()
    bars = axes.barh(names[::-1], [100.0 * gain for gain in gains[::-1]], color=ENVELOPE)  # the first on top
    axes.bar_label(bars, [f"{count} mistakes" for count in counts[::-1]], padding=3, fontsize=8)
    axes.margins(x=0.25)
    axes.set_xlabel("points of mAP that fixing it would gain")
    axes.set_title(title, fontsize=10)
    if path is not None:
        save_figure(figure, Path(path))
    return figure


def plot_ladder(values: Mapping[str, float], title: str, path: str | Path | None = None) -> Figure:
    """A bar per bound of mAP, in their order from the top; what it has above the bound before it is darker."""
    need("matplotlib.figure", purpose="plots")
    from matplotlib.figure import Figure

    names = list(values)[::-1]  # the first on top
    figure = Figure(figsize=(6.5, 3.2), layout="constrained")
    axes = figure.subplots()
    before = dict(zip(values, [0.0, *values.values()], strict=False))
    axes.barh(names, [100.0 * before[name] for name in names], color=CURVE)
    gains = [100.0 * (values[name] - before[name]) for name in names]
    bars = axes.barh(names, gains, left=[100.0 * before[name] for name in names], color=ENVELOPE)
    axes.bar_label(bars, [per_cent(values[name]) for name in names], padding=3, fontsize=8)
    axes.set(xlim=(0, 110), xlabel="mAP", xticks=range(0, 101, 20))
    axes.set_title(title, fontsize=10)
    if path is not None:
        save_figure(figure, Path(path))
    return figure
