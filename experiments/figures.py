"""Figures of the experiments: the same bytes from the same numbers, with text as text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def svg_figure(file: Path, size: tuple[float, float], **options: Any) -> Iterator[Any]:
    """A figure of matplotlib to draw on, which is written at the end."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": file.stem, "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=size, **options)
        yield figure
        figure.savefig(file, metadata={"Date": None})
