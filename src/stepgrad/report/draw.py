"""Boxes, masks, poses and oriented boxes drawn on pictures, told apart by line style as well as by colour."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageColor, ImageDraw, ImageFont

from stepgrad.errors import InputError, NonFiniteError, one_of
from stepgrad.evaluation.outlines import Lines
from stepgrad.report.draw_lines import DASHES, HALO, LineStyle, draw_closed, draw_pose, fill_mask, strokes

Verdict = Literal["right", "wrong", "missed"]
Corners = tuple[float, float, float, float]

# Okabe and Ito's colours: distinct under every common kind of colour blindness.
PALETTE = ("#56b4e9", "#e69f00", "#009e73", "#f0e442", "#cc79a7", "#d55e00", "#0072b2")


PENS: dict[Verdict, tuple[str, LineStyle]] = {
    "right": ("#2fd6a0", "solid"),
    "wrong": ("#ff7a33", "dashed"),
    "missed": ("#f5e663", "dotted"),
}
"""Colour and line style of true positives, false positives, and objects nothing found."""


def colour_of(label: int) -> str:
    """A colour for a class; classes far apart may share one.

    >>> colour_of(0) == colour_of(len(PALETTE))
    True
    """
    return PALETTE[label % len(PALETTE)]


def draw_detections(
    image: Image.Image,
    boxes: ArrayLike,
    texts: Sequence[str],
    colours: Sequence[str] | str = PALETTE[0],
    styles: Sequence[LineStyle] | LineStyle = "solid",
    *,
    line_width: int | None = None,
    lines: Sequence[Lines] = (),
    drawn: str = "box",
    skeleton: Sequence[tuple[int, int]] = (),
) -> Image.Image:
    """A copy of the picture with the boxes on it; earlier boxes lie on top.

    Args:
        image: any mode; the copy is RGB.
        boxes: (M, 4) x1 y1 x2 y2, continuous pixels; what lies outside the picture is cut.
        texts: one per box; "" for none. One that would cover another, in all its places, is left out.
        colours: one per box, or one for all.
        styles: "solid", "dashed" or "dotted", one per box or one for all.
        line_width: in pixels; None chooses by the size of the picture.
        lines: of masks, poses or oriented boxes, one entry per box: what is drawn in its place (`evaluation.outlines`) ...
        drawn: ... and as what: "mask", "pose" or "polygon".
        skeleton: pairs of a pose's points to join by a line.

    >>> drawn = draw_detections(Image.new("RGB", (64, 64)), [[8, 8, 40, 50]], ["cat 0.93"], "#00ff00")
    >>> drawn.size, drawn.getpixel((8, 30))
    ((64, 64), (0, 255, 0))
    """
    corners = _checked(boxes)
    M = len(corners)
    inks, kinds = _each("colours", colours, M), _each("styles", styles, M)
    _each("texts", list(texts), M)
    for kind in kinds:
        one_of("styles", kind, list(DASHES))
    width = line_width or max(2, round(max(image.size) / 180))
    canvas = image.convert("RGB").copy()
    pencil = ImageDraw.Draw(canvas)
    clipped = _clip(corners, canvas.size, width)
    shapes = list(lines) or [[]] * M
    for box, shape, ink, kind in reversed(list(zip(clipped, shapes, inks, kinds, strict=True))):
        style: LineStyle = kind  # type: ignore[assignment]
        if shape and drawn != "pose":
            if drawn == "mask":
                fill_mask(canvas, shape, ink)
            draw_closed(pencil, shape, ink, style, width)
        else:
            _outline(pencil, box, ink, style, max(2, width // 2) if shape else width)
        if shape and drawn == "pose":
            draw_pose(pencil, shape[0], skeleton, ink, width)
    taken: list[Corners] = []
    for box, text, ink in zip(clipped, texts, inks, strict=True):
        if text:
            _label(pencil, box, text, ink, canvas.size, taken)
    return canvas


def draw_verdicts(
    image: Image.Image,
    boxes: ArrayLike,
    texts: Sequence[str],
    verdicts: Sequence[Verdict],
    **options: Any,
) -> Image.Image:
    """Right detections solid green, wrong ones dashed orange, objects that were missed dotted yellow.

    Options are those of `draw_detections`.

    >>> draw_verdicts(Image.new("RGB", (64, 64)), [[8, 8, 40, 50]], ["cat"], ["missed"]).size
    (64, 64)
    """
    for verdict in verdicts:
        one_of("verdicts", verdict, list(PENS))
    colours, styles = ([PENS[verdict][part] for verdict in verdicts] for part in (0, 1))
    return draw_detections(image, boxes, texts, colours, styles, **options)  # type: ignore[arg-type]


def _checked(boxes: ArrayLike) -> NDArray[np.float64]:
    corners = np.asarray(boxes, dtype=np.float64)
    if corners.size == 0:
        return corners.reshape(0, 4)
    if corners.ndim != 2 or corners.shape[1] != 4:
        raise InputError(f"Expected boxes of shape (M, 4) to draw but got {corners.shape}.")
    if not np.isfinite(corners).all():
        raise NonFiniteError(f"Expected finite boxes to draw but got {corners[~np.isfinite(corners).all(1)][0]}.")
    return corners


def _each(name: str, one_or_all: Sequence[str] | str, count: int) -> list[str]:
    """One value per box."""
    values = [one_or_all] * count if isinstance(one_or_all, str) else list(one_or_all)
    if len(values) != count:
        raise InputError(f"Expected {name} for {count} boxes but got {len(values)}.")
    return values


def _clip(corners: NDArray[np.float64], size: tuple[int, int], width: int) -> list[Corners]:
    """The boxes inside the picture, their lines wholly visible."""
    low = (width - 1) // 2
    high = np.maximum(np.array(size) - 1 - width // 2, low)
    first, last = np.clip(corners[:, :2], low, high), np.clip(corners[:, 2:] - 1, low, high)
    return np.hstack([first, np.maximum(first, last)]).tolist()


def _outline(pencil: ImageDraw.ImageDraw, box: Corners, colour: str, style: LineStyle, width: int) -> None:
    """The four edges over a thin dark halo, so that they show on any background."""
    x1, y1, x2, y2 = box
    edges = [(x1 + start, y, x1 + end, y) for start, end in strokes(x2 - x1, style, width) for y in (y1, y2)]
    edges += [(x, y1 + start, x, y1 + end) for start, end in strokes(y2 - y1, style, width) for x in (x1, x2)]
    for thick, ink in ((width + 2, HALO), (width, colour)):
        before, after = (thick - 1) // 2, thick // 2
        for left, top, right, bottom in edges:
            area = round(left) - before, round(top) - before, round(right) + after, round(bottom) + after
            pencil.rectangle(area, fill=ink)


def _label(
    pencil: ImageDraw.ImageDraw, box: Corners, text: str, colour: str, size: tuple[int, int], taken: list[Corners]
) -> None:
    """The text on its colour, at the first corner of the box where it covers no other text; none if there is no such place."""
    font = _font(max(11, round(max(size) / 36)))
    text = " ".join(text.split())  # one line
    left, top, right, bottom = font.getbbox(text)
    wide, high = right - left + 8, bottom - top + 6
    x = min(max(box[0] - 1, 0), max(size[0] - wide, 0))
    places = [box[1] - high, box[3] + 2, box[1], box[3] - high, box[1] + high, box[1] + 2 * high]
    inside = [y for y in places if 0 <= y <= size[1] - high] or [0.0]
    chips = [(x, y, x + wide, y + high) for y in inside]
    chip = next((chip for chip in chips if not any(_touch(chip, other) for other in taken)), None)
    if chip is None:  # two texts on one another can neither be read, and hide what lies below
        return
    taken.append(chip)
    pencil.rectangle(chip, fill=colour)
    pencil.text((chip[0] + 4 - left, chip[1] + 3 - top), text, font=font, fill=_readable_on(colour))


def _touch(a: Corners, b: Corners) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _readable_on(colour: str) -> str:
    red, green, blue = ImageColor.getrgb(colour)[:3]
    return "#000000" if 0.299 * red + 0.587 * green + 0.114 * blue > 110 else "#ffffff"


@lru_cache(maxsize=16)
def _font(size: int) -> ImageFont.FreeTypeFont:
    """DejaVu Sans as matplotlib brings it: it knows far more letters than Pillow's own."""
    import matplotlib

    file = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    return ImageFont.truetype(str(file), size)  # Pillow 10.0 takes no Path
