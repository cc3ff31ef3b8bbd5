"""The first detection that two protocols judge differently, as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from stepgrad.errors import ConfigError
from stepgrad.evaluation.compare import Comparison, FirstDifference, Pair
from stepgrad.evaluation.plots import save_figure
from stepgrad.extras import need

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DETECTION, OBJECT = "#d55e00", "#009e73"
_ROOM = 0.5
"""Shown around the boxes, as a share of the larger side of what they cover."""


def first_pair(comparison: Comparison) -> Pair:
    """The first two protocols that judge a detection differently."""
    for pair in comparison.pairs:
        if pair.first:
            return pair
    raise ConfigError("No detection is judged differently by these protocols: there is nothing to draw.")


def draw_difference(pair: Pair, path: str | Path | None = None, picture: ArrayLike | None = None) -> Figure:
    """The highest-scored detection that the two judge differently, and the objects of its class around it.

    Args:
        pair: of `Evaluator.compare().pairs`.
        path: the file to write, if wanted; its suffix chooses the format.
        picture: the image (H, W, 3) that `pair.first[0].image_id` names; None draws boxes alone.
    """
    need("matplotlib.figure", purpose="plots")
    from matplotlib.figure import Figure

    if not pair.first:
        raise ConfigError(f"{' and '.join(pair.names)} judge every detection alike: there is nothing to draw.")
    difference = pair.first[0]
    figure = Figure(figsize=(6.0, 6.4), layout="constrained")
    axes = figure.subplots()
    if picture is not None:
        axes.imshow(np.asarray(picture), extent=(0.0, np.shape(picture)[1], np.shape(picture)[0], 0.0))
    for box in difference.objects:
        _rectangle(axes, box, OBJECT, "-")
    _rectangle(axes, difference.box, DETECTION, "--")
    _look_at(axes, difference)
    axes.set_title(_title(pair, difference), fontsize=9, loc="left")
    if path is not None:
        save_figure(figure, Path(path))
    return figure


def _rectangle(axes: Axes, box: tuple[float, float, float, float], colour: str, style: str) -> None:
    from matplotlib.patches import Rectangle

    x1, y1, x2, y2 = box
    axes.add_patch(Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, edgecolor=colour, linestyle=style, linewidth=2.0))


def _look_at(axes: Axes, difference: FirstDifference) -> None:
    """The detection and the objects it touches; images have y downwards."""
    x1, y1, x2, y2 = difference.box
    near = [b for b in difference.objects if b[0] < x2 and b[2] > x1 and b[1] < y2 and b[3] > y1]
    corners = np.array([difference.box, *near])
    low, high = corners[:, :2].min(axis=0), corners[:, 2:].max(axis=0)
    room = _ROOM * max(float((high - low).max()), 1.0)
    axes.set(xlim=(low[0] - room, high[0] + room), ylim=(high[1] + room, low[1] - room), aspect="equal")


def _title(pair: Pair, difference: FirstDifference) -> str:
    said = [
        f"{name}: {verdict} (IoU {overlap:.4f})"
        for name, verdict, overlap in zip(pair.names, difference.verdicts, difference.overlaps, strict=True)
    ]
    what = f"{difference.class_name} {difference.score:.3f} (dashed) in image {difference.image_id}"
    at = f"at IoU {difference.threshold:g}, because of: {difference.because}"
    return "\n".join([what, *said, at])
