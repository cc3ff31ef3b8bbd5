"""The first image in which two models differ, as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from stepgrad.data.base import DetectionDataset
from stepgrad.errors import ConfigError
from stepgrad.evaluation.plots import save_figure
from stepgrad.models.exported.difference import Difference

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FIRST, _SECOND, _OBJECT, _ALONE = "#0072b2", "#d55e00", "#009e73", "#cc0000"


def draw_first_image(found: Difference, dataset: DetectionDataset, path: str | Path | None = None) -> Figure:
    """Objects and the detections of both side by side; the detection that only one has is filled."""
    from matplotlib.figure import Figure

    first = found.first
    if first is None:
        raise ConfigError("draw: the two models differ in no image; leave the option out.")
    picture = np.asarray(dataset.image(first.index))
    figure = Figure(figsize=(10.0, 5.2), layout="constrained")
    halves = figure.subplots(1, 2)
    for axes, name, one, colour in zip(halves, found.names, first.found, (_FIRST, _SECOND), strict=True):
        axes.imshow(picture, extent=(0.0, picture.shape[1], picture.shape[0], 0.0))
        for box in dataset.exact_boxes(first.index):
            _draw(axes, box, _OBJECT, "-")
        for box, score, label in zip(one.boxes, one.scores, one.labels, strict=True):
            alone = name == first.only and tuple(box.tolist()) == first.box
            _draw(axes, box, _ALONE if alone else colour, "--", 0.25 if alone else 0.0)
            axes.text(
                box[0], box[1], f"{dataset.class_names[label]} {score:.2f}", fontsize=7, color=colour, va="bottom"
            )
        axes.set(xlim=(0, picture.shape[1]), ylim=(picture.shape[0], 0), xticks=[], yticks=[])
        axes.set_title(name, fontsize=9, loc="left")
    figure.suptitle(str(first), fontsize=8)
    if path is not None:
        save_figure(figure, Path(path))
    return figure


def _draw(axes: Axes, box: np.ndarray, colour: str, style: str, fill: float = 0.0) -> None:
    from matplotlib.colors import to_rgba
    from matplotlib.patches import Rectangle

    x1, y1, x2, y2 = box
    face = to_rgba(colour, fill) if fill else "none"
    axes.add_patch(
        Rectangle((x1, y1), x2 - x1, y2 - y1, edgecolor=colour, facecolor=face, linestyle=style, linewidth=1.5)
    )
