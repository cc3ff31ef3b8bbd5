"""The staircase of the tutorial, drawn by the tutorial's own code."""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from docs.notebook import PAGE, parts


def draw_tutorial() -> Figure:
    """What the page's code draws, up to the block that does."""
    names: dict[str, Any] = {}
    blocks = [text for kind, text in parts(PAGE.read_text(encoding="utf-8")) if kind == "python"]
    with redirect_stdout(StringIO()):  # what the page prints is not for whoever draws figures
        while "plt" not in names:
            exec(blocks.pop(0), names)
    figure = plt.gcf()
    figure.tight_layout()
    return figure
