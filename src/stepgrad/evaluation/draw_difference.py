"""The first detection that two protocols judge differently, as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from stepgrad.errors import ConfigError
from stepgrad.evaluation.compare import Comparison, FirstDifference, Pair
from stepgrad.evaluation.outlines import ABSENT, Lines, lines_of, skeleton_of
from stepgrad.evaluation.plots import save_figure
from stepgrad.evaluation.records import Evidence
from stepgrad.extras import need

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Box = tuple[float, float, float, float]
DETECTION, OBJECT = "#d55e00", "#009e73"
_ROOM = 0.5
"""Shown around the boxes, as a share of the larger side of what they cover."""


def first_pair(comparison: Comparison) -> Pair:
    """The first two protocols that judge a detection differently."""
    for pair in comparison.pairs:
        if pair.first:
            return pair
    raise ConfigError("No detection is judged differently by these protocols: there is nothing to draw.")


def draw_difference(
    pair: Pair, path: str | Path | None = None, picture: ArrayLike | None = None, evidence: Evidence | None = None
) -> Figure:
    """The highest-scored detection that the two judge differently, and the objects of its class around it.

    Args:
        pair: of `Evaluator.compare().pairs`.
        path: the file to write, if wanted; its suffix chooses the format.
        picture: the image (H, W, 3) that `pair.first[0].image_id` names; None draws boxes alone.
        evidence: what was compared, `Evaluator.evidence()`: from it masks, poses and oriented boxes are drawn, not only boxes.
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
    detection, *objects = _shapes(difference, evidence)
    for box, lines in zip(difference.objects, objects, strict=True):
        _draw_shape(axes, box, lines, evidence, OBJECT, "-")
    _draw_shape(axes, difference.box, detection, evidence, DETECTION, "--")
    _look_at(axes, difference)
    axes.set_title(_title(pair, difference), fontsize=9, loc="left")
    if path is not None:
        save_figure(figure, Path(path))
    return figure


def _shapes(difference: FirstDifference, evidence: Evidence | None) -> list[Lines]:
    """What is drawn of the detection and of the objects besides their boxes."""
    if evidence is None:
        return [[] for _ in (difference.box, *difference.objects)]
    row, *others = difference.rows
    objects = [lines_of(evidence, evidence.objects, other) for other in others]
    return [lines_of(evidence, evidence.detections, row), *objects]


def _draw_shape(axes: Axes, box: Box, lines: Lines, evidence: Evidence | None, colour: str, style: str) -> None:
    """A box, or the lines of a mask or an oriented box, or a box with a pose."""
    from matplotlib.colors import to_rgba
    from matplotlib.patches import PathPatch, Rectangle
    from matplotlib.path import Path as Outline

    pen: dict[str, Any] = {"edgecolor": colour, "linestyle": style, "linewidth": 2.0}
    if evidence is not None and lines and evidence.overlap.drawn != "pose":
        rings = [Outline(np.array([*line, *line[:2]]).reshape(-1, 2), closed=True) for line in lines]
        inside = to_rgba(colour, 0.2) if evidence.overlap.drawn == "mask" else "none"
        axes.add_patch(PathPatch(Outline.make_compound_path(*rings), facecolor=inside, **pen))
        return
    x1, y1, x2, y2 = box
    axes.add_patch(Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, **pen))
    if evidence is not None and lines:
        points = np.array(lines[0]).reshape(-1, 3)
        there = points[:, 2] != ABSENT
        for a, b in skeleton_of(evidence):
            if there[a] and there[b]:
                axes.plot(*points[[a, b], :2].T, color=colour, linewidth=2.0)
        axes.plot(*points[there, :2].T, "o", color=colour, markeredgecolor="black")


def _look_at(axes: Axes, difference: FirstDifference) -> None:
    """The detection and the objects it touches; images have y downwards."""
    x1, y1, x2, y2 = difference.box
    near = [b for b in difference.objects if b[0] < x2 and b[2] > x1 and b[1] < y2 and b[3] > y1]
    corners = np.array([difference.box, *near])
    low, high = corners[:, :2].min(axis=0), corners[:, 2:].max(axis=0)
    room = _ROOM * max(float((high - low).max()), 1.0)
    axes.set(xlim=(low[0] - room, high[0] + room), ylim=(high[1] + room, low[1] - room), aspect="equal")


def _title(pair: Pair, difference: FirstDifference) -> str:
    sides = zip(pair.names, difference.verdicts, difference.likeness, difference.overlaps, strict=True)
    said = [f"{name}: {verdict} ({word} {overlap:.4f})" for name, verdict, word, overlap in sides]
    what = f"{difference.class_name} {difference.score:.3f} (dashed) in image {difference.image_id}"
    at = f"at {difference.likeness[0]} {difference.threshold:g}, because of: {difference.because}"
    return "\n".join([what, *said, at])
