"""Draws the figures of the documentation: `python docs/figures.py` writes docs/figures/*.svg.

Every number in them comes from stepgrad itself or from a few lines here that can be read in full.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that the file runs as a script

from docs.figure_front import draw_front
from docs.figure_nms import draw_cascade
from docs.figure_pr import draw_pr_curve
from docs.figure_steps import draw_steps
from docs.figure_tutorial import draw_tutorial

FIGURES: dict[str, Callable[[], Figure]] = {
    "front": draw_front,
    "steps": draw_steps,
    "pr_curve": draw_pr_curve,
    "nms_cascade": draw_cascade,
    "tutorial": draw_tutorial,
}

STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "path",  # looks the same everywhere
    "svg.hashsalt": "stepgrad",  # the same file on every run
}


def draw_all(folder: Path, suffix: str = "svg") -> list[Path]:
    """Write every figure and return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name, draw in FIGURES.items():
        with plt.rc_context(STYLE):
            figure = draw()
            file = folder / f"{name}.{suffix}"
            figure.savefig(file, dpi=110, facecolor="white", metadata={"Date": None} if suffix == "svg" else None)
        plt.close(figure)
        files.append(file)
    return files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "figures")
    parser.add_argument("--format", default="svg", choices=["svg", "png", "pdf"])
    options = parser.parse_args()
    for file in draw_all(options.out, options.format):
        print(file)


if __name__ == "__main__":
    main()
