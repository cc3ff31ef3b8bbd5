"""Masks, poses and oriented boxes drawn on a picture, from the lines of evaluation/outlines.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageDraw

from stepgrad.evaluation.outlines import ABSENT, SEEN, Lines

LineStyle = Literal["solid", "dashed", "dotted"]
DASHES: dict[LineStyle, tuple[float, float]] = {"solid": (1.0, 0.0), "dashed": (3.5, 3.0), "dotted": (0.0, 2.5)}
"""Length of a stroke and the way to the next one in line widths; round it the pen is a line width wide."""
HALO = (0, 0, 0)
FILL = 0.28
"""How much of its colour a mask lays over the picture."""
Points = NDArray[np.float64]


def strokes(length: float, style: LineStyle, width: int) -> list[tuple[float, float]]:
    """Pieces of an edge: whole strokes, as many as fit, spread so that both corners are drawn."""
    stroke, gap = (part * width for part in DASHES[style])
    if style == "solid" or length <= 2 * stroke + gap:
        return [(0.0, length)]
    gaps = max(1, round((length - stroke) / (stroke + gap)))
    return [(start, start + stroke) for start in np.linspace(0.0, length - stroke, gaps + 1).tolist()]


def fill_mask(canvas: Image.Image, lines: Lines, colour: str) -> None:
    """Lay the colour over the pixels inside; lines inside others are holes."""
    inside = Image.new("1", canvas.size)
    for line in lines:
        ring = Image.new("1", canvas.size)
        ImageDraw.Draw(ring).polygon(line, fill=1)
        inside = ImageChops.logical_xor(inside, ring)
    canvas.paste(colour, mask=inside.convert("L").point(lambda value: round(FILL * value)))


def draw_closed(pencil: ImageDraw.ImageDraw, lines: Lines, colour: str, style: LineStyle, width: int) -> None:
    """Closed lines over a thin dark halo."""
    rings = [np.array([*line, *line[:2]]).reshape(-1, 2) for line in lines]
    pieces = [piece for ring in rings for piece in _pieces(ring, style, width)]
    for thick, ink in ((width + 2, HALO), (width, colour)):
        for piece in pieces:
            _stroke(pencil, piece, ink, thick)


def _pieces(ring: Points, style: LineStyle, width: int) -> list[Points]:
    """The strokes of a dashed line along these points."""
    ways = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(ring, axis=0).T))])
    pieces = []
    for start, end in strokes(float(ways[-1]), style, width):
        at = np.concatenate([[start], ways[(ways > start) & (ways < end)], [end]])
        pieces.append(np.column_stack([np.interp(at, ways, ring[:, axis]) for axis in (0, 1)]))
    return pieces


def _stroke(pencil: ImageDraw.ImageDraw, points: Points, ink: str | tuple[int, int, int], width: int) -> None:
    """A line with a round pen; where it ends, half the pen goes on."""
    pencil.line([(x, y) for x, y in points.tolist()], fill=ink, width=width, joint="curve")
    for x, y in (points[0], points[-1]):
        _dot(pencil, x, y, width / 2, ink)


def _dot(pencil: ImageDraw.ImageDraw, x: float, y: float, radius: float, ink: str | tuple[int, int, int]) -> None:
    pencil.ellipse((x - radius, y - radius, x + radius, y + radius), fill=ink)


def draw_pose(
    pencil: ImageDraw.ImageDraw, pose: Sequence[float], skeleton: Sequence[tuple[int, int]], colour: str, width: int
) -> None:
    """Lines between keypoints that are there, and a dot on each: a smaller one where it is hidden or unsure."""
    points = np.array(pose).reshape(-1, 3)
    there = points[:, 2] != ABSENT
    bones = [points[[a, b], :2] for a, b in skeleton if there[a] and there[b]]
    for thick, ink in ((width + 2, HALO), (width, colour)):
        for bone in bones:
            _stroke(pencil, bone, ink, thick)
    for x, y, state in points[there].tolist():
        radius = width * (1.4 if state == SEEN else 0.9)
        _dot(pencil, x, y, radius + 1, HALO)
        _dot(pencil, x, y, radius, colour)
